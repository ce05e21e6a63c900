"""Requests need the token, a host name of this server and its own origin; a refused request breaks nothing."""

import asyncio
import base64
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

import rolltrace
from asking import answer, ask, post, request
from rolltrace.viewer.auth import AuthMiddleware, TokenThrottle, host_names, is_loopback
from viewing import Viewer, viewing

TRAVERSALS = (
    "..", "../..", "../../etc/passwd", "/etc/passwd", "%2e%2e%2f", "arithmetic/../arithmetic", "arithmetic/",
    "./arithmetic", "arithmetic\x00", "ARITHMETIC", "", "\ud800",
)  # fmt: skip
PATHS = (
    "/../pyproject.toml", "/assets/../../server.py", "/%2e%2e/server.py", "/assets/%2e%2e/%2e%2e/server.py",
    "/..%2fserver.py", "//etc/passwd", "/assets//page.js", "/server.py", "/assets/", "/index.html/", "/%00",
    "/assets/page.js%00.html", "\\..\\server.py",
)  # fmt: skip


@pytest.fixture(autouse=True)
def lives(viewer: Viewer):
    """Asserts that the server still answers."""
    yield
    assert answer(viewer, "runs")["total"] == 5


def test_requests_without_the_token_are_refused(viewer: Viewer):
    """Without a token, or with a wrong one, the page and every API call answer 401."""
    wrong = (
        {}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": f"Basic {viewer.token}"},
        {"Cookie": f"rolltrace_{urlsplit(viewer.origin).port}=wrong"}, {"Cookie": f"other={viewer.token}"},
        {"Authorization": f"Bearer {viewer.token}x"}, {"Authorization": f"Bearer {viewer.token[:-1]}"},
        {"Authorization": "Bearer \xff"},
    )  # fmt: skip
    for headers in wrong:
        guesses = "Bearer" in headers.get("Authorization", "")  # which are delayed
        for path in (
            ("/", "/api/runs") if guesses else ("/", "/assets/page.js", "/api/runs", "/api/nothing", "/nothing")
        ):
            reply = request(viewer, path, token=None, headers=headers)
            assert reply.status == 401, (path, headers)
            assert b"arithmetic" not in reply.body
    assert request(viewer, "/?token=wrong", token=None).status == 401
    assert request(viewer, "/?token=", token=None).status == 401


def test_a_wrong_token_is_refused_whatever_else_is_right(viewer: Viewer):
    """A wrong token in the address is refused even with a valid cookie."""
    cookie = session_of_file(viewer)
    assert request(viewer, "/", token=None, headers=cookie).status == 200
    assert request(viewer, "/?token=wrong", token=None, headers=cookie).status == 401


def session_of_file(viewer: Viewer) -> dict[str, str]:
    """The cookie header of a browser that is logged in."""
    entered = request(viewer, f"/?token={viewer.token}", token=None)
    return {"Cookie": entered.headers["set-cookie"].partition(";")[0]}


def test_the_cookie_is_not_the_token(viewer: Viewer):
    """The cookie does not contain the token, is not accepted as one, and the token is not accepted as a cookie."""
    sent = session_of_file(viewer)
    name, _, value = sent["Cookie"].partition("=")
    assert viewer.token not in value
    assert request(viewer, "/api/runs", token=None, headers=sent).status == 200
    assert request(viewer, "/api/runs", token=None, headers={"Cookie": f"{name}={viewer.token}"}).status == 401
    assert request(viewer, "/api/runs", token=value).status == 401


def test_another_start_has_another_session(runs: Path):
    """A server that is started again with the same token does not accept the cookies of the one before."""
    values = []
    for _ in range(2):
        with viewing(runs, "--token", "the-same-token-twice") as served:
            values.append(session_of_file(served)["Cookie"].partition("=")[2])
    assert values[0] != values[1]


@pytest.mark.parametrize("given", ["short", "fifteen-letters"])
def test_short_tokens_are_refused(runs: Path, given: str):
    """A token that can be guessed is refused at the start, as option and in the environment."""
    for refused in (_view(str(runs), "--token", given), _view(str(runs), env={"ROLLTRACE_VIEW_TOKEN": given})):
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "at least 16 characters" in refused.stderr
        assert given not in refused.stderr


