"""The turns that requests to the proxy ask for: each collects its answer while it is forwarded, then records it."""

import logging
import time
from collections.abc import Mapping
from typing import Any

from rolltrace.bridges.api_calls import ApiRequest, EventStream, decompress, read_answer, record_answer, split_choices
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import failure_of
from rolltrace.trace.ids import new_id
from rolltrace.trace.stop_reasons import Layer

_log = logging.getLogger("rolltrace")
_MAX_RECORDED = 64 << 20
"""How many bytes of an answer are recorded."""


class NamedRollout:
    """A rollout of several requests."""

    def __init__(self, recorder: RolloutRecorder) -> None:
        self.recorder = recorder
        self.in_flight = 0
        self.last_used = time.monotonic()


class Turn:
    """A request that is being answered; by itself, one that is not recorded."""

    def begin_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer begins."""

    def add(self, chunk: bytes) -> None:
        """A piece of the answer."""

    def end(self, error: BaseException | None = None) -> None:
        """The answer is complete, or broke off because of an error."""


class _RecordedTurn(Turn):
    """Collects an answer, and records it at its end. Recording never stops the request."""

    def __init__(self, request: ApiRequest) -> None:
        self.request = request
        self._started = time.perf_counter()
        self._chunks: list[bytes] = []
        self._size = 0
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._events: EventStream | None = None
        """Reads a stream while it comes: to read all of it at its end would make other requests wait."""

    def begin_answer(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers
        if status < 400 and "event-stream" in headers.get("Content-Type", "") and "Content-Encoding" not in headers:
            self._events = EventStream()

    def add(self, chunk: bytes) -> None:
        if self._size < _MAX_RECORDED:
            self._chunks.append(chunk)
            try:
                if self._events is not None:
                    self._events.add(chunk)
            except Exception:  # noqa: BLE001 - as above; the end reads everything again, and says what is wrong
                self._events = None
        self._size += len(chunk)

    def end(self, error: BaseException | None = None) -> None:
        try:
            self._end(error)
        except Exception as failure:  # noqa: BLE001 - as above
            _log.warning("Could not record a request: %s: %s.", type(failure).__name__, failure)

    def _end(self, error: BaseException | None) -> None:
        seconds = time.perf_counter() - self._started
        if self._status >= 400:
            message = self._text[:2_000].decode(errors="replace")
            self._record(None, seconds, {"type": f"HTTP {self._status}", "message": message, "layer": "policy"})
        elif error is not None and not self._chunks:
            self._record(None, seconds, error)
        else:
            is_partial = error is not None or self._size > _MAX_RECORDED
            try:
                answer = self._answer()
            except Exception as failure:  # noqa: BLE001 - the server sent what no API has
                self._record(None, seconds, failure_of(Layer.POLICY, failure))
            else:
                self._record(answer, seconds, error, is_partial=is_partial)

    def _answer(self) -> Any:
        if self._events is not None:
            return self._events.answer
        return read_answer(self._text, self._headers.get("Content-Type", ""))

    @property
    def _text(self) -> bytes:
        return decompress(b"".join(self._chunks), self._headers.get("Content-Encoding", ""), _MAX_RECORDED)

    def _record(self, answer: Any, seconds: float, error: Any = None, *, is_partial: bool = False) -> None:
        """Record the answer; it is None if only an error came."""
        raise NotImplementedError


class NamedTurn(_RecordedTurn):
    """A turn of a named rollout."""

    def __init__(self, rollout: NamedRollout, request: ApiRequest) -> None:
        super().__init__(request)
        self._rollout = rollout
        rollout.in_flight += 1
        rollout.recorder.send(request.prompt)

    def _record(self, answer: Any, seconds: float, error: Any = None, *, is_partial: bool = False) -> None:
        self._rollout.in_flight -= 1
        self._rollout.last_used = time.monotonic()
        if answer is None:
            self._rollout.recorder.call(self.request.prompt, role="policy", error=error, seconds=seconds)
        else:
            extra = {"partial": True} if is_partial else {}
            record_answer(self._rollout.recorder, self.request, answer, seconds, **extra)


class SingleTurn(_RecordedTurn):
    """A request that is a rollout of its own; of several choices, each is a member of one group."""

    def __init__(self, run: RunWriter, request: ApiRequest, fields: dict[str, Any]) -> None:
        super().__init__(request)
        group = new_id()
        self._run = run
        self._fields = {"env": "proxy", "task": group, "group": group, "started_at": utc_now(), **fields}
        self._first = self._begin(0)

    def _begin(self, index: int) -> RolloutRecorder:
        recorder = self._run.rollout(**{"index": index, **self._fields})
        recorder.send(self.request.prompt)
        return recorder

    def _record(self, answer: Any, seconds: float, error: Any = None, *, is_partial: bool = False) -> None:
        extra = {"partial": True} if is_partial else {}
        for index, choice in enumerate(split_choices(answer)):
            recorder = self._begin(index) if index else self._first
            if choice is not None:
                record_answer(recorder, self.request, choice, seconds, **extra)
            recorder.end(error=error)
