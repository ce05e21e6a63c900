"""Writes rollouts and scores into a run: one writer, its own files, and a ledger of what became of everything."""

import errno
import logging
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rolltrace.errors import RolltraceError
from rolltrace.store.blobs import blob_path, write_blob
from rolltrace.store.layout import BLOBS, LEDGER, ROLLOUTS, SCORES, RunInfo, ledger_name, segment_name
from rolltrace.store.ledger import Ledger, Tally, encode_ledger
from rolltrace.store.segment import Segment
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import encode_score
from rolltrace.trace.draft import Draft, Line, new_id
from rolltrace.trace.rollout import Header
from rolltrace.trace.score import Score

logger = logging.getLogger(__name__)

LEDGER_SECONDS = 1.0
"""How old the ledger on disk may grow while rollouts come and go."""


class RunWriter:
    """Keeps what it is handed, and counts what it could not keep.

    Any thread may call any method. Nothing that goes wrong with a file raises into the caller: it is counted by
    reason, and logged once for each reason.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path = path
        self.info = info
        self.run = info.id
        """The id of the run."""
        self.session = new_id()
        """The id of this opening of the run; its files are named after it."""
        self._lock = threading.Lock()
        self._tally = Tally()
        self._rollouts = Segment(path / ROLLOUTS, self.session, segment_name)
        self._scores = Segment(path / SCORES, self.session, segment_name)
        self._ledger = Segment(path / LEDGER, self.session, ledger_name)
        self._ledger_due = 0.0
        self._kept_blobs: set[str] = set()
        self._reasons_told: set[str] = set()
        self._lost_since_flush = False

    def begin(self, header: Header) -> Draft:
        """A draft for a rollout that starts now; it is in flight until its line is written."""
        with self._lock:
            self._tally.begin(header.id)
            self._update_ledger()
        return Draft(header)

    def write_rollout(self, line: Line) -> None:
        """Keep a finished rollout and the blobs it names."""
        with self._lock:
            if self._tally.closed:
                self._tally.drop(line.id, self._lost("closed", "a rollout"))
            elif not line.data.endswith(b'"}\n') or line.data.count(b"\n") != 1:
                self._tally.refuse(line.id, self._lost("not one line", "a rollout"))
            else:
                self._append_rollout(line)
            self._update_ledger()

    def write_score(self, score: Score) -> None:
        """Keep a late fact."""
        with self._lock:
            if self._tally.closed:
                self._tally.scores_dropped[self._lost("closed", "a score")] += 1
                return
            try:
                self._scores.append(encode_score(score))
            except Exception as error:  # noqa: BLE001 - recording never stops the caller
                self._tally.scores_dropped[self._lost(_reason(error), "a score", error)] += 1
            else:
                self._tally.score()

    def flush(self) -> bool:
        """Return when all that was handed in would survive a power loss; False says that some of it was lost."""
        with self._lock:
            self._sync()
            kept, self._lost_since_flush = not self._lost_since_flush, False
            return kept

    def close(self) -> None:
        """Flush, write the final ledger and give back the files. What is still in flight shows in the ledger."""
        with self._lock:
            if self._tally.closed:
                return
            self._tally.closed = True
            self._sync()
            for segment in (self._rollouts, self._scores, self._ledger):
                segment.close()

    @property
    def ledger(self) -> Ledger:
        """What became of everything so far."""
        with self._lock:
            return self._tally.ledger(self.run, self.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _append_rollout(self, line: Line) -> None:
        for blob in line.blobs:
            self._keep_blob(blob)
        try:
            self._rollouts.append(line.data)
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.drop(line.id, self._lost(_reason(error), "a rollout", error))
        else:
            self._tally.record(line.id)

    def _keep_blob(self, blob: Blob) -> None:
        if blob.name in self._kept_blobs:
            return
        try:
            if blob.data is not None:
                write_blob(self.path / BLOBS, blob.name, blob.data, self.session)
            elif not blob_path(self.path / BLOBS, blob.name).is_file():
                self._tally.blobs_dropped[self._lost("no data", "a blob")] += 1
                return
        except Exception as error:  # noqa: BLE001 - recording never stops the caller
            self._tally.blobs_dropped[self._lost(_reason(error), "a blob", error)] += 1
        else:
            self._kept_blobs.add(blob.name)

    def _sync(self) -> None:
        """Bring everything to the disk, the ledger last, so that it never speaks of lines that are not there yet."""
        for segment in (self._rollouts, self._scores):
            self._sync_segment(segment)
        self._write_ledger()
        self._sync_segment(self._ledger)

    def _sync_segment(self, segment: Segment) -> None:
        try:
            segment.sync()
        except OSError as error:
            self._lost(_reason(error), "what was written since the last flush", error)

    def _update_ledger(self) -> None:
        if time.monotonic() >= self._ledger_due and not self._tally.closed:
            self._write_ledger()

    def _write_ledger(self) -> None:
        self._ledger_due = time.monotonic() + LEDGER_SECONDS
        try:
            self._ledger.append(encode_ledger(self._tally.ledger(self.run, self.session)))
        except OSError as error:
            self._lost(_reason(error), "a line of the ledger", error)

    def _lost(self, reason: str, what: str, error: Exception | None = None) -> str:
        """Tell of a loss, once for each reason; returns the reason."""
        self._lost_since_flush = True
        if reason not in self._reasons_told:
            self._reasons_told.add(reason)
            logger.warning(
                "Could not record %s in %s: %s. Further losses of this kind are counted in the ledger.",
                what, self.path, reason if error is None else f"{reason}, {error}",
            )  # fmt: skip
        return reason


def _reason(error: Exception) -> str:
    """A stable name for what went wrong, such as `ENOSPC`."""
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, f"errno {error.errno}")
    return "bad name" if isinstance(error, RolltraceError) else type(error).__name__
