"""Asks a person at a terminal one question at a time; reading a line can be cancelled."""

import asyncio
import codecs
import contextlib
import functools
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TextIO, TypeVar

HumanAnswer = TypeVar("HumanAnswer")
ReadLine = Callable[[], str | None]

_CHUNK = 65536
SAME_ROLLOUT_SECONDS = 0.3
"""For how long after an answer only questions of the same rollout are shown, so that a person who plays several games
does not have to switch between them at every turn."""


class QuestionCancelled(Exception):  # noqa: N818 - nothing went wrong
    """The question was cancelled, so its answer is not needed."""


class HumanQuit(BaseException):
    """The person has quit. Like Ctrl-C, it ends every event loop and reaches the code that started the play.

    It is not an `Exception`, so that code that catches failures does not catch it, and not a `KeyboardInterrupt`,
    which would end the loop before the rollouts are recorded.
    """

    def __init__(self) -> None:
        super().__init__("the person who plays has quit")


class TerminalInput:
    """One person's input and output. Tasks of any event loop may ask; questions are shown one after the other.

    A thread reads lines from the file descriptor: a thread that waits in `sys.stdin` itself cannot be stopped, and
    blocks the exit of the process.
    """

    def __init__(self, source: TextIO | None = None, output: TextIO | None = None) -> None:
        """Use standard input and the current standard error by default."""
        self._source = source
        self._output = output
        self._lines: _LineReader | None = None
        self._queue: list[_Question] = []
        self._change = threading.Condition()
        self._thread_runs = False
        """Whether the thread that shows questions runs. It ends when the queue is empty."""
        self.quit_count = 0
        """How many times the person has quit."""
        self._last_rollout: str | None = None
        self._last_answer_at = 0.0

    @property
    def output(self) -> TextIO:
        """The stream that questions are written to."""
        return sys.stderr if self._output is None else self._output

    async def ask(
        self, rollout: str, converse: Callable[[ReadLine], HumanAnswer], quit_count: int | None = None
    ) -> HumanAnswer:
        """Call `converse` when it is this question's turn, with a function that reads a line (None at the end).

        Raises `HumanQuit` if the person has quit since `quit_count` was read.
        """
        question = _Question(rollout, converse)
        with self._change:
            if quit_count is not None and self.quit_count > quit_count:
                raise HumanQuit
            self._queue.append(question)
            self._change.notify()
            if not self._thread_runs:
                self._thread_runs = True
                threading.Thread(target=self._show_questions, name="rolltrace-terminal", daemon=True).start()
        try:
            answer: HumanAnswer = await asyncio.wrap_future(question.answer)
        except asyncio.CancelledError:
            with self._change:
                question.cancelled.set()
                self._change.notify()
                if self._lines is not None:
                    self._lines.wake()
            raise
        return answer

    def quit(self) -> None:
        """Raise `HumanQuit` in all waiting questions, and in later ones with an older `quit_count`."""
        with self._change:
            self.quit_count += 1
            waiting, self._queue = self._queue, []
        for question in waiting:
            if question.answer.set_running_or_notify_cancel():
                question.answer.set_exception(HumanQuit())

    def close(self) -> None:
        """Close the wake-up pipe. It is opened again when needed."""
        with self._change:
            if self._lines is not None and not self._thread_runs:
                self._lines.close()
                self._lines = None

    def _show_questions(self) -> None:
        while (question := self._next()) is not None:
            if not question.answer.set_running_or_notify_cancel():
                continue
            try:
                question.answer.set_result(question.converse(functools.partial(self._read_line, question)))
            except BaseException as error:  # noqa: BLE001 - `ask` raises it
                question.answer.set_exception(error)
            self._last_rollout, self._last_answer_at = question.rollout, time.monotonic()

    def _next(self) -> "_Question | None":
        """The next question; None if the queue is empty and the thread can end."""
        with self._change:
            while True:
                self._queue = [question for question in self._queue if not question.cancelled.is_set()]
                if not self._queue:
                    self._thread_runs = False
                    return None
                same_rollout = [question for question in self._queue if question.rollout == self._last_rollout]
                remaining = self._last_answer_at + SAME_ROLLOUT_SECONDS - time.monotonic()
                if same_rollout or self._last_rollout is None or remaining <= 0:
                    question = (same_rollout or self._queue)[0]
                    self._queue.remove(question)
                    return question
                self._change.wait(remaining)

    def _read_line(self, question: "_Question") -> str | None:
        with self._change:
            if self._lines is None:
                self._lines = _LineReader(sys.stdin if self._source is None else self._source)
        return self._lines.read(question.cancelled)


class _Question:
    """One question and its result."""

    def __init__(self, rollout: str, converse: Callable[[ReadLine], Any]) -> None:
        self.rollout = rollout
        self.converse = converse
        self.answer: Future[Any] = Future()
        self.cancelled = threading.Event()


class _LineReader:
    """Reads lines of a stream. Input beyond the current line is kept for the next question."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._wake_read, self._wake_write = os.pipe()
        self._buffer = ""
        self._decoder = codecs.getincrementaldecoder(getattr(stream, "encoding", None) or "utf-8")("replace")
        try:
            self._file: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory, which never blocks
            self._file = None

    def read(self, cancelled: threading.Event) -> str | None:
        """The next line without its line feed; None at the end of the input."""
        if self._file is None:
            if cancelled.is_set():
                raise QuestionCancelled
            line = self._stream.readline()
            return line.rstrip("\r\n") if line else None
        while "\n" not in self._buffer:
            self._wait(self._file, cancelled)
            chunk = b""
            with contextlib.suppress(OSError):  # a terminal that was closed
                chunk = os.read(self._file, _CHUNK)
            self._buffer += self._decoder.decode(chunk, final=not chunk)
            if not chunk:
                line, self._buffer = self._buffer, ""
                self._decoder.reset()
                return line or None
        line, _, self._buffer = self._buffer.partition("\n")
        return line.rstrip("\r")

    def wake(self) -> None:
        """Wake the reader so that it checks for cancellation."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Close the wake-up pipe."""
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wait(self, file: int, cancelled: threading.Event) -> None:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not cancelled.is_set():
            ready = {number for number, _ in poll.poll()}
            if self._wake_read in ready:
                os.read(self._wake_read, _CHUNK)  # it may belong to an earlier question
            elif file in ready:
                return
        raise QuestionCancelled
