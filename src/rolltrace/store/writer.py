"""Writes rollouts and scores to a run. Any thread may call it; a background thread writes to disk."""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from rolltrace.errors import InputError
from rolltrace.store.disk_thread import DiskThread, call_before_exit, forget_threads_after_fork
from rolltrace.store.disk_writer import DiskWriter
from rolltrace.store.layout import ROLLOUTS, SCORES, RunInfo
from rolltrace.store.ledger import Ledger, LedgerCounter
from rolltrace.store.object_address import is_address
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.recorder_inputs import RolloutFields, as_score_value, is_group_key
from rolltrace.store.recording import Level, Recording
from rolltrace.store.redactor import Redactor
from rolltrace.store.sigterm import close_on_sigterm, restore_default_after_fork, stop_closing_on_sigterm
from rolltrace.store.upload import UploadingDiskWriter
from rolltrace.store.write_queue import QueuedLine, WriteQueue
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import as_text, describe
from rolltrace.trace.ids import new_id
from rolltrace.trace.quote import TextSource
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.sink import OpenRollouts


class RunObserver(Protocol):
    """Is told what a writer records. Its methods are called from any thread, and must neither block nor raise."""

    def rollout_began(self, header: Header) -> None:
        """A rollout has begun."""
        ...

    def rollout_ended(self, header: Header) -> None:
        """A rollout has ended; its line may not be written yet."""
        ...

    def run_closed(self, timeout: float | None) -> None:
        """Everything is written and the writer is closed. This may block for `timeout` seconds."""
        ...


