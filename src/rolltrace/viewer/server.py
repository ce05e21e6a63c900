"""The web server of the viewer: routes, handlers, and how it starts and stops."""

import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.auth import AuthMiddleware, check_token, host_names
from rolltrace.viewer.http_errors import HttpError, http_error_of
from rolltrace.viewer.media_types import detect_image_type
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.sql_worker_pool import SqlWorkerPool

MAX_BODY = 1_100_000
THREADS = 8
"""How many requests are handled at once."""
_EXIT_SECONDS = 4.0
_JSON = "application/json"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound to
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
}  # fmt: skip

Body = TypeVar("Body")
Handler = Callable[[Request], Awaitable[Response]]


class SqlRequest(msgspec.Struct):
    """The body of `/api/sql`."""

    run: str
    sql: str
    limit: int = 1_000


class CheckRequest(msgspec.Struct):
    """The body of `/api/check`."""

    run: str


def make_app(
    folder: str | Path, *, token: str, port: int, hosts: Iterable[str], any_address: bool = False
) -> Starlette:
    """The application over the runs below a folder.

    `hosts` are the accepted values of Host, with the port; with `any_address`, every IP address is accepted too.
    """
    library = OpenRuns(folder, partial=True)
    handlers = HttpHandlers(library)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with handlers.ready():
            yield

    return Starlette(
        routes=[
            Route("/api/sql", _with_http_errors(handlers.sql), methods=["POST"]),
            Route("/api/check", _with_http_errors(handlers.check), methods=["POST"]),
            Route("/api/blob", _with_http_errors(handlers.blob), methods=["GET"]),
            Route("/api/{question}", _with_http_errors(handlers.get), methods=["GET"]),
            Route("/{name:path}", _with_http_errors(handlers.page), methods=["GET"]),
        ],
        middleware=[Middleware(AuthMiddleware, token=token, hosts=list(hosts), port=port, any_address=any_address)],
        exception_handlers={HTTPException: _http_exception},
        lifespan=lifespan,
        max_body_size=MAX_BODY,
    )


class HttpHandlers:
    """Request handlers. Queries run in threads; SQL that a user wrote runs in processes of its own."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._api = Api(library)

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """Run inside an event loop; at the end, requests that are still running are cancelled."""
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._files = anyio.CapacityLimiter(THREADS)
        self._workers = SqlWorkerPool(self._library.folder.path)
        try:
            yield
        finally:
            self._library.close()
            self._api.close()
            await self._workers.close()

    async def get(self, request: Request) -> Response:
        """Handle `/api/{question}`."""
        question = request.path_params["question"]
        ask = self._api.handlers.get(question)
        if ask is None:
            raise UnknownNameError(f"There is no /api/{question[:100]}.")
        parameters = RequestParameters(request.query_params.multi_items())
        if parameters.has_user_sql:
            return await self._in_worker(request, question, request.query_params.multi_items())
        return _json_response(await self._thread(partial(ask, parameters)))

    async def sql(self, request: Request) -> Response:
        """Handle `/api/sql`."""
        body = await _body(request, SqlRequest)
        parameters = [(name, str(value)) for name, value in msgspec.structs.asdict(body).items()]
        return await self._in_worker(request, "sql", parameters)

    async def check(self, request: Request) -> Response:
        """Handle `/api/check`: start a check."""
        body = await _body(request, CheckRequest)
        return _json_response(await self._thread(partial(self._api.check, body.run)))

    async def blob(self, request: Request) -> Response:
        """Handle `/api/blob`: the bytes of a message's part."""
        parameters = RequestParameters(request.query_params.multi_items())
        data = await self._thread(partial(self._api.blob, parameters))
        image_type = detect_image_type(data)
        headers = None if image_type else {"content-disposition": "attachment"}
        return Response(data, 200, headers, image_type or "application/octet-stream")

    async def page(self, request: Request) -> Response:
        """Serve a file of the page, from a fixed list of names."""
        path = (await self._file(_page_files)).get(request.path_params["name"] or "index.html")
        if path is None:
            raise UnknownNameError("There is no such page.")
        data = await self._file(path.read_bytes)
        return Response(data, 200, None, _MEDIA_TYPES.get(path.suffix, "application/octet-stream"))

    async def _thread(self, work: Callable[[], Body]) -> Body:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    async def _file(self, work: Callable[[], Body]) -> Body:
        """Read a file of the page; it does not wait for queries."""
        return await anyio.to_thread.run_sync(work, limiter=self._files)

    async def _in_worker(self, request: Request, question: str, parameters: list[tuple[str, str]]) -> Response:
        """Answer a question with SQL that a user wrote."""
        run = next((value for name, value in parameters if name == "run"), "")
        answer = await self._workers.run(run, question, tuple(parameters), partial(_disconnected, request))
        return _refused(answer) if isinstance(answer, HttpError) else _json_response(answer)


