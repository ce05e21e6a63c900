"""Counts of the rollouts that a session started, recorded and lost. The numbers must add up."""

import contextlib
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from rolltrace.store.layout import decode_versioned
from rolltrace.trace.codec import add_checksum, utc_now, verify_checksum
from rolltrace.trace.field_types import FORMAT_VERSION, Counts, Omittable, Timestamp
from rolltrace.trace.ids import new_id
from rolltrace.trace.strict_json import json_encoder

LOSSES = (
    "unrecordable", "dropped", "scores_dropped", "blobs_dropped", "redaction_failed", "sync_failed", "dropped_after_end"
)  # fmt: skip
"""The fields of a ledger that count losses by reason."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `ledger/`: the counts of one session so far. The last line of each session counts."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    run: str
    session: str
    written_at: Timestamp
    dispatched: int = 0
    """Rollouts that were started, counting each attempt: recorded + unrecordable + dropped + in flight."""
    recorded: int = 0
    """Lines written."""
    unrecordable: Counts = {}
    """Rollouts that could not be encoded, by reason."""
    dropped: Counts = {}
    """Lines that could not be written, by reason: the name of the system's error, `queue full` or `closed`."""
    in_flight: int = 0
    """Rollouts that were started and have not ended."""
    scores_recorded: int = 0
    scores_dropped: Counts = {}
    blobs_dropped: Counts = {}
    """Blobs that could not be written, by reason; the lines that name them are recorded."""
    redaction_failed: Counts = {}
    """Rollouts and scores recorded without their text because redacting it failed, by reason."""
    sync_failed: Counts = {}
    """How often the disk did not confirm what was written, by reason: a power loss may cost it."""
    dropped_after_end: Omittable[Counts] = {}
    """What was recorded of rollouts that had ended, and was dropped, by the method of the recorder that was called."""
    not_uploaded: Omittable[int] = 0
    """Lines written that are only in the spool of the machine, for a run in an object store. Counted in `recorded`."""
    closed: bool = False
    """Whether the session was closed."""
    continues: tuple[str, ...] | None = None
    """The sessions that this one continues: where both recorded a rollout, this one's counts. None: not stated."""
    job: str = ""
    """The session that this one's writer was forked or unpickled from, directly or not; empty if it was neither.
    Sessions of one job replace each other's rollouts only if they state that they continue each other."""

    @property
    def is_balanced(self) -> bool:
        """Whether every rollout is accounted for."""
        return self.dispatched == self.recorded + self._refused + self.in_flight

    @property
    def lost(self) -> int:
        """Rollouts that were started and will never have a line."""
        return self._refused + (self.in_flight if self.closed else 0)

    @property
    def maybe_lost(self) -> int:
        """Rollouts in flight in a session that was not closed: being played, or lost if its writer died."""
        return 0 if self.closed else self.in_flight

    @property
    def complete(self) -> bool:
        """Whether everything so far was recorded, and no fsync failed."""
        return not any(getattr(self, name) for name in LOSSES)

    @property
    def _refused(self) -> int:
        return sum(self.unrecordable.values()) + sum(self.dropped.values())


class LedgerCounter:
    """The counts of a session while it runs.

    Any thread may count, and so may a signal handler that interrupts one that counts: there is no lock, and every
    change is one call into C, which no handler, exception or other thread can interrupt. A rollout is in flight while
    its key is in `_open`. `dispatched` is derived, so the sum is always right.
    """

    def __init__(self, continues: tuple[str, ...] | None = None, job: str = "") -> None:
        self.closed = False
        self.continues = continues
        self.job = job
        self._open: dict[str, object] = {}
        self._pop: Any = self._open.pop
        self._counts: Counter[tuple[str, str]] = Counter()
        """By field of the ledger, and reason."""
        self._reasons: dict[str, object] = {}

    @property
    def losses(self) -> int:
        """The number of losses of all kinds."""
        return self._counts["losses", ""]

    def count_loss(self, reason: str) -> bool:
        """Count a loss of any kind; returns whether it is the first for that reason."""
        self.count("losses")
        mark = object()
        return self._reasons.setdefault(reason, mark) is mark

    def start_rollout(self, rollout: str) -> str:
        """Count a rollout that starts; returns its key: its id, unless another rollout in flight has the same."""
        key, mark = rollout, object()
        while self._open.setdefault(key, mark) is not mark:
            key = f"{rollout} {new_id()}"
        return key

    @property
    def is_unused(self) -> bool:
        """Whether nothing was ever counted."""
        return not self._open and not self._counts

    def is_open(self, key: str) -> bool:
        """Whether the rollout is in flight."""
        return key in self._open

    def count(self, field: str, reason: str = "") -> None:
        """Add one to a field of the ledger."""
        self._counts.update(((field, reason),))

    def settle(self, key: str, field: str, reason: str = "") -> None:
        """Count what became of a rollout, which is no longer in flight. Another session may have started it."""
        self._open[key] = (field, reason)
        with contextlib.suppress(KeyError):  # another thread settled it at this moment
            # Removed and counted in one call into C, which nothing can interrupt.
            self._counts.update(map(self._pop, (key,)))

    def ledger(self, run: str, session: str) -> Ledger:
        """The counts so far."""
        # One call into C for both, so that they are consistent.
        counts, in_flight = map(_call, (dict, len), (self._counts, self._open))
        by_reason: dict[str, Any] = {field: {} for field in LOSSES}
        for (field, reason), count in counts.items():
            if field in by_reason:
                by_reason[field][reason] = count
        recorded = counts.get(("recorded", ""), 0)
        refused = sum(by_reason["unrecordable"].values()) + sum(by_reason["dropped"].values())
        return Ledger(
            run=run,
            session=session,
            written_at=utc_now(),
            dispatched=recorded + refused + in_flight,
            recorded=recorded,
            in_flight=in_flight,
            scores_recorded=counts.get(("scores_recorded", ""), 0),
            closed=self.closed,
            continues=self.continues,
            job=self.job,
            **by_reason,
        )


_call: Any = operator.call


def sum_ledgers(ledgers: Sequence[Ledger]) -> Ledger:
    """The counts of several sessions, as those of the first one."""
    numbers = [name for name in Ledger.__struct_fields__ if type(getattr(ledgers[0], name)) is int and name != "v"]
    sums: dict[str, Any] = {name: sum(getattr(ledger, name) for ledger in ledgers) for name in numbers}
    for name in LOSSES:
        counts: dict[str, int] = {}
        for ledger in ledgers:
            for reason, count in getattr(ledger, name).items():
                counts[reason] = counts.get(reason, 0) + count
        sums[name] = counts
    return msgspec.structs.replace(ledgers[0], closed=all(ledger.closed for ledger in ledgers), **sums)


def encode_ledger(ledger: Ledger) -> bytes:
    """Encode a ledger as one line."""
    return add_checksum(json_encoder.encode(ledger))


def decode_ledger(line: bytes) -> Ledger:
    """Decode the ledger of one line; the error says what is wrong and where."""
    return decode_versioned(verify_checksum(line), Ledger, "ledger")