class RunWriter:
    """Records rollouts and scores, and counts what could not be recorded.

    Any thread may call any method, and only `flush` and `close` wait on the disk. Nothing that goes wrong raises into
    the caller: it is counted by reason, and logged once for each reason. A forked process gets a session and files of
    its own.
    """

    def __init__(
        self,
        path: Path,
        info: RunInfo,
        recording: Recording,
        continues: tuple[str, ...] | None = None,
        job: str = "",
        handle_sigterm: bool = True,
    ) -> None:
        self.path = path
        """The path of the run, absolute or relative."""
        self._absolute_path = path.absolute()  # valid after a change of directory
        self.info = info
        self.recording = recording
        self.records = recording.level is not Level.OFF
        """Whether anything is recorded at all."""
        self.run = info.id
        """The id of the run."""
        self.continues = continues
        """The sessions that this one continues, and supersedes; None: not stated."""
        self.job = job
        """The session that this writer was forked or unpickled from, or empty."""
        self.is_unpickled = False
        """Whether it was unpickled; then all tasks of this process share it."""
        self._redactor = Redactor(recording, self._count_lost_text)
        self.observers: list[RunObserver] = []
        """Told what this process records; a forked process starts without them."""
        self._begin_session()
        _open_writers.add(self)
        if self.records and not job:  # in another process the session starts when something is recorded
            self._disk_thread.start()  # so that readers see that the session is alive
        self._handles_sigterm = handle_sigterm
        self._awaits_sigterm = False  # whether to handle SIGTERM once this process records something
        if self.records and handle_sigterm:
            close_on_sigterm(self)

    def begin_session_after_fork(self) -> None:
        """Start a new session after a fork."""
        self._finalizer.detach()
        was_closed = self._queue.is_closed
        if not was_closed:
            self._disk_writer.close_inherited()
        self.job = self.job or self.session
        self.observers = []
        self._begin_session()
        self._awaits_sigterm = self.records and self._handles_sigterm and not was_closed
        if was_closed:
            self._disk_thread.close_unused()

    def _begin_session(self) -> None:
        self.session = new_id()
        """The id of this session; its files are named after it."""
        self._counter = LedgerCounter(self.continues, self.job)
        self._reported_losses = threading.local()
        # Weak, but without callbacks: an exception that a signal handler raises in one is swallowed.
        self._open: dict[weakref.ref[OpenRollouts], None] = {}
        kind = UploadingDiskWriter if is_address(self._absolute_path) else DiskWriter
        self._disk_writer: DiskWriter = kind(
            self._absolute_path, self.run, self.session, self._counter, self.recording.segment_bytes
        )
        self._queue = WriteQueue(self.recording.queue_bytes, self.recording.queue_seconds)
        self._disk_thread = DiskThread(self._queue, self._disk_writer, self._counter)
        # When the writer is deleted, its thread ends.
        self._finalizer = weakref.finalize(self, self._queue.close)
        self._finalizer.atexit = False

    # For runners

    def register_open(self, rollouts: OpenRollouts) -> None:
        """Record these rollouts as cancelled on SIGTERM. They are referenced weakly."""
        for reference in list(self._open):
            if reference() is None:
                self._open.pop(reference, None)
        if self.records:
            self._open[weakref.ref(rollouts)] = None

    def begin(self, header: Header) -> RolloutBuilder:
        """Return the builder of a rollout that starts now. It counts as in flight until its line is written."""
        transform = self._redactor.transform_for(header) if self.records else None
        rollout_builder = RolloutBuilder(header, keeps_tokens=bool(self.recording.tokens), transform=transform)
        if self.records:
            self._start()
            rollout_builder.ledger_key = (self.session, self._counter.start_rollout(header.id))
            for observer in self.observers:
                observer.rollout_began(header)
        return rollout_builder

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Record a rollout that has ended. A second call for the same rollout does nothing."""
        if not self.records:
            return
        session, key = rollout_builder.ledger_key or ("", rollout_builder.id)
        is_from_other_session = session != self.session  # for example one that was started before a fork
        try:
            line = self._redactor.encode_rollout(rollout_builder, outcome)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            if is_from_other_session or self._counter.is_open(key):
                self._disk_writer.count_loss("unrecordable", type(error).__name__, "a rollout", error, key)
                self._count_if_closed()
        else:
            self._put(QueuedLine(ROLLOUTS, line.data, key, line.blobs, is_from_other_session))
        for observer in self.observers:
            observer.rollout_ended(rollout_builder.header)

    def write_score(self, score: Score, quotes: Sequence[TextSource] = ()) -> None:
        """Record a score. Its calls are stored without text that they have in common with the rollouts in `quotes`."""
        if not self.records:
            return
        try:
            line = self._redactor.encode_score(score, quotes)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._disk_writer.count_loss("scores_dropped", type(error).__name__, "a score", error)
            self._count_if_closed()
        else:
            self._put(QueuedLine(SCORES, line.data, blobs=line.blobs))

    # For loops of your own

    def rollout(self, **fields: Unpack[RolloutFields]) -> RolloutRecorder:
        """Record one rollout: `with run.rollout(env=…, task=…, group=…, index=…) as r: r.step(…)`."""
        recorder = RolloutRecorder(self, fields, self.records, self._forget_recorder, self._count_late)
        if self.records:
            self._open[weakref.ref(recorder)] = None
        return recorder

    def _forget_recorder(self, recorder: RolloutRecorder) -> None:
        self._open.pop(weakref.ref(recorder), None)

    def score(
        self,
        rollout: str | None,
        name: str,
        value: float | None,
        *,
        data: dict[str, Any] | None = None,
        producer: str = "",
        group: GroupKey | None = None,
    ) -> None:
        """Record a score: a number about the rollout with this id, or about a group. None: there is no value."""
        texts: tuple[Any, ...] = (name, "" if rollout is None else rollout)
        if not name or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"Expected a rollout's id and a score's name, got {describe(rollout)} and {describe(name)}."
            )
        if group is not None and not is_group_key(group):
            raise InputError(f"Expected group= of a score to be a GroupKey, got {describe(group)}.")
        if rollout is None and group is None:
            raise InputError("Expected the id of a rollout, or group=, that the score is about; got neither.")
        number = as_score_value(value)
        self.write_score(
            Score(
                id=new_id(), run=self.run, session=self.session, rollout=rollout, group=group, name=name, value=number,
                data={} if data is None else data, producer=as_text(producer, "producer", []), created_at=utc_now(),
            )
        )  # fmt: skip

    def continue_session(self, session: str) -> None:
        """State that this session continues another one, which has died, and supersedes its rollouts.

        The next flush puts it on disk.
        """
        self.continues = self._counter.continues = (*(self.continues or ()), session)

    # Flush and close

    def flush(self) -> bool:
        """Return when everything recorded so far would survive a power loss.

        False means that something was lost since this thread's last flush.
        """
        self._disk_thread.flush()
        losses, before = self._counter.losses, getattr(self._reported_losses, "losses", 0)
        self._reported_losses.losses = losses
        return losses == before

    def ledger_is_stored(self) -> bool:
        """Whether others know of this session: its ledger is stored, so that a session that resumes can name it."""
        self.flush()
        return self._disk_writer.has_ledger

    def close(self) -> None:
        """Flush, write the final ledger and close the files. The ledger shows what is still in flight.

        Anything recorded later is lost, and counted in the ledger on disk. A writer that was unpickled is shared by all
        tasks of the process: it is flushed, and closed when the process ends.
        """
        if self.is_unpickled:
            self.flush()
        else:
            self.close_always()

    def close_always(self) -> None:
        """Close, even if the writer was unpickled."""
        self._disk_thread.close()
        self._awaits_sigterm = False
        stop_closing_on_sigterm(self)
        self._close_observers(None)

    def close_with_timeout(self, seconds: float) -> None:
        """Close, waiting at most `seconds`; for the exit of the process."""
        deadline = time.monotonic() + seconds
        self._disk_thread.close(max(0.0, seconds))
        self._close_observers(deadline)

    def _close_observers(self, deadline: float | None) -> None:
        while self.observers:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            self.observers.pop().run_closed(timeout)

    def cancel_open(self) -> None:
        """Record all rollouts in flight as cancelled, with the steps they have."""
        for reference in list(self._open):
            with contextlib.suppress(Exception):  # another thread may change the rollout at this moment
                if (rollouts := reference()) is not None:
                    rollouts.record_cancelled()

    @property
    def ledger(self) -> Ledger:
        """The counts so far. Lines in the queue count as in flight."""
        return self._counter.ledger(self.run, self.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickles as the other process's own writer of the same run, with its own session."""
        return _unpickled_writer, (
            self._absolute_path, self.info, self.recording, self.continues, self.job or self.session,
            self._handles_sigterm,
        )  # fmt: skip

    def _start(self) -> None:
        if self._awaits_sigterm and threading.current_thread() is threading.main_thread():
            self._awaits_sigterm = False
            close_on_sigterm(self)
        self._disk_thread.start()

    def _put(self, line: QueuedLine) -> None:
        self._start()
        reason = self._queue.put(line)
        if reason is not None:
            self._disk_writer.drop(line, reason)
        self._count_if_closed()

    def _count_if_closed(self) -> None:
        if self._queue.is_closed:
            self._disk_thread.count_late_loss()

    def _count_late(self, method: str) -> None:
        """Count what was recorded of a rollout that had ended."""
        if self.records:
            self._disk_writer.count_loss("dropped_after_end", method, "something of a rollout that had ended")
            self._count_if_closed()

    def _count_lost_text(self, error: Exception, what: str) -> None:
        # Without the message of the error: it may quote text that was to be redacted.
        self._disk_writer.count_loss("redaction_failed", f"redact: {type(error).__name__}", what)


_unpickled: dict[tuple[Path, str, str], RunWriter] = {}
"""Unpickled writers by run and pickled session, so that all tasks of a pool's process share one session."""


def _unpickled_writer(
    path: Path, info: RunInfo, recording: Recording, continues: tuple[str, ...] | None, job: str, handle_sigterm: bool
) -> RunWriter:
    """Return this process's writer for a run and a pickled session."""
    key = (path, info.id, job)
    if key not in _unpickled:
        writer = RunWriter(path, info, recording, continues, job, handle_sigterm)
        writer.is_unpickled = True
        _unpickled.setdefault(key, writer)
    return _unpickled[key]


_open_writers: "weakref.WeakSet[RunWriter]" = weakref.WeakSet()


def _close_all() -> None:
    for writer in list(_open_writers):
        writer.close_always()


def _begin_sessions_after_fork() -> None:
    """Start a new session for each open writer. The parent writes what it has queued."""
    forget_threads_after_fork()
    restore_default_after_fork()
    for writer in list(_open_writers):
        writer.begin_session_after_fork()


call_before_exit(_close_all)
os.register_at_fork(after_in_child=_begin_sessions_after_fork)
