"""Auth middleware: token, session cookie, Host and Origin checks."""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolltrace.errors import InputError
from rolltrace.viewer.guesses import TokenThrottle

API = "/api/"
MIN_TOKEN_LENGTH = 16

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_LOGIN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8">{refresh}<title>Rolltrace</title>
<h1>This viewer asks for its token</h1>
<p>Open the whole address that <code>rolltrace view</code> printed when it started: it ends in <code>?token=…</code>.
A server that was started again has a new one.</p>
<p>A program sends it as <code>Authorization: Bearer …</code>.</p>
</html>
"""
_REFRESH = '<meta http-equiv="refresh" content="0; url=/">'


class AuthMiddleware:
    """Stands before an application and lets in only what may come in; every answer gets the headers of safety."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], port: int, any_address: bool = False) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in hosts}
        self._port = port
        self._any_address = any_address
        self._cookie = f"rolltrace_{port}"
        self._session = secrets.token_urlsafe(32)
        """The cookie's value. It is not the token: who reads a browser's cookies does not learn that, and a server that
        is started again knows it no more."""
        self._guesses = TokenThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            response = self._reject_foreign(scope) or await self._entry(scope)
            await (response or self._app)(scope, receive, _guarded(send, scope["path"]))

    def _reject_foreign(self, scope: Scope) -> Response | None:
        """Refuse what a page of somebody else's may have sent."""
        headers = Headers(scope=scope)
        host = headers.getlist("host")
        if len(host) != 1 or not self._is_ours(host[0]):
            return _refused(403, "ForeignHost", f"Expected a name of this server as Host, got {host[:1]!r}.")
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, host[0]):
            return _refused(403, "ForeignOrigin", "Expected a request of this server's own page.")
        site = headers.get("sec-fetch-site", "none")
        if scope["path"].startswith(API) and site not in ("none", "same-origin"):
            return _refused(403, "ForeignOrigin", "Expected a request of this server's own page.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _refused(405, "WrongMethod", "Expected GET or POST.")
        return None

    async def _entry(self, scope: Scope) -> Response | None:
        """Let in requests with the token or the session's cookie; the token in the address is exchanged for that."""
        request = Request(scope)
        path = scope["path"]
        if path == "/" and "token" in request.query_params:
            return await self._check_token(request, request.query_params["token"]) or self._welcome()
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return await self._check_token(request, given.strip())
        if _is_same(cookie_parser(request.headers.get("cookie", "")).get(self._cookie, ""), self._session):
            return None
        # A cookie is not sent along where a page of another site led here: from our own page, it is.
        is_led = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        return _unknown(path, _REFRESH if is_led else "")

    def _welcome(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="strict")
        return response

    async def _check_token(self, request: Request, given: str) -> Response | None:
        """Refuse a wrong token, after a delay if there were many, and any token of a client that floods the server."""
        client = request.client.host if request.client else ""
        if self._guesses.is_flooding(client):
            return _too_many()
        if _is_same(given, self._token):
            return None
        if self._guesses.is_full():
            return _too_many()
        await self._guesses.delay_wrong_token(client)
        return _unknown(request.url.path, "")

    def _is_ours(self, host: str) -> bool:
        if host.lower() in self._hosts:
            return True
        name, port = _split(host)
        # An address cannot be made to mean another machine, as a name can.
        return self._any_address and port == self._port and _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def check_token(token: str) -> None:
    """Refuse a token that is easy to guess, or that an address cannot hold."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("Expected a token of letters, digits and signs without spaces.")
    if len(token) < MIN_TOKEN_LENGTH:
        raise InputError(
            f"Expected a token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}: give a longer one, "
            "or none, and a random one is made."
        )


def host_names(host: str, port: int) -> list[str]:
    """What a browser may call a server that listens at this address."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    return [f"{name}:{port}" for name in names] + (sorted(names) if port == 80 else [])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _guarded(send: Send, path: str) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store" if path.startswith(API) else "no-cache")
        await send(message)

    return guarded


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())


def _refused(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"type": kind, "message": message}}, status)


def _too_many() -> Response:
    response = _refused(429, "TooManyGuesses", "Expected fewer wrong tokens at once: try again in a few seconds.")
    response.headers["retry-after"] = "2"
    return response


def _unknown(path: str, refresh: str) -> Response:
    if path.startswith(API):
        message = "Expected the token of this server: open the address that `rolltrace view` printed."
        return JSONResponse({"error": {"type": "Unauthorized", "message": message}}, 401)
    return HTMLResponse(_LOGIN_PAGE.format(refresh=refresh), 401)


def _split(host: str) -> tuple[str, int | None]:
    name, _, port = host.rpartition(":")
    return name.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdigit() else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
