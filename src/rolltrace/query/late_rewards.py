"""The rewards from late scores: many are stored with the rollouts, so that statements need not join them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rolltrace.query.part_writer import copy_to_parquet, in_batches, parquet_source
from rolltrace.query.score_order import select_latest_scores
from rolltrace.store.layout import ROLLOUTS
from rolltrace.store.parts import ParquetPart, Part

if TYPE_CHECKING:
    import duckdb

AnyPart = TypeVar("AnyPart", Part, ParquetPart)
ByScores = dict[tuple[Path, ...], list[Part]]
"""Parts of rollouts by the files of scores whose rewards they lack."""

PARTS_AT_ONCE = 8
"""The rewards of so many parts are looked up, and held in memory, at once."""


class LateRewards:
    """Makes parts of one run's rollouts that include late rewards."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", new_path: Callable[[str], Path]) -> None:
        self._connection = connection
        self._new_path = new_path
        self.min_share = 1 / 8
        """The share of rollouts with late rewards from which on these are stored; fewer are joined by statements."""
        self._few: set[tuple[tuple[Path, ...], Path]] = set()
        """Files of scores, and a part of rollouts that has few rewards of them."""

    def missing(self, parts: Iterable[Part], scores: Sequence[ParquetPart], covered: Mapping[str, int]) -> ByScores:
        """The parts that may lack many rewards, by the files of scores with these.

        To store few rewards costs more than it saves. Parts that lack none are marked as up to date with `covered`,
        which says how far scores were read.
        """
        rewards = {one.path: one.info.stats.rewards for one in scores}
        missing: ByScores = {}
        for files, own in by_newer_scores(parts, scores).items():
            for part in own:
                if not files or not part.tables:
                    part.info.scores_covered = dict(covered)
            lacking = [part for part in own if part.tables and (files, part.path) not in self._few]
            if files and lacking and sum(rewards[file] for file in files) >= self._enough(lacking):
                missing[files] = lacking
        return missing

    def store(self, missing: ByScores, covered: Mapping[str, int]) -> Iterator[tuple[Part, Part]]:
        """Each part that lacks rewards with a new one that has them."""
        for files, parts in missing.items():
            for own in in_turns(parts):
                if self._create_late(files, own) >= self._enough(own):
                    yield from ((part, self._with_rewards(part, covered)) for part in own)
                else:
                    self._few |= {(files, part.path) for part in own}

    def _enough(self, parts: Iterable[Part]) -> float:
        return sum(part.info.stats.rows[ROLLOUTS] for part in parts) * self.min_share

    def _create_late(self, scores: Iterable[Path], parts: Sequence[Part]) -> int:
        """Create a table of the rewards from these scores for the rollouts of some parts; returns their number."""
        latest = select_late_rewards(scores, [part.table(ROLLOUTS) for part in parts])
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


def by_newer_scores(parts: Iterable[AnyPart], scores: Sequence[ParquetPart]) -> dict[tuple[Path, ...], list[AnyPart]]:
    """Parts of rollouts by the files of scores with rewards that they do not include yet, which may be none."""
    rewards = [one for one in scores if one.info.stats.rewards]
    by_scores: dict[tuple[Path, ...], list[AnyPart]] = {}
    for part in parts:
        known = part.info.scores_covered
        newer = [one for one in rewards if any(end > known.get(file, 0) for file, (_, end) in one.info.ranges.items())]
        by_scores.setdefault(tuple(one.path for one in newer), []).append(part)
    return by_scores


def in_turns(parts: Sequence[AnyPart]) -> list[list[AnyPart]]:
    """Some parts at a time, because each late reward takes memory while it is looked up."""
    return in_batches(parts, lambda _: 1, PARTS_AT_ONCE)


def select_late_rewards(scores: Iterable[Path], rollouts: Sequence[ParquetPart]) -> str:
    """SQL for the rewards of the rollouts in some parts, from scores that these parts do not include yet."""
    ids = parquet_source(part.path for part in rollouts)
    own = f"(from {parquet_source(scores)} s semi join {ids} r on r.id = s.rollout)"
    stored = [part.path for part in rollouts if part.info.scores_covered]
    return select_latest_scores(own, "reward", stored_rollouts=parquet_source(stored) if stored else None)
