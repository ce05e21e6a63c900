"""A part of a run as a run of its own, so that every question about it is answered as one about any run."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.table_schema import GROUP_ORDER, sql_literal
from rolltrace.store.layout import FOLDERS, LEDGER, PLAIN_SUFFIX, ROLLOUTS, RUN_FILE, SCORES, encode_info, segment_name
from rolltrace.trace.codec import encode_rollout, encode_score
from rolltrace.trace.score import GroupKey

_KEY = 'split, iteration, env, "group"'
_WRITER = "excerpt"
_LOOKUP_BATCH = 100
"""How many groups one statement reads."""

Item = TypeVar("Item")


class RunSubset(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run was selected. Groups are taken whole, so that their members can be compared."""

    where: str | None
    """What was asked for."""
    keys: tuple[GroupKey, ...]
    """The groups, in the order of the run."""
    of_groups: int
    """How many groups have a rollout that was asked for."""
    all_groups: int
    all_rollouts: int
    """How many the run has of each."""


def select_subset(run: Run, where: str | None = None, groups: int | None = None) -> RunSubset:
    """The groups with a rollout that fulfils `where`; of more than `groups`, as many, spread evenly over the run."""
    if groups is not None and groups < 1:
        raise InputError(f"Expected at least one group, got {groups}.")
    if where is not None:
        list(run.rollouts(where=where, limit=0))  # refuses what is no expression over the columns
    condition = "" if where is None else f" and (\n{where}\n)"
    asked = run.sql(f"select distinct {_KEY} from {COUNTED_ROLLOUTS}{condition} order by {GROUP_ORDER}").fetchall()
    if not asked:
        told = "for which that is true" if where is not None else "in it"
        raise InputError(f"Expected a run with rollouts to report on, found none {told}: {run.path}.")
    counts = run.sql(f"select count(distinct ({_KEY})), count(*) from {COUNTED_ROLLOUTS}").fetchone() or (0, 0)
    chosen = asked if groups is None else evenly_spaced(asked, groups)
    return RunSubset(
        where=where,
        keys=tuple(GroupKey(*row) for row in chosen),
        of_groups=len(asked),
        all_groups=counts[0],
        all_rollouts=counts[1],
    )


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many, evenly from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]


def write_subset(run: Run, part: RunSubset, folder: Path) -> None:
    """Write the rollouts and scores of a part as a run at `folder`."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    (folder / RUN_FILE).write_bytes(encode_info(run.info))
    for ledger in sorted(
        (run.path / LEDGER).glob(f"*{PLAIN_SUFFIX}")
    ):  # whether anything was lost is told of the whole run
        shutil.copyfile(ledger, folder / LEDGER / ledger.name)
    with (
        (folder / ROLLOUTS / segment_name(_WRITER, 0)).open("wb") as rollouts,
        (folder / SCORES / segment_name(_WRITER, 0)).open("wb") as scores,
    ):
        for some in _some(part.keys):
            ids: list[str] = []
            for rollout in run.rollouts(where=_among(some)):
                rollouts.write(encode_rollout(rollout))
                ids.append(rollout.id)
            of_members = f"rollout in ({', '.join(map(sql_literal, ids))}) or " if ids else ""
            for score in run.scores(where=f"{of_members}(rollout is null and {_among(some)})"):
                scores.write(encode_score(score))


def selected_ids(run: Run, part: RunSubset) -> Iterator[str]:
    """The rollouts of the part that were asked for."""
    condition = "" if part.where is None else f" and (\n{part.where}\n)"
    for some in _some(part.keys):
        yield from (row[0] for row in run.sql(f"select id from {COUNTED_ROLLOUTS}{condition} and {_among(some)}"))


def _some(keys: Sequence[GroupKey]) -> Iterator[Sequence[GroupKey]]:
    return (keys[first : first + _LOOKUP_BATCH] for first in range(0, len(keys), _LOOKUP_BATCH))


def _among(keys: Sequence[GroupKey]) -> str:
    """The condition that a row is of one of these groups."""
    listed = ", ".join(
        f"({sql_literal(key.split)}, {key.iteration}::bigint, {sql_literal(key.env)}, {sql_literal(key.group)})"
        for key in keys
    )
    return f"({_KEY}) in ({listed})"
