"""Follows runs while they grow: the records that are there, and then those that come."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rolltrace.errors import InputError, RecordError
from rolltrace.query.late_scores import LateScoreReader, growing_batches, with_scores
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import LEDGER, PLAIN_SUFFIX, ROLLOUTS, SCORES
from rolltrace.store.ledger import decode_ledger
from rolltrace.store.read_errors import ReadError, ReadErrors, read_error_kind
from rolltrace.store.reader import RunReader, StopEvent
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.rollout import Rollout

__all__ = ["StopEvent", "follow"]

_MAX_ROLLOUTS = 32
"""How many rollouts are in memory while the scores about them are read."""
_KINDS = (ROLLOUTS, SCORES, LEDGER)


def follow(
    readers: Sequence[RunReader], kind: str, stop: StopEvent, seconds: float, problems: ReadErrors
) -> Iterator[Any]:
    """The records of one kind of some runs; see `Run.follow`."""
    if kind not in _KINDS:
        raise InputError(f"Expected one of {', '.join(_KINDS)} to follow, got {kind!r}.")
    return _follow([(reader, reader.cursor(kind)) for reader in readers], kind, stop, seconds, problems)


def _follow(
    cursors: Sequence[tuple[RunReader, Cursor]], kind: str, stop: StopEvent, seconds: float, problems: ReadErrors
) -> Iterator[Any]:
    is_over = False
    while not is_over:
        is_over = stop.is_set()
        for reader, cursor in cursors:
            records = _records(cursor, _decoder(reader, kind), problems)
            yield from _scored(reader, records, problems) if kind == ROLLOUTS else records
        if not is_over:
            stop.wait(seconds)


def _decoder(reader: RunReader, kind: str) -> Callable[[bytes], Any]:
    decoders: dict[str, Callable[[bytes], Any]] = {ROLLOUTS: decode_rollout, SCORES: reader.decode_score}
    return decoders.get(kind, decode_ledger)


def _records(cursor: Cursor, decode: Callable[[bytes], Any], problems: ReadErrors) -> Iterator[Any]:
    """The records that are new."""
    for place, line in cursor.read():
        try:
            record = decode(line)
        except RecordError as error:
            problems.report(
                ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, str(error), kind=read_error_kind(error))
            )
        else:
            yield record


def _scored(reader: RunReader, rollouts: Iterator[Rollout], problems: ReadErrors) -> Iterator[Rollout]:
    """The rollouts with the scores that are written by now."""
    with LateScoreReader(reader, problems) as scores:
        for some in growing_batches(rollouts, _MAX_ROLLOUTS):
            late = scores.scores_of([rollout.id for rollout in some])
            yield from (with_scores(rollout, late) for rollout in some)
