"""A proxy in front of an OpenAI-compatible server: it passes bytes on unchanged, and records what a policy answers."""

import asyncio
import contextlib
import hmac
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict

from rolltrace.bridges.api_calls import ApiRequest, parse_request
from rolltrace.bridges.proxy_turns import NamedRollout, NamedTurn, SingleTurn, Turn
from rolltrace.errors import InputError
from rolltrace.store.writer import RunWriter

PREFIX = "X-Rolltrace-"
_LOWER_PREFIX = PREFIX.lower()
_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
    "upgrade", "host", "content-length",
}  # fmt: skip
_FIELDS = {"Env": str, "Task": str, "Group": str, "Index": int, "Iteration": int, "Split": str}
"""By the end of a header's name, the type of a rollout's field of that name."""
_MAX_BODY = 256 << 20
_MAX_ENDED = 10_000
"""How many rollouts that have ended are remembered, so that what comes late is not a new one."""
_CHECK_SECONDS = 1.0
_EXIT_SECONDS = 3.0
"""How long requests may go on when the proxy ends."""


class _End(msgspec.Struct):
    """The body of `/rolltrace/end`."""

    rollout: str
    reward: float | None = None
    data: dict[str, Any] = {}
    stop_reason: str = "completed"
    error: dict[str, Any] | None = None


class _Score(msgspec.Struct):
    """The body of `/rolltrace/score`."""

    rollout: str
    name: str
    value: float | None
    data: dict[str, Any] = {}


