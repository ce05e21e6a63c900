"""Follows runs while they are written: yields the existing records, then new ones as they arrive."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from rolltrace.errors import InputError
from rolltrace.query.record_reader import LateScoreReader, growing_batches, with_scores
from rolltrace.store.cursor import Cursor, decode_lines
from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES
from rolltrace.store.ledger import decode_ledger
from rolltrace.store.object_address import is_address
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.rollout import Rollout

_MAX_ROLLOUTS = 32
"""How many rollouts are in memory while their scores are read."""
_KINDS = (ROLLOUTS, SCORES, LEDGER)


class StopEvent(Protocol):
    """Ends the following of a run, for example a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to stop."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is set, or after `timeout` seconds."""


def follow(readers: Sequence[RunReader], kind: str, stop: StopEvent, seconds: float) -> Iterator[Any]:
    """The records of one kind of some runs; see `Run.follow`."""
    if kind not in _KINDS:
        raise InputError(f"Expected one of {', '.join(_KINDS)} to follow, got {kind!r}.")
    if kind == LEDGER and (addresses := [reader.path for reader in readers if is_address(reader.path)]):
        raise InputError(
            f"Expected a run in a directory to follow its ledger, got {addresses[0]}, where only the last line of each "
            "ledger is stored: `ledgers()` returns it."
        )
    return _follow([(reader, reader.cursor(kind)) for reader in readers], kind, stop, seconds)


def _follow(cursors: Sequence[tuple[RunReader, Cursor]], kind: str, stop: StopEvent, seconds: float) -> Iterator[Any]:
    is_last = False
    while not is_last:
        is_last = stop.is_set()
        for reader, cursor in cursors:
            lines = decode_lines(cursor.read(), _decoder(reader, kind), reader.errors.report)
            records = (record for _, record in lines)
            yield from _with_late_scores(reader, records) if kind == ROLLOUTS else records
        if not is_last:
            stop.wait(seconds)


def _decoder(reader: RunReader, kind: str) -> Callable[[bytes], Any]:
    decoders: dict[str, Callable[[bytes], Any]] = {ROLLOUTS: decode_rollout, SCORES: reader.decode_score}
    return decoders.get(kind, decode_ledger)


def _with_late_scores(reader: RunReader, rollouts: Iterator[Rollout]) -> Iterator[Rollout]:
    """The rollouts with the scores that are written by now."""
    with LateScoreReader(reader) as scores:
        for batch in growing_batches(rollouts, _MAX_ROLLOUTS):
            late = scores.scores_of([rollout.id for rollout in batch])
            yield from (with_scores(rollout, late) for rollout in batch)