def test_wrong_guesses_lock_out_no_client(runs: Path):
    """However many tokens were wrong, in sequence or at once, the right one is accepted, and sessions stay valid."""
    with viewing(runs) as served:
        session = session_of_file(served)
        for number in range(8):
            assert request(served, "/api/runs", token=f"wrong{number}").status == 401
        assert request(served, "/api/runs").status == 200
        with ThreadPoolExecutor(40) as pool:
            guesses = [pool.submit(request, served, "/api/runs", token=f"wrong{number}") for number in range(80)]
            assert request(served, "/api/runs", token=None, headers=session).status == 200
            statuses = {guess.result().status for guess in guesses}
        assert statuses == {401, 429}
        assert request(served, "/api/runs").status == 200


def test_wrong_guesses_are_delayed(monkeypatch: pytest.MonkeyPatch):
    """After the first few, wrong guesses are delayed by a growing, bounded time; other clients are not."""
    delays: list[float] = []

    async def note(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    guesses = TokenThrottle()
    for _ in range(20):
        asyncio.run(guesses.delay_wrong_token("10.0.0.1"))
    assert delays == sorted(delays)
    assert (len(delays), delays[0] > 0, delays[-1] <= 5) == (15, True, True)
    asyncio.run(guesses.delay_wrong_token("10.0.0.2"))
    assert len(delays) == 15


async def test_a_flood_of_guesses_is_refused():
    """While many wrong guesses of a client are delayed, its further ones are refused; those of others are not."""
    guesses = TokenThrottle()
    waiting = [asyncio.create_task(guesses.delay_wrong_token("10.0.0.1")) for _ in range(50)]
    await asyncio.sleep(0)
    assert guesses.is_flooding("10.0.0.1")
    assert not guesses.is_flooding("10.0.0.2")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not guesses.is_flooding("10.0.0.1")


async def test_a_flood_from_many_clients_does_not_refuse_the_right_token():
    """While wrong tokens of many clients are delayed, further wrong ones are refused, and the right one is accepted."""
    access = AuthMiddleware(_empty_app, "the-right-token-here", ["viewer"], 80)
    clients = [f"10.0.0.{number}" for number in range(30)]
    waiting = [asyncio.create_task(_status(access, client, "wrong")) for client in clients for _ in range(15)]
    await asyncio.sleep(0)
    try:
        assert await _status(access, "10.1.0.1", "wrong") == 429
        assert await _status(access, "10.1.0.1", "the-right-token-here") == 200
        assert await _status(access, clients[0], "the-right-token-here") == 200
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _empty_app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _status(access: AuthMiddleware, client: str, token: str) -> int:
    """The status of a client's request with this token."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    headers = [(b"host", b"viewer"), (b"authorization", f"Bearer {token}".encode())]
    scope = {
        "type": "http", "method": "GET", "path": "/api/runs", "query_string": b"", "headers": headers,
        "client": (client, 1), "scheme": "http", "server": ("viewer", 80),
    }  # fmt: skip
    await access(scope, receive, send)
    return int(sent[0]["status"])


def test_the_address_logs_in_and_drops_the_token(viewer: Viewer):
    """The printed address sets an HttpOnly, same-site cookie, and redirects to an address without the token."""
    entered = request(viewer, f"/?token={viewer.token}", token=None)
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == f"rolltrace_{urlsplit(viewer.origin).port}"
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in rest.split(";")}
    sent = {"Cookie": cookie.partition(";")[0]}
    assert request(viewer, "/", token=None, headers=sent).status == 200
    assert request(viewer, "/api/runs", token=None, headers=sent).status == 200


def test_a_link_from_another_site_works(viewer: Viewer):
    """A browser withholds the cookie on a cross-site link, so the page reloads itself once from its own origin."""
    led = request(viewer, "/", token=None, headers={"Sec-Fetch-Site": "cross-site"})
    assert led.status == 401
    assert b'http-equiv="refresh"' in led.body
    own = request(viewer, "/", token=None, headers={"Sec-Fetch-Site": "same-origin"})
    assert b"refresh" not in own.body


def test_only_names_of_this_server_are_answered(viewer: Viewer):
    """A foreign host name that resolves to this machine is refused, even with the token."""
    port = urlsplit(viewer.origin).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
        assert request(viewer, "/api/runs", headers={"Host": host}).status == 200
    foreign = (
        "evil.example", f"evil.example:{port}", "localhost", "127.0.0.1", f"127.0.0.1:{port + 1}", "",
        f"127.0.0.1:{port}.evil.example", f"localhost.:{port}", f"127.0.0.2:{port}", f"user@127.0.0.1:{port}",
    )  # fmt: skip
    for host in foreign:
        for path in ("/", f"/?token={viewer.token}", "/api/runs"):
            assert request(viewer, path, headers={"Host": host}).status == 403, host


def test_other_pages_are_refused(viewer: Viewer):
    """Another origin, even another port of this machine, is refused with the token and with the cookie."""
    port = urlsplit(viewer.origin).port
    origins = (
        "https://evil.example", "null", f"http://127.0.0.1:{port + 1}", "http://127.0.0.1", f"file://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}.evil.example", "http://[", f"http://localhost:{port}",
    )  # fmt: skip
    for origin in origins:
        assert request(viewer, "/api/runs", headers={"Origin": origin}).status == 403, origin
        posted = {"Origin": origin, "Content-Type": "application/json"}
        assert request(viewer, "/api/sql", method="POST", body=b"{}", headers=posted).status == 403, origin
    assert request(viewer, "/api/runs", headers={"Origin": viewer.origin}).status == 200
    for site in ("cross-site", "same-site", "anything"):
        assert request(viewer, "/api/runs", headers={"Sec-Fetch-Site": site}).status == 403
    for site in ("same-origin", "none"):
        assert request(viewer, "/api/runs", headers={"Sec-Fetch-Site": site}).status == 200


def test_form_posts_are_refused(viewer: Viewer):
    """A body that is not declared as JSON is refused, since forms of other pages can send only those."""
    body = b'{"run": "arithmetic", "sql": "select 1"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        reply = request(viewer, "/api/sql", method="POST", body=body, headers={"Content-Type": kind})
        assert reply.status == 415
    given = {"Content-Type": "application/json; charset=utf-8"}
    assert request(viewer, "/api/sql", method="POST", body=body, headers=given).status == 200


def test_every_response_has_security_headers(viewer: Viewer):
    """Every response, also a refusal, allows no foreign script, framing, type sniffing or cross-origin access."""
    replies = [
        request(viewer, "/"), request(viewer, "/", token=None), request(viewer, "/api/runs"),
        request(viewer, "/api/nothing"), request(viewer, "/", headers={"Host": "evil.example"}),
        request(viewer, "/nothing"), post(viewer, "sql"), request(viewer, "/", method="DELETE"),
    ]  # fmt: skip
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        for part in ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cross-origin-opener-policy"] == "same-origin"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control-") for name in reply.headers)
        assert "server" not in reply.headers
    assert request(viewer, "/api/runs").headers["cache-control"] == "no-store"


def test_a_key_is_no_path(viewer: Viewer):
    """An unknown key is a 404, whatever path it looks like."""
    for key in TRAVERSALS:
        for question in ("run", "rollouts", "series", "findings"):
            reply = ask(viewer, question, run=key.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
            assert reply.status == 404, (key, question)
            assert reply.json["error"]["type"] == "RunNotFoundError"
        assert request(viewer, f"/api/run?run={quote(key, errors='surrogatepass')}").status == 404
    assert ask(viewer, "rollout", run="arithmetic", id="../../run.json").status == 404


def test_only_files_of_the_page_are_served(viewer: Viewer):
    """No path leads out of the built page."""
    for path in PATHS:
        reply = request(viewer, path)
        assert reply.status in (400, 404), path
        assert b"root:" not in reply.body
        assert b"import " not in reply.body
    script = request(viewer, "/assets/page.js")
    assert (script.status, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")


def test_unknown_questions_and_methods_are_refused(viewer: Viewer):
    """Unknown paths, wrong methods, long bodies and long parameters are refused."""
    assert request(viewer, "/api/nothing").status == 404
    assert request(viewer, "/api/sql").status == 404
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert request(viewer, "/api/runs", method=method).status == 405
    assert request(viewer, "/api/runs", method="POST", body=b"{}").status == 405
    assert post(viewer, "sql", run="arithmetic", sql="select 1" + " " * 1_200_000).status == 413
    with contextlib.suppress(ConnectionError):  # no more is read of it
        assert request(viewer, f"/api/runs?x={'y' * 200_000}").status == 400
    assert ask(viewer, "rollouts", run="arithmetic", filter=["reward:min:0"] * 51).status == 400
    assert ask(viewer, "rollouts", run="arithmetic", search="x" * 1_001).status == 400


def test_blobs_are_images_or_only_saved(tmp_path: Path):
    """A blob is sent as an image only if it begins like one; all others are downloads."""
    png = base64.b64decode(
        b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    with rolltrace.create_run(tmp_path / "run") as run, run.rollout(env="e", task="t", group="g", index=0) as rollout:
        parts = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}
            for data in (png, svg)
        ]
        rollout.step(prompt=[{"role": "user", "content": parts}], response={"role": "assistant", "content": "a"})
    with viewing(tmp_path) as viewer:
        message = answer(viewer, "rollout", run="run", id=rollout.id)["rollout"]["messages"][0]
        names = [part["blob"] for part in message["parts"]]
        image, script = (ask(viewer, "blob", run="run", name=name, type="image/png") for name in names)
        assert (image.status, image.headers["content-type"], image.body) == (200, "image/png", png)
        assert (script.status, script.headers["content-type"]) == (200, "application/octet-stream")
        assert script.headers["content-disposition"] == "attachment"
        for name in ("../run.json", "run.json", "sha256-" + "0" * 64, "", f"{names[0]}/..", f"sha256-{'../' * 21}a"):
            assert ask(viewer, "blob", run="run", name=name).status in (400, 404)


def _view(*options: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rolltrace", "view", "--no-open", *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(env or {})}
    )


def test_other_hosts_need_a_chosen_token(runs: Path):
    """Listening on an address that other machines reach needs an explicit token."""
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused = _view(str(runs), "--host", host)
        assert refused.returncode == 2
        assert "--token" in refused.stderr
        assert refused.stdout == ""
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("localhost.evil.example")
    assert host_names("::1", 80) == sorted(host_names("::1", 80), key=lambda name: ":80" not in name[-3:])


def test_a_chosen_token_is_used_and_not_printed_elsewhere(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """The token comes from the environment or the option, and only the address on standard output contains it."""
    monkeypatch.setenv("ROLLTRACE_VIEW_TOKEN", "chosen-in-secret")
    with viewing(runs, "--host", "0.0.0.0") as served:
        assert served.token == "chosen-in-secret"
        port = urlsplit(served.origin).port
        assert request(served, "/api/runs", headers={"Host": f"192.0.2.7:{port}"}).status == 200
        assert request(served, "/api/runs", headers={"Host": f"evil.example:{port}"}).status == 403
        request(served, f"/?token={served.token}", token=None)
        ask(served, "rollouts", run="arithmetic", where="error")
        served.process.terminate()
        said, told = served.process.communicate(timeout=60)
        assert "chosen-in-secret" not in said + told


def test_a_port_that_is_taken_is_reported(runs: Path):
    """The message names the port and what to do; so it does for an address that is not this machine's."""
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = _view(str(runs), "--port", str(port))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert str(port) in refused.stderr
    assert "--port" in refused.stderr
    assert _view(str(runs), "--host", "192.0.2.1", "--token", "x" * 16).returncode == 2
    assert _view(str(runs / "nothing")).returncode == 2


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(runs: Path, told: signal.Signals):
    """Ctrl-C and SIGTERM end it with exit code 0 and no message, also with an open connection."""
    with viewing(runs) as served:
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/\?token=[\w-]{20,}", served.entry)
        parts = urlsplit(served.origin)
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as idle:
            idle.sendall(b"GET /api/runs HTTP/1.1\r\n")
            ask(served, "findings", run="arithmetic")
            served.process.send_signal(told)
            _, complaints = served.process.communicate(timeout=60)
        assert served.process.returncode == 0
        assert "Traceback" not in complaints
