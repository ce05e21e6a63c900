"""The web server: the page and the answers that it asks for, by HTTP."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rolltrace.viewer.access import AuthMiddleware
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.http_errors import HttpError, http_error_of
from rolltrace.viewer.media_types import detect_media_type
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.page_files import page_folder
from rolltrace.viewer.sql_worker_pool import SqlWorkerPool

MAX_BODY = 1_100_000
THREADS = 8
"""How many questions are answered at once."""
_JSON = "application/json"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2",
}  # fmt: skip

Body = TypeVar("Body")


class CheckedSql(msgspec.Struct):
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

    `hosts` are what a browser may call it, each with the port; with `any_address`, every address, too.
    """
    library = OpenRuns(folder, prepares=True)
    answers = HttpHandlers(library)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with answers.ready():
            yield

    return Starlette(
        routes=[
            Route("/api/sql", answers.sql, methods=["POST"]),
            Route("/api/check", answers.check, methods=["POST"]),
            Route("/api/blob", answers.blob, methods=["GET"]),
            Route("/api/{question}", answers.get, methods=["GET"]),
            Route("/{name:path}", answers.page, methods=["GET"]),
        ],
        middleware=[Middleware(AuthMiddleware, token=token, hosts=list(hosts), port=port, any_address=any_address)],
        exception_handlers={HTTPException: _http_exception},
        lifespan=lifespan,
        max_body_size=MAX_BODY,
    )


class HttpHandlers:
    """Answers over HTTP. What takes a while is done in threads, what people write in processes of their own."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._questions = Api(library)

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        """Be inside an event loop; what is being done when that ends is given up."""
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._files = anyio.CapacityLimiter(THREADS)
        self._workers = SqlWorkerPool(self._library.folder.path)
        try:
            yield
        finally:
            self._library.close()
            self._questions.close()
            await self._workers.close()

    async def get(self, request: Request) -> Response:
        """Answer one of the questions."""
        question = request.path_params["question"]
        ask = self._questions.handlers.get(question)
        if ask is None:
            return _refused(HttpError(404, "UnknownNameError", "There is no such question."))
        asked = RequestParameters(request.query_params.multi_items())
        if asked.is_written:
            return await self._written(request, question, request.query_params.multi_items())
        return await _answered(lambda: self._thread(partial(ask, asked)))

    async def sql(self, request: Request) -> Response:
        """Answer what somebody wrote."""
        body = await _body(request, CheckedSql)
        if not isinstance(body, CheckedSql):
            return body
        parameters = [(name, str(value)) for name, value in msgspec.structs.asdict(body).items()]
        return await self._written(request, "sql", parameters)

    async def check(self, request: Request) -> Response:
        """Begin a check."""
        body = await _body(request, CheckRequest)
        if not isinstance(body, CheckRequest):
            return body
        run = body.run
        return await _answered(lambda: self._thread(lambda: self._questions.check(run)))

    async def blob(self, request: Request) -> Response:
        """Bytes that a message carries."""
        asked = RequestParameters(request.query_params.multi_items())

        async def find() -> Response:
            data = await self._thread(lambda: self._questions.blob(asked))
            shown = detect_media_type(data)
            headers = {"content-disposition": "attachment"} if shown.is_attachment else None
            return Response(data, 200, headers, shown.media_type)

        return await _with_http_errors(find)

    async def page(self, request: Request) -> Response:
        """A file of the page, by its name in a fixed list."""

        async def find() -> Response:
            path = (await self._file(_page_files)).get(request.path_params["name"] or "index.html")
            if path is None:
                return _refused(HttpError(404, "UnknownNameError", "There is no such page."))
            data = await self._file(path.read_bytes)
            return Response(data, 200, None, _MEDIA_TYPES.get(path.suffix, "application/octet-stream"))

        return await _with_http_errors(find)

    async def _thread(self, work: Callable[[], Body]) -> Body:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    async def _file(self, work: Callable[[], Body]) -> Body:
        """Read a file of the page, which does not wait for questions."""
        return await anyio.to_thread.run_sync(work, limiter=self._files)

    async def _written(self, request: Request, question: str, parameters: list[tuple[str, str]]) -> Response:
        async def respond() -> Response:
            run = next((value for name, value in parameters if name == "run"), "")
            answer = await self._workers.run(run, question, tuple(parameters), partial(_disconnected, request))
            return _refused(answer) if isinstance(answer, HttpError) else Response(answer, 200, None, _JSON)

        return await _with_http_errors(respond)


async def _disconnected(request: Request) -> None:
    """Return when whoever asked no longer waits."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request, kind: type[Body]) -> Body | Response:
    """What was posted, or why it is refused."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _JSON:
        return _refused(HttpError(415, "InputError", f"Expected JSON, got {media_type[:100] or 'nothing'}."))
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except (ValueError, RecursionError) as error:
        return _refused(HttpError(400, "InputError", f"Expected another body: {error}."))


def _page_files() -> dict[str, Path]:
    """By name, the files of the page: no other can be asked for."""
    folder = page_folder()
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


async def _answered(ask: Callable[[], Awaitable[bytes]]) -> Response:
    async def answer() -> Response:
        return Response(await ask(), 200, None, _JSON)

    return await _with_http_errors(answer)


async def _with_http_errors(answer: Callable[[], Awaitable[Response]]) -> Response:
    """The answer, or what went wrong; the server lives on whatever that is."""
    try:
        return await answer()
    except Exception as error:  # noqa: BLE001 - as above
        return _refused(http_error_of(error))


async def _http_exception(_: Request, error: Exception) -> Response:
    """What has no route, or is too large."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _refused(HttpError(status, "HTTPException", str(getattr(error, "detail", "Not found."))))


def _refused(refusal: HttpError) -> Response:
    return Response(refusal.body, refusal.status, None, _JSON)