async def _disconnected(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, kind: type[Body]) -> Body:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        raise HTTPException(415, f"Expected JSON, got {media_type[:100] or 'nothing'}.")
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected a valid body: {error}.") from error


def _page_files() -> dict[str, Path]:
    """The files of the page by name; no other file is served."""
    folder = page_folder()
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _json_response(answer: bytes) -> Response:
    return Response(answer, 200, None, _JSON)


def _with_http_errors(handler: Handler) -> Handler:
    """The handler, with an error response for any exception."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException:
            raise  # has a response of its own
        except Exception as error:  # noqa: BLE001 - the server goes on after any error of a request
            return _refused(http_error_of(error))

    return handle


async def _http_exception(_: Request, error: Exception) -> Response:
    """The response to a request that has no route or is too large."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _refused(HttpError(status, "HTTPException", str(getattr(error, "detail", "Not found."))))


def _refused(error: HttpError) -> Response:
    return Response(error.body, error.status, None, _JSON)


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # asyncio sets TCP_NODELAY only on sockets that name their protocol.
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"Expected an address of this machine to listen at, got {host!r}: {error.strerror}."
        ) from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}. Choose another with --port; 0 is any."
        ) from error
    return listening


def make_server(
    folder: str | Path, listening: socket.socket, *, token: str, host: str, on_ready: Callable[[], None] | None = None
) -> "ViewerServer":
    """Make a server over the runs below a folder, for a socket that listens at `host`."""
    check_token(token)
    port = listening.getsockname()[1]
    names = host_names(host, port) + ([f"{socket.gethostname()}:{port}"] if host in _ANY else [])
    app = make_app(folder, token=token, port=port, hosts=names, any_address=host in _ANY)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="on", timeout_graceful_shutdown=1,
        ws="none", proxy_headers=False,
    )  # fmt: skip
    return ViewerServer(config, on_ready)


_GC_THRESHOLD = 20_000
"""Reading lines makes thousands of objects that do not refer to each other: searching all for cycles takes long."""


def serve(
    folder: str | Path, listening: socket.socket, *, token: str, host: str, on_ready: Callable[[], None] | None = None
) -> None:
    """Serve until the process gets SIGINT or SIGTERM."""
    gc.set_threshold(_GC_THRESHOLD)
    make_server(folder, listening, token=token, host=host, on_ready=on_ready).run(sockets=[listening])


class ViewerServer(uvicorn.Server):
    """A uvicorn server that calls `on_ready`, and that ends normally after a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests."""
        await super().startup(sockets)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals without raising them again afterwards, as uvicorn does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self._exit_soon) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _exit_soon(self, number: int, frame: FrameType | None) -> None:
        """Stop serving, and end the process even if the thread of a request does not end."""
        self.handle_exit(number, frame)
        timer = threading.Timer(_EXIT_SECONDS, os._exit, (0,))
        timer.daemon = True
        timer.start()