class RecordingProxy:
    """Forwards requests to `upstream`, and records those that a policy answers in `run`."""

    def __init__(self, upstream: str, run: RunWriter, *, idle_seconds: float = 600.0, token: str | None = None) -> None:
        if not upstream.startswith(("http://", "https://")):
            raise InputError(f"Expected the URL of a server such as http://127.0.0.1:8000/v1, got {upstream!r}.")
        self._upstream = upstream.rstrip("/").removesuffix("/v1")
        self._run = run
        self._idle_seconds = idle_seconds
        self._token = token
        self._open: dict[str, NamedRollout] = {}
        self._ended: dict[str, NamedRollout] = {}
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The server's application."""
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_post("/rolltrace/end", self._end)
        app.router.add_post("/rolltrace/score", self._score)
        app.router.add_route("*", "/{path:.*}", self._forward)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _: web.Application) -> AsyncIterator[None]:
        """While the server runs: one client, and a task that ends idle rollouts. Then all rollouts are ended."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        connector = aiohttp.TCPConnector(limit=0)
        jar = aiohttp.DummyCookieJar()  # the cookie of one client is not for another
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False
        )
        idle = asyncio.create_task(self._end_idle())
        yield
        idle.cancel()
        await self._session.close()
        for name in list(self._open):
            self._end_named(name, "shutdown")

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_CHECK_SECONDS, self._idle_seconds))
            now = time.monotonic()
            for name, rollout in list(self._open.items()):
                if not rollout.in_flight and now - rollout.last_used > self._idle_seconds:
                    self._end_named(name, "idle")

    def _end_named(self, name: str, stop_reason: str, **fields: Any) -> None:
        rollout = self._open[name]
        rollout.recorder.end(stop_reason, **fields)
        self._ended[name] = self._open.pop(name)
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    # What programs say about their rollouts

    async def _end(self, request: web.Request) -> web.Response:
        """End a named rollout with its reward."""
        body = await self._body(request, _End)
        rollout = self._open.get(body.rollout)
        if rollout is None:
            raise _error(web.HTTPNotFound, f"Expected an open rollout, got {body.rollout!r}.")
        try:
            if body.reward is not None:
                rollout.recorder.grade(body.reward, body.data)
            self._end_named(body.rollout, body.stop_reason, error=body.error)
        except InputError as error:
            raise _error(web.HTTPBadRequest, str(error)) from error
        return web.json_response({"ended": body.rollout})

    async def _score(self, request: web.Request) -> web.Response:
        """Record a late score."""
        body = await self._body(request, _Score)
        try:
            self._run.score(body.rollout, body.name, body.value, data=body.data)
        except InputError as error:
            raise _error(web.HTTPBadRequest, str(error)) from error
        return web.json_response({"scored": body.rollout})

    async def _body(self, request: web.Request, kind: type[Any]) -> Any:
        self._check_token(request)
        try:
            return msgspec.json.decode(await request.read(), type=kind)
        except msgspec.ValidationError as error:
            raise _error(web.HTTPBadRequest, f"Expected {kind.__name__.strip('_').lower()}: {error}.") from error
        except ValueError as error:
            raise _error(web.HTTPBadRequest, f"Expected JSON: {error}.") from error

    def _check_token(self, request: web.Request) -> None:
        given = request.headers.get(f"{PREFIX}Token", "")
        if self._token is not None and not hmac.compare_digest(given.encode(), self._token.encode()):
            raise _error(web.HTTPUnauthorized, f"Expected the proxy's token in the header {PREFIX}Token.")

    # What is forwarded

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self._check_token(request)
        if self._session is None:
            raise _error(web.HTTPServiceUnavailable, "Expected a running proxy.")
        name, path = _split_path(request)
        body = await request.read()
        turn = self._begin_turn(request, name, path, body)
        query = f"?{request.query_string}" if request.query_string else ""
        url, headers = f"{self._upstream}{path}{query}", _passed_on(request.headers)
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, url, data=body or None, headers=headers, allow_redirects=False
            ) as answer:
                response = web.StreamResponse(
                    status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers)
                )
                response.content_length = answer.content_length
                turn.begin_answer(answer.status, answer.headers)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    turn.add(chunk)
                    await response.write(chunk)
                await response.write_eof()
                turn.end()
                return response
        except aiohttp.ClientError as error:
            turn.end(error)
            if response is None or not response.prepared:
                raise _error(web.HTTPBadGateway, f"The server did not answer: {type(error).__name__}.") from error
            if request.transport is not None:  # the client sees that the answer is not complete
                request.transport.abort()
            return response
        except BaseException as error:  # the client has gone, or the proxy is ending
            turn.end(error)
            raise

    def _begin_turn(self, request: web.Request, name: str | None, path: str, body: bytes) -> Turn:
        """The turn that a request asks for, of the rollout that it names or of one of its own."""
        parsed: ApiRequest | None = None
        if request.method == "POST":
            with contextlib.suppress(ValueError):
                parsed = parse_request(path, msgspec.json.decode(body))
        if parsed is None:
            return Turn()
        try:
            fields = _header_fields(request)
            if name is None:
                return SingleTurn(self._run, parsed, fields)
            return NamedTurn(self._named(name, fields), parsed)
        except InputError as error:
            raise _error(web.HTTPBadRequest, str(error)) from error

    def _named(self, name: str, fields: dict[str, Any]) -> NamedRollout:
        rollout = self._open.get(name)
        if rollout is None:
            defaults = {"env": "proxy", "task": name, "group": name, "index": None, "id": name}
            if name in self._ended:  # it is over: what comes is dropped, and counted
                return self._ended[name]
            rollout = self._open[name] = NamedRollout(self._run.rollout(**{**defaults, **fields}))
        return rollout


def _split_path(request: web.Request) -> tuple[str | None, str]:
    """The name of the rollout that a request is about, from its header or its path, and the path without it."""
    path = request.rel_url.raw_path
    name = request.headers.get(f"{PREFIX}Rollout")
    if path.startswith("/rollout/"):
        name, _, rest = path.removeprefix("/rollout/").partition("/")
        path = f"/{rest}"
    return name, path


def _header_fields(request: web.Request) -> dict[str, Any]:
    """The fields of a rollout that the headers give."""
    fields: dict[str, Any] = {}
    for name, kind in _FIELDS.items():
        value = request.headers.get(f"{PREFIX}{name}")
        if value is not None:
            try:
                fields[name.lower()] = kind(value)
            except ValueError:
                raise InputError(f"Expected a whole number in {PREFIX}{name}, got {value!r}.") from None
    return fields


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that are passed on: those of the message, not those of the connection or for the proxy."""
    left_out = _HOP_BY_HOP | {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lowered = name.lower()
        if lowered not in left_out and not lowered.startswith(_LOWER_PREFIX):
            passed.add(name, value)
    return passed


def _error(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    body = msgspec.json.encode({"error": {"message": message, "type": "rolltrace_proxy"}}).decode()
    return kind(text=body, content_type="application/json")


async def serve_proxy(proxy: RecordingProxy, host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve until Ctrl-C or SIGTERM; `on_ready` is called with the address for clients."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    runner = web.AppRunner(proxy.app(), access_log=None, handler_cancellation=True, shutdown_timeout=_EXIT_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=2_048).start()
        except OSError as error:
            raise InputError(f"Expected a free port at {host}, got {port}: {error}.") from error
        name, number = runner.addresses[0][:2]
        on_ready(f"http://{f'[{name}]' if ':' in name else name}:{number}/v1")
        await stopping.wait()
    finally:
        await runner.cleanup()
