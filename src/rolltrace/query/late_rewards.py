"""Stores the rewards from late scores with the rollouts, so that statements need not join them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.query.part_writer import copy_to_parquet, parquet_source
from rolltrace.query.score_order import select_latest_rewards
from rolltrace.store.layout import ROLLOUTS
from rolltrace.store.parts import ParquetPart, Part, newer_scores

if TYPE_CHECKING:
    import duckdb

MAX_JOINED = 8
"""If one of so many rollouts has a late reward, these are stored with the rollouts; fewer are joined by statements."""
_PARTS_AT_ONCE = 8
"""The rewards of so many parts are looked up, and held in memory, at once."""


class LateRewards:
    """Makes parts of one run's rollouts that include late rewards."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", new_path: Callable[[str], Path]) -> None:
        self._connection = connection
        self._new_path = new_path
        self._few: set[tuple[tuple[Path, ...], Path]] = set()
        """Files of scores, and a part of rollouts that has few rewards of them."""

    def missing(
        self, parts: Iterable[Part], scores: Sequence[ParquetPart], covered: Mapping[str, int], *, also_few: bool
    ) -> dict[tuple[Path, ...], list[Part]]:
        """The parts that may lack many rewards, by the files of scores with these. `covered`: how far scores were read.

        If only few rollouts have late rewards, to store them costs more than it saves: they count only if `also_few`.
        """
        by_scores: dict[tuple[Path, ...], list[Part]] = {}
        for part in parts:
            newer = tuple(one.path for one in newer_scores(part.info, scores))
            if not newer or not part.info.stats.rows:
                part.info.scores_covered = dict(covered)
            elif also_few or (newer, part.path) not in self._few:
                by_scores.setdefault(newer, []).append(part)
        rewards = {one.path: one.info.stats.rewards for one in scores}
        return {
            files: own
            for files, own in by_scores.items()
            if also_few or sum(rewards[file] for file in files) >= _enough(own)
        }

    def store(
        self, missing: Mapping[tuple[Path, ...], list[Part]], covered: Mapping[str, int], *, also_few: bool
    ) -> Iterator[tuple[Part, Part]]:
        """Each part that lacks rewards with a new one that has them."""
        for files, parts in missing.items():
            for first in range(0, len(parts), _PARTS_AT_ONCE):
                own = parts[first : first + _PARTS_AT_ONCE]
                if self._create_late(files, own) >= _enough(own) or also_few:
                    yield from ((part, self._with_rewards(part, covered)) for part in own)
                else:
                    self._few |= {(files, part.path) for part in own}

    def _create_late(self, scores: Iterable[Path], parts: Sequence[Part]) -> int:
        """Create a table of the rewards from these scores for the rollouts of some parts; returns their number."""
        rollouts = parquet_source(part.table(ROLLOUTS).path for part in parts)
        own = f"(from {parquet_source(scores)} s semi join {rollouts} r on r.id = s.rollout)"
        stored = [part.table(ROLLOUTS).path for part in parts if part.info.scores_covered]
        latest = select_latest_rewards(own, parquet_source(stored) if stored else None)
        [(count,)] = self._connection.execute(f"create or replace temp table late as {latest}").fetchall()
        return int(count)

    def _with_rewards(self, part: Part, covered: Mapping[str, int]) -> Part:
        """The rollouts of a part with the rewards of the table."""
        path = self._new_path(ROLLOUTS)
        path.mkdir()
        query = f"""
            select r.* replace (
                case when late.rollout is null then r.reward else late.value end as reward,
                coalesce(late.reward_order, r.reward_order) as reward_order
            ) from {parquet_source([part.table(ROLLOUTS).path])} r left join late on late.rollout = r.id
        """
        copy_to_parquet(self._connection, query, path / f"{ROLLOUTS}.parquet")
        return Part(path, msgspec.structs.replace(part.info, scores_covered=dict(covered), digests={}))


def _enough(parts: Iterable[Part]) -> float:
    return sum(part.info.stats.rows[ROLLOUTS] for part in parts) / MAX_JOINED
