"""Copies some groups of a run to a run of their own, so that every query works on them."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.table_schema import GROUP_COLUMNS, GROUP_ORDER, group_condition, sql_literal
from rolltrace.store.layout import FOLDERS, LEDGER, PLAIN_SUFFIX, ROLLOUTS, RUN_FILE, SCORES, encode_info, segment_name
from rolltrace.trace.codec import encode_rollout, encode_score
from rolltrace.trace.score import GroupKey

_WRITER = "excerpt"
_LOOKUP_BATCH = 100
"""How many groups one statement selects."""

Item = TypeVar("Item")


class RunSubset(msgspec.Struct, frozen=True, kw_only=True):
    """The selected groups of a run. Groups are taken whole, so that their members can be compared."""

    where: str | None
    """The condition that selected them."""
    keys: tuple[GroupKey, ...]
    """The groups, in the order of the run."""
    of_groups: int
    """How many groups have a rollout that fulfils the condition."""
    all_groups: int
    all_rollouts: int
    """How many rollouts the run has."""


def select_subset(run: Run, where: str | None = None, groups: int | None = None) -> RunSubset:
    """Select the groups with a rollout that fulfils `where`; at most `groups`, spread evenly over the run."""
    if groups is not None and groups < 1:
        raise InputError(f"Expected at least one group, got {groups}.")
    if where is not None:
        list(run.rollouts(where=where, limit=0))  # refuses anything but an expression over the columns
    condition = "" if where is None else f" and (\n{where}\n)"
    selected = f"select distinct {GROUP_COLUMNS} from {COUNTED_ROLLOUTS}{condition} order by {GROUP_ORDER}"
    keys = [GroupKey(*row) for row in run.sql(selected)]
    if not keys:
        where_text = "for which that is true" if where is not None else "in it"
        raise InputError(f"Expected a run with rollouts to report on, found none {where_text}: {run.path}.")
    counts = run.sql(f"select count(distinct ({GROUP_COLUMNS})), count(*) from {COUNTED_ROLLOUTS}").fetchone() or (0, 0)
    return RunSubset(
        where=where,
        keys=tuple(keys if groups is None else evenly_spaced(keys, groups)),
        of_groups=len(keys),
        all_groups=counts[0],
        all_rollouts=counts[1],
    )


def evenly_spaced(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` items, at even distances from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[place * (len(items) - 1) // max(most - 1, 1)] for place in range(most)]


def write_subset(run: Run, part: RunSubset, folder: Path) -> None:
    """Write the rollouts and scores of a subset as a run at `folder`."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    (folder / RUN_FILE).write_bytes(encode_info(run.info))
    for ledger in sorted((run.path / LEDGER).glob(f"*{PLAIN_SUFFIX}")):  # losses are those of the whole run
        shutil.copyfile(ledger, folder / LEDGER / ledger.name)
    with (
        (folder / ROLLOUTS / segment_name(_WRITER, 0)).open("wb") as rollouts,
        (folder / SCORES / segment_name(_WRITER, 0)).open("wb") as scores,
    ):
        for keys in _batches(part.keys):
            ids: list[str] = []
            for rollout in run.rollouts(where=group_condition(*keys)):
                rollouts.write(encode_rollout(rollout))
                ids.append(rollout.id)
            of_members = f"rollout in ({', '.join(map(sql_literal, ids))}) or " if ids else ""
            for score in run.scores(where=f"{of_members}(rollout is null and {group_condition(*keys)})"):
                scores.write(encode_score(score))


def selected_ids(run: Run, part: RunSubset) -> Iterator[str]:
    """The ids of the rollouts in the subset that fulfil its condition."""
    condition = "" if part.where is None else f" and (\n{part.where}\n)"
    for keys in _batches(part.keys):
        statement = f"select id from {COUNTED_ROLLOUTS}{condition} and {group_condition(*keys)}"
        yield from (id_ for (id_,) in run.sql(statement))


def _batches(keys: Sequence[GroupKey]) -> Iterator[Sequence[GroupKey]]:
    return (keys[first : first + _LOOKUP_BATCH] for first in range(0, len(keys), _LOOKUP_BATCH))
