"""HTTP requests to a viewer, with any headers."""

import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from viewing import Viewer


class Reply(NamedTuple):
    """The response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as strict JSON, as a browser reads it."""
        return json.loads(self.body, parse_constant=_refuse)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def request(
    viewer: Viewer,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    token: str | None = "",
    timeout: float = 120,
) -> Reply:
    """Sends one request with the path unchanged; with the right token by default, without one if None."""
    parts = urlsplit(viewer.origin)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    sent = dict(headers or {})
    if token is not None:
        sent.setdefault("Authorization", f"Bearer {token or viewer.token}")
    try:
        connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
        for name, value in sent.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def ask(viewer: Viewer, question: str, **parameters: Any) -> Reply:
    """Makes an API request; lists are repeated parameters."""
    return request(viewer, f"/api/{question}?{urlencode(list(_pairs(parameters)))}")


def answer(viewer: Viewer, question: str, **parameters: Any) -> Any:
    """The answer of a successful API request."""
    reply = ask(viewer, question, **parameters)
    assert reply.status == 200, reply.body
    return reply.json


def post(viewer: Viewer, question: str, **body: Any) -> Reply:
    """Posts a JSON body to the API."""
    return request(
        viewer,
        f"/api/{question}",
        method="POST",
        body=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )


def _pairs(parameters: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in parameters.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            yield name, str(one)
