"""Shows questions to a person one at a time and reads lines. Waiting for a line can be cancelled."""

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


class QuestionCancelled(Exception):  # noqa: N818 - nothing went wrong
    """The question was cancelled: its answer is no longer needed."""


class HumanQuit(BaseException):
    """The person has quit. It ends every event loop like Ctrl-C and reaches the code that started the play.

    No failure of a rollout, so nothing that catches errors keeps it; no `KeyboardInterrupt`, which would leave the loop
    at once, before what was played is recorded.
    """

    def __init__(self) -> None:
        super().__init__("the person who plays has left")


class TerminalInput:
    """One person's input and output. Questions are shown one after the other, from any task and event loop.

    Lines are read in a thread, straight from the file: a thread that waits inside Python's own standard input can be
    neither stopped nor left behind when the process ends.
    """

    def __init__(self, source: TextIO | None = None, output: TextIO | None = None, patience: float = 0.3) -> None:
        """Use standard input and the current standard error by default.

        For so many seconds of `patience` after an answer, only what the same rollout asks next is put: a person who
        plays several games would else be led from one to the other at every turn.
        """
        self._source = source
        self._output = output
        self._patience = patience
        self._lines: _Lines | None = None
        self._waiting: list[_Question] = []
        self._change = threading.Condition()
        self._is_served = False
        """Whether the thread that shows questions runs. It ends when the queue is empty."""
        self.quit_count = 0
        """How many times the person has quit."""
        self._last: str | None = None
        self._last_answer = 0.0

    @property
    def output(self) -> TextIO:
        """The stream that questions are written to."""
        return sys.stderr if self._output is None else self._output

    async def ask(
        self, whose: str, hold: Callable[[ReadLine], HumanAnswer], departures: int | None = None
    ) -> HumanAnswer:
        """Call `hold` when it is this question's turn, with a function that reads a line (None at the end).

        Whoever knows of so many `departures` only has nobody to talk with after another.
        """
        question = _Question(whose, hold)
        with self._change:
            if departures is not None and self.quit_count > departures:
                raise HumanQuit
            self._waiting.append(question)
            self._change.notify()
            if not self._is_served:
                self._is_served = True
                threading.Thread(target=self._serve, name="rolltrace-desk", daemon=True).start()
        try:
            answer: HumanAnswer = await asyncio.wrap_future(question.answer)
        except asyncio.CancelledError:
            with self._change:
                question.called_off.set()
                self._change.notify()
                if self._lines is not None:
                    self._lines.wake()
            raise
        return answer

    def quit(self) -> None:
        """Raise `HumanQuit` in all waiting questions, and in later ones whose `departures` are older."""
        with self._change:
            self.quit_count += 1
            waiting, self._waiting = self._waiting, []
        for question in waiting:
            if question.answer.set_running_or_notify_cancel():
                question.answer.set_exception(HumanQuit())

    def close(self) -> None:
        """Close the wake-up pipe. It is opened again when needed."""
        with self._change:
            if self._lines is not None and not self._is_served:
                self._lines.close()
                self._lines = None

    def _serve(self) -> None:
        while (question := self._next()) is not None:
            if not question.answer.set_running_or_notify_cancel():
                continue
            try:
                question.answer.set_result(question.hold(functools.partial(self._read_line, question)))
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                question.answer.set_exception(error)
            self._last, self._last_answer = question.whose, time.monotonic()

    def _next(self) -> "_Question | None":
        """The next question; None if the queue is empty and the thread can end."""
        with self._change:
            while True:
                self._waiting = [question for question in self._waiting if not question.called_off.is_set()]
                if not self._waiting:
                    self._is_served = False
                    return None
                going_on = [question for question in self._waiting if question.whose == self._last]
                left = self._last_answer + self._patience - time.monotonic()
                if going_on or self._last is None or left <= 0:
                    question = (going_on or self._waiting)[0]
                    self._waiting.remove(question)
                    return question
                self._change.wait(left)

    def _read_line(self, question: "_Question") -> str | None:
        with self._change:
            if self._lines is None:
                self._lines = _Lines(sys.stdin if self._source is None else self._source)
        return self._lines.read(question.called_off)


class _Question:
    """One question and its result."""

    def __init__(self, whose: str, hold: Callable[[ReadLine], Any]) -> None:
        self.whose = whose
        self.hold = hold
        self.answer: Future[Any] = Future()
        self.called_off = threading.Event()


class _Lines:
    """Lines of a stream. Input beyond the current line is kept for the next question."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._wake_read, self._wake_write = os.pipe()
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder(getattr(stream, "encoding", None) or "utf-8")("replace")
        try:
            self._file: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory, which never blocks
            self._file = None

    def read(self, called_off: threading.Event) -> str | None:
        """The next line without its line feed; None at the end of the input."""
        if self._file is None:
            if called_off.is_set():
                raise QuestionCancelled
            line = self._stream.readline()
            return line.rstrip("\r\n") if line else None
        while "\n" not in self._rest:
            self._wait(self._file, called_off)
            chunk = b""
            with contextlib.suppress(OSError):  # a terminal that was closed
                chunk = os.read(self._file, _CHUNK)
            self._rest += self._decoder.decode(chunk, final=not chunk)
            if not chunk:
                rest, self._rest = self._rest, ""
                self._decoder.reset()
                return rest or None
        line, _, self._rest = self._rest.partition("\n")
        return line.rstrip("\r")

    def wake(self) -> None:
        """Wake the reader so that it checks for cancellation."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        """Close the wake-up pipe."""
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wait(self, file: int, called_off: threading.Event) -> None:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not called_off.is_set():
            ready = {number for number, _ in poll.poll()}
            if self._wake_read in ready:
                os.read(self._wake_read, _CHUNK)  # it may belong to an earlier question
            elif file in ready:
                return
        raise QuestionCancelled
