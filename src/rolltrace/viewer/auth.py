"""Auth middleware: token, session cookie, Host and Origin checks, and a throttle for wrong tokens."""

import asyncio
import hmac
import ipaddress
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolltrace.errors import InputError

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

_FREE = 5
"""How many wrong tokens of a client are answered without a delay, for typing errors."""
_FIRST_DELAY = 0.1
_MAX_DELAY = 2.0
_FORGET_SECONDS = 60.0
_MAX_CLIENTS = 1024
_MAX_WAITING = 16
"""How many delayed responses one client may have; at the limit, its further tokens are not compared."""
_MAX_WAITING_IN_ALL = 128
"""How many delayed responses all clients may have; at the limit, wrong tokens are refused at once."""


class AuthMiddleware:
    """Wraps an application: refuses requests without the token, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], port: int, any_address: bool = False) -> None:
        self._app = app
        self._token = token
        self._hosts = {host.lower() for host in hosts}
        self._port = port
        self._any_address = any_address
        self._cookie = f"rolltrace_{port}"
        self._session = secrets.token_urlsafe(32)
        """The cookie's value. It is not the token, so reading a browser's cookies does not reveal the token; it is
        valid until the server restarts."""
        self._guesses = TokenThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, or pass the request on to the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            response = self._reject_foreign(scope) or await self._entry(scope)
            await (response or self._app)(scope, receive, _guarded(send, scope["path"]))

    def _reject_foreign(self, scope: Scope) -> Response | None:
        """Refuse requests that a page of another site may have sent."""
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
        """Accept the token or the session cookie; a token in the URL is exchanged for the cookie."""
        request = Request(scope)
        path = scope["path"]
        if path == "/" and "token" in request.query_params:
            return await self._check_token(request, request.query_params["token"]) or self._welcome()
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return await self._check_token(request, token.strip())
        if _is_same(cookie_parser(request.headers.get("cookie", "")).get(self._cookie, ""), self._session):
            return None
        # After a link on another site the browser leaves out the cookie; after a refresh of our own page it sends it.
        from_other_site = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        return _unauthorized(path, _REFRESH if from_other_site else "")

    def _welcome(self) -> Response:
        response = RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._session, path="/", httponly=True, samesite="strict")
        return response

    async def _check_token(self, request: Request, token: str) -> Response | None:
        """Refuse a wrong token, after a delay if there were many, and any token of a client that floods the server."""
        client = request.client.host if request.client else ""
        if self._guesses.is_flooding(client):
            return _too_many()
        if _is_same(token, self._token):
            return None
        if self._guesses.is_full():
            return _too_many()
        await self._guesses.delay_wrong_token(client)
        return _unauthorized(request.url.path, "")

    def _is_ours(self, host: str) -> bool:
        if host.lower() in self._hosts:
            return True
        name, port = _split(host)
        # Unlike a name, an address cannot be rebound to another machine.
        return self._any_address and port == self._port and _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


class TokenThrottle:
    """Counts the wrong tokens of each client, and delays the responses to them with exponential backoff.

    Only the request with the wrong token waits; the right token is never delayed. A client that floods the server
    (`is_flooding`) is refused before its token is compared, even with the right one, until some of its wrong tokens
    are answered: otherwise parallel connections could test tokens without a delay. Other clients are not affected.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def is_flooding(self, client: str) -> bool:
        """Whether this client has too many delayed responses."""
        return self._waiting[client] >= _MAX_WAITING

    def is_full(self) -> bool:
        """Whether all clients together have too many delayed responses."""
        return self._waiting.total() >= _MAX_WAITING_IN_ALL

    async def delay_wrong_token(self, client: str) -> None:
        """Count a wrong token, and return when it may be answered."""
        count, last = self._wrong.pop(client, (0, 0.0))
        now = time.monotonic()
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        self._wrong[client] = count, now
        while len(self._wrong) > _MAX_CLIENTS:
            self._wrong.popitem(last=False)
        if count <= _FREE:
            return
        self._waiting[client] += 1
        try:
            await asyncio.sleep(min(_FIRST_DELAY * 2 ** min(count - _FREE - 1, 16), _MAX_DELAY))
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]


def check_token(token: str) -> None:
    """Refuse a token that is easy to guess, or that a URL cannot contain."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("Expected a token of letters, digits and signs without spaces.")
    if len(token) < MIN_TOKEN_LENGTH:
        raise InputError(
            f"Expected a token of at least {MIN_TOKEN_LENGTH} characters, got {len(token)}: give a longer one, "
            "or none, and a random one is made."
        )


def host_names(host: str, port: int) -> list[str]:
    """The values of Host that a browser may send to a server that listens at this address."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    return [f"{name}:{port}" for name in names] + (sorted(names) if port == 80 else [])


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
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


def _is_same(received: str, expected: str) -> bool:
    return hmac.compare_digest(received.encode("utf-8", "surrogatepass"), expected.encode())


def _refused(status: int, kind: str, message: str) -> Response:
    return JSONResponse({"error": {"type": kind, "message": message}}, status)


def _too_many() -> Response:
    response = _refused(429, "TooManyGuesses", "Expected fewer wrong tokens at once: try again in a few seconds.")
    response.headers["retry-after"] = "2"
    return response


def _unauthorized(path: str, refresh: str) -> Response:
    if path.startswith(API):
        message = "Expected the token of this server: open the address that `rolltrace view` printed."
        return _refused(401, "Unauthorized", message)
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
