"""Writes rollouts and scores into a run: any thread hands them in, one thread of its own brings them to the disk."""

import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from rolltrace.errors import InputError
from rolltrace.store.backlog import Backlog, Errand, Job
from rolltrace.store.editor import Editor
from rolltrace.store.layout import ROLLOUTS, SCORES, RunInfo
from rolltrace.store.ledger import Ledger, Tally
from rolltrace.store.recorder import About, RolloutRecorder
from rolltrace.store.recording import Level, Recording
from rolltrace.store.scribe import LEDGER_SECONDS, Scribe
from rolltrace.trace.codec import utc_now
from rolltrace.trace.draft import Draft, Line, new_id
from rolltrace.trace.freeform import as_text, describe
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import GroupKey, Score

logger = logging.getLogger(__name__)


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
    ) -> None:
        self.path = path
        """Where the run is, as it was named."""
        self._place = path.absolute()  # the same wherever the process goes
        self.info = info
        self.recording = recording
        self.run = info.id
        """The id of the run."""
        self.continues = continues
        """The sessions that this one continues, and supersedes; None: not stated."""
        self.job = job
        """The session that this writer was forked or unpickled from; empty where it was not."""
        self._editor = Editor(recording, self._text_lost)
        self._begin_session()
        _open_writers.add(self)

    def begin_session_after_fork(self) -> None:
        """Become another session, in a process that was forked from that of this one."""
        if self._finalizer is not None:
            self._finalizer.detach()  # the other process may hold a lock of that backlog, here for ever
        if not self._backlog.is_closed:
            self._scribe.let_go()
            self.job = self.job or self.session
            self._begin_session()

    def _begin_session(self) -> None:
        self.session = new_id()
        """The id of this opening of the run; its files are named after it."""
        self._tally = Tally(self.continues, self.job)
        self._told = threading.local()
        self._scribe = Scribe(self._place, self.run, self.session, self._tally, self.recording.segment_bytes)
        self._backlog = Backlog(self.recording.queue_bytes, self.recording.queue_seconds)
        self._thread: threading.Thread | None = None
        self._finalizer: weakref.finalize[..., RunWriter] | None = None
        self._starting = threading.RLock()
        self._closing = threading.RLock()

    # What a runner hands in

    def begin(self, header: Header) -> Draft:
        """A draft for a rollout that starts now; it is in flight until its line is written."""
        if self.records:
            self._tally.begin(header.id)
            self._start()
        return Draft(header, keeps_tokens=bool(self.recording.tokens))

    def end(self, draft: Draft, outcome: Outcome) -> None:
        """Keep a rollout that has ended, as much of it as is to be recorded."""
        if not self.records:
            return
        try:
            line = self._editor.rollout_line(draft, outcome)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.refuse(draft.id, self._scribe.lost(type(error).__name__, "a rollout", error))
        else:
            self._put(Job(ROLLOUTS, line.data, line.id, line.blobs))

    def write_rollout(self, line: Line) -> None:
        """Keep a line that is finished already, such as an imported one, as much of it as is to be recorded."""
        if not self.records:
            return
        try:
            if not line.data.endswith(b'"}\n') or line.data.count(b"\n") != 1:
                self._tally.refuse(line.id, self._scribe.lost("not one line", "a rollout"))
                return
            line = self._editor.finished_line(line)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.refuse(line.id, self._scribe.lost(type(error).__name__, "a rollout", error))
        else:
            self._put(Job(ROLLOUTS, line.data, line.id, line.blobs))

    def write_score(self, score: Score) -> None:
        """Keep a late fact."""
        if not self.records:
            return
        try:
            line = self._editor.score_line(score)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.drop_score(self._scribe.lost(type(error).__name__, "a score", error))
        else:
            self._put(Job(SCORES, line.data, blobs=line.blobs))

    # What a loop of somebody else's hands in

    def rollout(self, **about: Unpack[About]) -> RolloutRecorder:
        """Record one rollout: `with run.rollout(env=…, task=…, group=…, index=…) as r: r.step(…)`."""
        return RolloutRecorder(self, about)

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
        if not all(isinstance(text, str) for text in texts):
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
        if threading.current_thread() is self._thread:  # a log handler that records, say: nobody else would do it
            self._scribe.sync()
        elif not self._start():
            self._write_here()
        elif (errand := self._backlog.send(self._scribe.sync)) is not None:
            errand.done.wait()
        else:
            self._join()
        losses, told = self._tally.losses, getattr(self._told, "losses", 0)
        self._told.losses = losses
        return losses == told

    def close(self) -> None:
        """Flush, write the final ledger and give back the files. What is still in flight shows in the ledger."""
        with self._closing:
            with self._starting:  # no thread is started after this
                if self._backlog.is_closed:
                    return
                self._scribe.is_asked_to_close = True
                self._backlog.close()
            if self._thread is None:
                _work(self._backlog, self._scribe)
            self._join()

    def _join(self) -> None:
        """Return when all is written that was handed in before closing."""
        with self._closing:
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()

    def _write_here(self) -> None:
        """Bring everything to the disk where no thread can be started to do it."""
        with self._closing, self._starting:
            if self._thread is None and (errand := self._backlog.send(self._scribe.sync)) is not None:
                while not errand.done.is_set() and (batch := self._backlog.take(0)) is not None:
                    _write(self._scribe, batch)

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
        """In another process, a writer of the same run with a session of its own."""
        return RunWriter, (self._place, self.info, self.recording, self.continues, self.job or self.session)

    def _put(self, job: Job) -> None:
        self._start()
        reason = self._backlog.put(job)
        if reason is None:
            return
        if job.folder == ROLLOUTS:
            self._tally.drop(job.rollout, self._scribe.lost(reason, "a rollout"))
        else:
            self._tally.drop_score(self._scribe.lost(reason, "a score"))

    def _start(self) -> bool:
        """Have a thread that writes; False where there is none, and `close` will."""
        if self._thread is None:
            with self._starting:
                self._start_thread()
        return self._thread is not None

    def _start_thread(self) -> None:
        if self._thread is not None or self._backlog.is_closed:
            return
        thread = threading.Thread(
            target=_work, args=(self._backlog, self._scribe), name="rolltrace-writer", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # at exit no thread can be started
            thread.start()
            self._thread = thread
            # When nobody can hand in anything any more, the thread ends.
            self._finalizer = weakref.finalize(self, self._backlog.close)
            _threads.add(thread)
            _close_when_process_ends()

    def _text_lost(self, error: Exception, what: str) -> None:
        # Without the error's own words: they may quote what was to be redacted.
        self._tally.drop_text(self._scribe.lost(f"redact: {type(error).__name__}", what))


def _work(backlog: Backlog, scribe: Scribe) -> None:
    """Write what comes until nothing more will."""
    while (batch := backlog.take(LEDGER_SECONDS)) is not None:
        _write(scribe, batch)
    _try(scribe, scribe.close)


def _write(scribe: Scribe, batch: Sequence[Job | Errand]) -> None:
    """Write jobs, and run each errand when those before it are written; nobody waits for ever."""
    jobs: list[Job] = []
    for item in batch:
        if isinstance(item, Job):
            jobs.append(item)
            continue
        _try(scribe, partial(scribe.write, jobs))
        jobs = []
        _try(scribe, item.action)
        item.done.set()
    if jobs:
        _try(scribe, partial(scribe.write, jobs))
    _try(scribe, scribe.keep_up)


def _try(scribe: Scribe, action: Callable[[], None]) -> None:
    """Do something; whatever happens, the thread lives and the loss is counted."""
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - a bug of ours, or of a log handler, is not to stop recording
        with contextlib.suppress(BaseException):
            scribe.lost(type(error).__name__, "something", error)


# Processes end in more than one way, and are forked

_open_writers: "weakref.WeakSet[RunWriter]" = weakref.WeakSet()
_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_guarded_process: int | None = None


def _close_when_process_ends() -> None:
    """Have all writers closed when this process ends; one of multiprocessing's ends without `atexit`."""
    global _guarded_process
    if _guarded_process != os.getpid():
        _guarded_process = os.getpid()
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, _close_all, exitpriority=0)


def _close_all() -> None:
    for writer in list(_open_writers):
        writer.close()
    for thread in list(_threads):  # of writers that nobody uses any more; what they were handed is still to be written
        thread.join()


def _begin_sessions_after_fork() -> None:
    """Give each open writer a session of its own; what the parent has queued is the parent's to write."""
    _threads.clear()
    for writer in list(_open_writers):
        writer.begin_session_after_fork()


os.register_at_fork(after_in_child=_begin_sessions_after_fork)
