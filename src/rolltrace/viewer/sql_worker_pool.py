"""Worker processes for SQL of users: each is killed when its statement times out or its client disconnects."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import WorkerError
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from rolltrace.store.cache_key import ENVIRONMENT_KEY
from rolltrace.store.object_address import store_variables
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.http_errors import OUT_OF_MEMORY, HttpError, http_error_of
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.user_sql import SQL_TIMEOUT_SECONDS

MAX_STATEMENTS = 2
"""How many statements run at once."""
QUEUE_TIMEOUT_SECONDS = 15.0
_GRACE_SECONDS = 5.0
"""How long after its time-out a statement that ignores it is killed with its process."""
_SETTINGS = ProcessSettings(
    memory_bytes=3 * 2**29,
    reply_bytes=128 * 2**20,
    private_temp_folder=True,
    inherit_stderr=True,
)
_OK, _ERROR = b"+", b"-"

SERVER_BUSY = HttpError(429, "Busy", "Other statements are running: try again in a moment.")
_TIMED_OUT = HttpError(
    400, "QueryTimeoutError", f"The statement took longer than {SQL_TIMEOUT_SECONDS:g} seconds, and was stopped."
)

Parameters = tuple[tuple[str, str], ...]


class SqlWorkerPool:
    """The worker processes of one server; made inside its event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turns = asyncio.Semaphore(MAX_STATEMENTS)
        settings = replace(_SETTINGS, inherited=(ENVIRONMENT_KEY, *store_variables(folder)))
        self._pool = ProcessPool(settings, max_processes=MAX_STATEMENTS)

    async def run(
        self, run: str, question: str, parameters: Parameters, disconnected: Callable[[], Awaitable[None]]
    ) -> bytes | HttpError:
        """The answer to a question about a run; `disconnected` returns when the client has gone."""
        disconnect = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait_for(self._turns.acquire(), QUEUE_TIMEOUT_SECONDS)
        except TimeoutError:
            disconnect.cancel()
            return SERVER_BUSY
        try:
            return SERVER_BUSY if disconnect.done() else await self._answer(run, question, parameters, disconnect)
        finally:
            disconnect.cancel()
            self._turns.release()

    async def close(self) -> None:
        """Kill all processes."""
        await asyncio.to_thread(self._pool.kill)

    async def _answer(
        self, run: str, question: str, parameters: Parameters, disconnect: "asyncio.Future[None]"
    ) -> bytes | HttpError:
        call = self._pool.run(
            answer_question,
            str(self._folder),
            question,
            parameters,
            wall_seconds=SQL_TIMEOUT_SECONDS + _GRACE_SECONDS,
            affinity=run,  # the process has the run open
        )
        answering = asyncio.ensure_future(call)
        either: set[asyncio.Future[Any]] = {answering, disconnect}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return _read_answer(answering.result()) if answering.done() else SERVER_BUSY
        except WorkerError as error:
            return _TIMED_OUT if error.timed_out else OUT_OF_MEMORY
        finally:
            answering.cancel()  # kills the process if the client has left
            await asyncio.wait({answering})


def answer_question(folder: str, question: str, parameters: Parameters) -> bytes:
    """In a worker process: the answer, or the error for the client."""
    try:
        return _OK + _api(folder).handle(question, RequestParameters(parameters))
    except MemoryError:
        raise  # after which the process is not used again
    except Exception as error:  # noqa: BLE001 - the client gets a response in any case
        response = http_error_of(error)
        if response == OUT_OF_MEMORY:
            raise MemoryError from None
        return _ERROR + msgspec.json.encode(response)


@functools.cache
def _api(folder: str) -> Api:
    return Api(OpenRuns(folder, max_weight=1))


def _read_answer(answer: bytes) -> bytes | HttpError:
    return answer[1:] if answer[:1] == _OK else msgspec.json.decode(answer[1:], type=HttpError)
