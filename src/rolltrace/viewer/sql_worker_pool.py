"""The processes that run what people write: a few at once, each ended when it takes too long or nobody waits."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.temp_folders import make_folder, remove_folder
from rolltrace.viewer.http_errors import OUT_OF_MEMORY, HttpError
from rolltrace.viewer.sql_worker import LENGTH, SqlTask
from rolltrace.viewer.user_sql import SQL_TIMEOUT_SECONDS

MOST = 2
"""How many statements are run at once."""
QUEUE_TIMEOUT_SECONDS = 15.0
"""How many seconds one waits for its turn."""
_LATE = 5.0
"""How many seconds after its time a statement that does not heed it is ended with its process."""

SERVER_BUSY = HttpError(429, "Busy", "Other statements are being run: ask again in a moment.")
_LONG = HttpError(
    400, "QueryTimeoutError", f"The statement took longer than {SQL_TIMEOUT_SECONDS:g} seconds, and was ended."
)


class SqlWorkerPool:
    """The processes of one server; made inside its event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turns = asyncio.Semaphore(MOST)
        self._idle: list[tuple[str, asyncio.subprocess.Process]] = []
        self._all: dict[asyncio.subprocess.Process, str] = {}
        """Each with a folder for its files, which one that is ended leaves behind."""

    async def run(self, run: str, task: SqlTask, gone: Callable[[], Awaitable[None]]) -> bytes | HttpError:
        """The answer to a task about a run; `gone` returns when nobody waits for it any more."""
        leaving = asyncio.ensure_future(gone())
        try:
            await asyncio.wait_for(self._turns.acquire(), QUEUE_TIMEOUT_SECONDS)
        except TimeoutError:
            leaving.cancel()
            return SERVER_BUSY
        try:
            return SERVER_BUSY if leaving.done() else await self._answer(run, task, leaving)
        finally:
            leaving.cancel()
            self._turns.release()

    async def close(self) -> None:
        """End all processes."""
        for process in list(self._all):
            await self._end(process)

    async def _answer(self, run: str, task: SqlTask, leaving: "asyncio.Future[None]") -> bytes | HttpError:
        """Let a process answer; one that has not when its time is over, or nobody waits, is ended."""
        process = await self._take(run)
        answering = asyncio.ensure_future(_exchange(process, task))
        try:
            either: set[asyncio.Future[Any]] = {answering, leaving}
            await asyncio.wait(either, timeout=SQL_TIMEOUT_SECONDS + _LATE, return_when=asyncio.FIRST_COMPLETED)
            answer: bytes | HttpError = _LONG
            if answering.done():
                answer = OUT_OF_MEMORY if answering.exception() is not None else answering.result()
            if answer in (_LONG, OUT_OF_MEMORY):  # what is left of it may not be enough for the next
                await self._end(process)
            else:
                self._idle.append((run, process))
            return answer
        except asyncio.CancelledError:
            await self._end(process)
            raise
        finally:
            answering.cancel()
            await asyncio.wait({answering})

    async def _take(self, run: str) -> asyncio.subprocess.Process:
        """A process, if possible one that was asked about the same run before."""
        self._idle.sort(key=lambda one: one[0] == run)
        while self._idle:
            process = self._idle.pop()[1]
            if process.returncode is None:
                return process
            await self._end(process)
        private = str(make_folder())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "rolltrace.viewer.sql_worker", str(self._folder),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
            env={**os.environ, "TMPDIR": private},
        )  # fmt: skip
        self._all[process] = private
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        private = self._all.pop(process, None)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if private is not None:
            await asyncio.to_thread(remove_folder, Path(private))
        if process.stdin is not None:
            process.stdin.close()


async def _exchange(process: asyncio.subprocess.Process, task: SqlTask) -> bytes | HttpError:
    """Send a task and read its answer; a process that ends before is an error."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - they are pipes
    body = msgspec.json.encode(task)
    process.stdin.write(LENGTH.pack(len(body)) + body)
    await process.stdin.drain()
    head = await process.stdout.readexactly(LENGTH.size)
    answer = await process.stdout.readexactly(LENGTH.unpack(head)[0])
    return answer[1:] if answer[:1] == b"+" else msgspec.json.decode(answer[1:], type=HttpError)
