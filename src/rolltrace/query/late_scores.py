"""Reads the late scores about rollouts, some rollouts at a time, in the order that decides which of them counts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Self, TypeVar

from rolltrace.errors import RecordError, StorageError
from rolltrace.query.line_reader import READ_AHEAD_BYTES, LineReader
from rolltrace.query.score_order import in_score_order
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import PLAIN_SUFFIX
from rolltrace.store.read_errors import ReadError, ReadErrors, read_error_kind
from rolltrace.store.reader import RunReader
from rolltrace.trace.rollout import Rollout, Score

_MAX_AT_ONCE = 512

Item = TypeVar("Item")


class LateScoreReader:
    """The late scores of one run's rollouts; `ahead` is how much of a file is read at once."""

    def __init__(self, reader: RunReader, problems: ReadErrors, ahead: int = READ_AHEAD_BYTES) -> None:
        self._decode = reader.decode_score
        self._offsets = reader.id_index
        self._lines = LineReader(reader, ahead)
        self._problems = problems

    def scores_of(self, rollouts: Sequence[str]) -> Mapping[str, Sequence[Score]]:
        """By rollout, the scores about it that are written by now, the latest last."""
        found, wrong = self._read(self._offsets.find_scores(rollouts))
        if wrong:  # the index is of other files, or a line was damaged since: look for them again
            for rollout in wrong:
                self._offsets.invalidate(rollout)
            found, _ = self._read(self._offsets.find_scores(rollouts))
        return {rollout: in_score_order(scores) for rollout, scores in found.items()}

    def with_late_scores(self, rollout: Rollout) -> Rollout:
        """The rollout with its scores."""
        return with_scores(rollout, self.scores_of([rollout.id]))

    def close(self) -> None:
        """Close the file that is open."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(
        self, places: Mapping[str, Sequence[LineLocation]]
    ) -> tuple[dict[str, list[tuple[LineLocation, Score]]], set[str]]:
        """The scores at these places, and the rollouts of which a place has another line, or a damaged one."""
        found: dict[str, list[tuple[LineLocation, Score]]] = {}
        wrong: set[str] = set()
        for place, rollout in sorted((place, rollout) for rollout, own in places.items() for place in own):
            try:
                score = self._decode(self._lines.line(place))
            except FileNotFoundError:
                wrong.add(rollout)
            except OSError as error:
                reason = error.strerror or error
                raise StorageError(
                    f"Cannot read {place.file}: {reason}. The data may still be intact; retry."
                ) from error
            except RecordError as error:
                self._problems.report(
                    ReadError(f"{place.file}{PLAIN_SUFFIX}", place.offset, str(error), kind=read_error_kind(error))
                )
                wrong.add(rollout)
            else:
                if score.rollout == rollout:
                    found.setdefault(rollout, []).append((place, score))
                else:
                    wrong.add(rollout)
        return found, wrong


def with_scores(rollout: Rollout, scores: Mapping[str, Sequence[Score]]) -> Rollout:
    """The rollout with those of these scores that are about it."""
    own = scores.get(rollout.id)
    return rollout.with_scores(own) if own else rollout


def growing_batches(items: Iterable[Item], most: int = _MAX_AT_ONCE) -> Iterator[list[Item]]:
    """The items, a few at first and then many at once: the first is there soon, and a million do not take long."""
    left, size = iter(items), 8
    while some := list(islice(left, size)):
        yield some
        size = min(2 * size, most)
