"""Writes rollouts and scores into a run: any thread hands them in, one thread of its own brings them to the disk."""

import contextlib
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from rolltrace.errors import InputError
from rolltrace.store.disk_thread import DiskThread, call_before_exit, forget_workers_after_fork
from rolltrace.store.disk_writer import DiskWriter
from rolltrace.store.layout import ROLLOUTS, SCORES, RunInfo
from rolltrace.store.ledger import Ledger, LedgerCounter
from rolltrace.store.recorder import RolloutFields, RolloutRecorder
from rolltrace.store.recording import Level, Recording
from rolltrace.store.redactor import Redactor
from rolltrace.store.sigterm import close_on_sigterm, restore_default_after_fork, stop_closing_on_sigterm
from rolltrace.store.write_queue import QueuedLine, WriteQueue
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import as_text, describe
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder, new_id
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.sink import OpenRollouts


class RunWriter:
    """Keeps what it is handed, and counts what it could not keep.

    Any thread may call any method, and only `flush` and `close` wait on the disk. Nothing that goes wrong raises into
    the caller: it is counted by reason, and logged once for each reason. A process that is forked from this one goes on
    with a session and files of its own.
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
        """Where the run is, as it was named."""
        self._absolute_path = path.absolute()  # the same wherever the process goes
        self.info = info
        self.recording = recording
        self.run = info.id
        """The id of the run."""
        self.continues = continues
        """The sessions that this one continues, and supersedes; None: not stated."""
        self.job = job
        """The session that this writer was forked or unpickled from; empty where it was not."""
        self.is_unpickled = False
        """Whether it was unpickled, and is the same for all tasks of this process."""
        self._editor = Redactor(recording, self._text_lost)
        self._begin_session()
        _open_writers.add(self)
        if self.records and not job:  # that of another process begins when something is recorded in it
            self._worker.start()  # readers are to see the session, and that it is alive
        self._handles_sigterm = handle_sigterm
        self._awaits_sigterm = False  # whether SIGTERM is to be handled once this process records something
        if self.records and handle_sigterm:
            close_on_sigterm(self)

    def begin_session_after_fork(self) -> None:
        """Become another session, in a process that was forked from that of this one."""
        self._finalizer.detach()
        was_closed = self._backlog.is_closed
        if not was_closed:
            self._scribe.close_inherited()
        self.job = self.job or self.session
        self._begin_session()
        self._awaits_sigterm = self.records and self._handles_sigterm and not was_closed
        if was_closed:
            self._worker.close_unused()

    def _begin_session(self) -> None:
        self.session = new_id()
        """The id of this opening of the run; its files are named after it."""
        self._tally = LedgerCounter(self.continues, self.job)
        self._reported_losses = threading.local()
        # Weak, but without callbacks: an exception that a signal handler raises in one is swallowed.
        self._open: dict[weakref.ref[OpenRollouts], None] = {}
        self._scribe = DiskWriter(
            self._absolute_path, self.run, self.session, self._tally, self.recording.segment_bytes
        )
        self._backlog = WriteQueue(self.recording.queue_bytes, self.recording.queue_seconds)
        self._worker = DiskThread(self._backlog, self._scribe, self._tally)
        # When the writer is deleted nothing more can be handed in, and its thread ends.
        self._finalizer = weakref.finalize(self, self._backlog.close)
        self._finalizer.atexit = False

    # What a runner hands in

    def register_open(self, rollouts: OpenRollouts) -> None:
        """Have rollouts in flight recorded as cancelled if SIGTERM comes; they are held weakly."""
        for reference in list(self._open):
            if reference() is None:
                self._open.pop(reference, None)
        if self.records:
            self._open[weakref.ref(rollouts)] = None

    def begin(self, header: Header) -> RolloutBuilder:
        """A draft for a rollout that starts now; it is in flight until its line is written."""
        rollout_builder = RolloutBuilder(header, keeps_tokens=bool(self.recording.tokens))
        if self.records:
            self._start()
            rollout_builder.ledger_key = (self.session, self._tally.start_rollout(header.id))
        return rollout_builder

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Keep a rollout that has ended, as much of it as is to be recorded; a second call for it does nothing."""
        if not self.records:
            return
        session, key = rollout_builder.ledger_key or ("", rollout_builder.id)
        is_from_other_session = session != self.session  # such as one that was begun before this process was forked
        try:
            line = self._editor.encode_rollout(rollout_builder, outcome)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            if is_from_other_session or self._tally.is_open(key):
                self._refuse(key, type(error).__name__, error)
        else:
            self._put(QueuedLine(ROLLOUTS, line.data, key, line.blobs, is_from_other_session))

    def write_rollout(self, line: EncodedRecord) -> None:
        """Keep a line that is finished already, such as an imported one, as much of it as is to be recorded."""
        if not self.records:
            return
        try:
            if not line.data.endswith(b'"}\n') or line.data.count(b"\n") != 1:
                self._refuse(line.id, "not one line")
                return
            line = self._editor.encode_imported(line)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._refuse(line.id, type(error).__name__, error)
        else:
            self._put(QueuedLine(ROLLOUTS, line.data, line.id, line.blobs))

    def write_score(self, score: Score) -> None:
        """Keep a late fact."""
        if not self.records:
            return
        try:
            line = self._editor.encode_score(score)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.drop_score(self._scribe.report_loss(type(error).__name__, "a score", error))
            self._note_if_late()
        else:
            self._put(QueuedLine(SCORES, line.data, blobs=line.blobs))

    # What a loop of somebody else's hands in

    def rollout(self, **about: Unpack[RolloutFields]) -> RolloutRecorder:
        """Record one rollout: `with run.rollout(env=…, task=…, group=…, index=…) as r: r.step(…)`."""
        recorder = RolloutRecorder(self, about)
        if self.records:
            self._open[weakref.ref(recorder)] = None
        return recorder

    def on_recorder_end(self, recorder: RolloutRecorder) -> None:
        """Note that a recorder's rollout has ended."""
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
        """Record a late fact about the rollout of this id, or about a group."""
        texts: tuple[Any, ...] = (name, "" if rollout is None else rollout)
        if not name or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"Expected a rollout's id and a score's name, got {describe(rollout)} and {describe(name)}."
            )
        if group is not None and not isinstance(group, GroupKey):
            raise InputError(f"Expected group= of a score to be a GroupKey, got {describe(group)}.")
        if rollout is None and group is None:
            raise InputError("Expected the id of a rollout, or group=, that the score is about; got neither.")
        self.write_score(
            Score(
                id=new_id(), run=self.run, session=self.session, rollout=rollout, group=group, name=name, value=value,
                data={} if data is None else data, producer=as_text(producer, "producer", []), at=utc_now(),
            )
        )  # fmt: skip

    # To the disk

    def flush(self) -> bool:
        """Return when all that was handed in would survive a power loss.

        False says that something was lost since this thread's last flush.
        """
        self._worker.flush()
        losses, told = self._tally.losses, getattr(self._reported_losses, "losses", 0)
        self._reported_losses.losses = losses
        return losses == told

    def close(self) -> None:
        """Flush, write the final ledger and give back the files. What is still in flight shows in the ledger.

        What is handed in later is lost, and counted in the ledger on disk. A writer that was unpickled belongs to all
        tasks of the process: it is flushed, and closed when the process ends.
        """
        if self.is_unpickled:
            self.flush()
        else:
            self.close_always()

    def close_always(self) -> None:
        """Close, also a writer that was unpickled."""
        self._worker.close()
        self._awaits_sigterm = False
        stop_closing_on_sigterm(self)

    def close_with_timeout(self, seconds: float) -> None:
        """Close, and wait for it at most so long; for the end of the process."""
        self._worker.close(max(0.0, seconds))

    def cancel_open(self) -> None:
        """Record the rollouts in flight of recorders and runners as cancelled, with the steps they have."""
        for reference in list(self._open):
            with contextlib.suppress(Exception):  # another thread may change the rollout at this moment
                if (rollouts := reference()) is not None:
                    rollouts.record_cancelled()

    @property
    def records(self) -> bool:
        """Whether anything is recorded at all."""
        return self.recording.level is not Level.OFF

    @property
    def ledger(self) -> Ledger:
        """What became of everything so far; what waits to be written is in flight."""
        return self._tally.ledger(self.run, self.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, that process's writer of the same run, with a session of its own."""
        return _unpickled_writer, (
            self._absolute_path, self.info, self.recording, self.continues, self.job or self.session,
            self._handles_sigterm,
        )  # fmt: skip

    def _start(self) -> None:
        if self._awaits_sigterm and threading.current_thread() is threading.main_thread():
            self._awaits_sigterm = False
            close_on_sigterm(self)
        self._worker.start()

    def _put(self, job: QueuedLine) -> None:
        self._start()
        reason = self._backlog.put(job)
        if reason is not None:
            self._worker.drop(job, reason)
        self._note_if_late()

    def _refuse(self, key: str, reason: str, error: Exception | None = None) -> None:
        self._tally.count_unrecordable(key, self._scribe.report_loss(reason, "a rollout", error))
        self._note_if_late()

    def _note_if_late(self) -> None:
        if self._backlog.is_closed:
            self._worker.count_late_loss()

    def _text_lost(self, error: Exception, what: str) -> None:
        # Without the error's own words: they may quote what was to be redacted.
        self._tally.drop_text(self._scribe.report_loss(f"redact: {type(error).__name__}", what))


_unpickled: dict[tuple[Path, str, str], RunWriter] = {}
"""By the run and the session that was pickled: tasks of a pool come one after the other, and are one session."""


def _unpickled_writer(
    place: Path, info: RunInfo, recording: Recording, continues: tuple[str, ...] | None, job: str, handle_sigterm: bool
) -> RunWriter:
    """The writer of this process for a run and a session, made when it is first asked for."""
    key = (place, info.id, job)
    if key not in _unpickled:
        writer = RunWriter(place, info, recording, continues, job, handle_sigterm)
        writer.is_unpickled = True
        _unpickled.setdefault(key, writer)
    return _unpickled[key]


_open_writers: "weakref.WeakSet[RunWriter]" = weakref.WeakSet()


def _close_all() -> None:
    for writer in list(_open_writers):
        writer.close_always()


def _begin_sessions_after_fork() -> None:
    """Give each open writer a session of its own; what the parent has queued is the parent's to write."""
    forget_workers_after_fork()
    restore_default_after_fork()
    for writer in list(_open_writers):
        writer.begin_session_after_fork()


call_before_exit(_close_all)
os.register_at_fork(after_in_child=_begin_sessions_after_fork)
