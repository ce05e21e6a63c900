"""What became of every rollout that was begun: counts that must add up."""

import threading
from collections import Counter

import msgspec

from rolltrace.store.layout import decode_versioned
from rolltrace.trace.codec import json_encoder, seal, utc_now, verify
from rolltrace.trace.rollout import FORMAT_VERSION, Moment


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `ledger/`: what one writer has done so far. The last line of each writer counts."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    run: str
    session: str
    at: Moment
    dispatched: int = 0
    """Rollouts begun, each attempt counting: recorded + unrecordable + dropped + in flight."""
    recorded: int = 0
    """Lines written."""
    unrecordable: dict[str, int] = {}
    """Rollouts that gave no line that can be kept, by reason."""
    dropped: dict[str, int] = {}
    """Lines that could not be written, by reason: the name of the system's error, `queue full` or `closed`."""
    in_flight: int = 0
    """Rollouts begun whose line has not come."""
    scores_recorded: int = 0
    scores_dropped: dict[str, int] = {}
    blobs_dropped: dict[str, int] = {}
    """Blobs that could not be kept, by reason; the lines that name them are kept."""
    texts_dropped: dict[str, int] = {}
    """Rollouts and scores recorded without their text because redacting it failed, by reason."""
    unsynced: dict[str, int] = {}
    """How often the disk did not confirm what was written, by reason: a power loss may cost it."""
    closed: bool = False
    """Whether the writer ended as it should."""
    continues: tuple[str, ...] | None = None
    """The sessions that this one continues: where both recorded a rollout, this one's counts. None: not stated."""
    job: str = ""
    """The session that this one's writer was forked or unpickled from, directly or not; empty where it was not.
    Sessions of one job never replace each other's rollouts."""

    @property
    def adds_up(self) -> bool:
        """Whether every rollout is accounted for."""
        return self.dispatched == self.recorded + self._refused + self.in_flight

    @property
    def lost(self) -> int:
        """Rollouts that were begun and of which there will be no line."""
        return self._refused + (self.in_flight if self.closed else 0)

    @property
    def in_doubt(self) -> int:
        """Rollouts in flight in a session that was not closed: being played or, where its writer died, lost."""
        return 0 if self.closed else self.in_flight

    @property
    def complete(self) -> bool:
        """Whether all that was handed in so far was recorded, and the disk has confirmed it where it was asked."""
        return not any(
            (
                self.unrecordable, self.dropped, self.scores_dropped, self.blobs_dropped, self.texts_dropped,
                self.unsynced,
            )
        )  # fmt: skip

    @property
    def _refused(self) -> int:
        return sum(self.unrecordable.values()) + sum(self.dropped.values())


class Tally:
    """Counts on their way to a ledger; any thread may count."""

    def __init__(self, continues: tuple[str, ...] | None = None, job: str = "") -> None:
        self.closed = False
        self.continues = continues
        self.job = job
        self.losses = 0
        """Everything that could not be kept, of whatever kind."""
        self._lock = threading.Lock()
        self._reasons: set[str] = set()
        self._in_flight: Counter[str] = Counter()
        self._count_in_flight = 0
        self._dispatched = 0
        self._recorded = 0
        self._scores_recorded = 0
        self._unrecordable: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._scores_dropped: Counter[str] = Counter()
        self._blobs_dropped: Counter[str] = Counter()
        self._texts_dropped: Counter[str] = Counter()
        self._unsynced: Counter[str] = Counter()

    def lose(self, reason: str) -> bool:
        """Count something that could not be kept, of whatever kind; whether it is the first for that reason."""
        with self._lock:
            self.losses += 1
            is_first = reason not in self._reasons
            self._reasons.add(reason)
            return is_first

    def begin(self, rollout: str) -> None:
        """Count a rollout that starts."""
        with self._lock:
            self._dispatched += 1
            self._in_flight[rollout] += 1  # an id that its owner gave to two is counted twice
            self._count_in_flight += 1

    def record(self, rollout: str) -> None:
        """Count a line that was written."""
        with self._lock:
            self._end(rollout)
            self._recorded += 1

    def drop(self, rollout: str, reason: str) -> None:
        """Count a line that could not be written."""
        with self._lock:
            self._end(rollout)
            self._dropped[reason] += 1

    def refuse(self, rollout: str, reason: str) -> None:
        """Count a line that cannot be kept."""
        with self._lock:
            self._end(rollout)
            self._unrecordable[reason] += 1

    def score(self) -> None:
        """Count a score that was written."""
        with self._lock:
            self._scores_recorded += 1

    def drop_score(self, reason: str) -> None:
        """Count a score that could not be written."""
        with self._lock:
            self._scores_dropped[reason] += 1

    def drop_blob(self, reason: str) -> None:
        """Count a blob that could not be kept."""
        with self._lock:
            self._blobs_dropped[reason] += 1

    def drop_text(self, reason: str) -> None:
        """Count a rollout or score whose text could not be kept."""
        with self._lock:
            self._texts_dropped[reason] += 1

    def miss_sync(self, reason: str) -> None:
        """Count a file or folder that the disk did not confirm."""
        with self._lock:
            self._unsynced[reason] += 1

    def ledger(self, run: str, session: str) -> Ledger:
        """The counts as they stand."""
        with self._lock:
            return Ledger(
                run=run,
                session=session,
                at=utc_now(),
                dispatched=self._dispatched,
                recorded=self._recorded,
                unrecordable=dict(self._unrecordable),
                dropped=dict(self._dropped),
                in_flight=self._count_in_flight,
                scores_recorded=self._scores_recorded,
                scores_dropped=dict(self._scores_dropped),
                blobs_dropped=dict(self._blobs_dropped),
                texts_dropped=dict(self._texts_dropped),
                unsynced=dict(self._unsynced),
                closed=self.closed,
                continues=self.continues,
                job=self.job,
            )

    def _end(self, rollout: str) -> None:
        if self._in_flight[rollout] > 0:
            self._in_flight[rollout] -= 1
            self._count_in_flight -= 1
            if not self._in_flight[rollout]:
                del self._in_flight[rollout]
        else:  # written without having been begun here, such as an imported one
            self._dispatched += 1


def encode_ledger(ledger: Ledger) -> bytes:
    """A ledger as one line."""
    return seal(json_encoder.encode(ledger))


def decode_ledger(line: bytes) -> Ledger:
    """The ledger of one line; the error says what is wrong and where."""
    return decode_versioned(verify(line), Ledger, "ledger")
