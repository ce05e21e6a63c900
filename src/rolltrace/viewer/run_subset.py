"""Copies some groups of a run to a run of their own, so that every query works on them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.evenly_spaced import evenly_spaced, select_evenly_spaced
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.table_schema import GROUP_COLUMNS, GROUP_ORDER, group_condition, sql_literal
from rolltrace.store.layout import FOLDERS, LEDGER, ROLLOUTS, RUN_FILE, SCORES, encode_info, ledger_name, segment_name
from rolltrace.store.ledger import encode_ledger
from rolltrace.trace.codec import encode_rollout, encode_score
from rolltrace.trace.score import GroupKey
from rolltrace.viewer.text_limit import fair_limit, shorten_texts

DEFAULT_ROLLOUTS = 1_000
"""How many rollouts a subset holds at most unless the number of groups is given."""
MAX_ROLLOUTS = 10_000
"""How many it holds at most if that number is given."""
_COMPLETE_MEMBERS = 256
"""Groups of up to so many rollouts are complete: rather than cutting them, fewer of them are taken."""
MAX_BYTES = 32 << 20
MAX_LINE_BYTES = 2 << 20
"""About how large all lines of a subset may be, and each of them; the longest texts are shortened until they are."""
_MAX_READ_BYTES = 1 << 30
"""How many bytes of lines are read for it."""
_WRITER = "excerpt"
_LOOKUP_BATCH = 100
"""How many groups one statement selects."""
_ID_BATCH = 1_000

Item = TypeVar("Item")
Progress = Callable[[int, int, str], None]
"""Called for each rollout with how many are done, of how many, and what is done to them."""


class RunSubset(msgspec.Struct, frozen=True, kw_only=True):
    """The selected groups of a run. They are complete, so that their members can be compared, unless they are huge."""

    where: str | None
    """The condition that selected them."""
    keys: tuple[GroupKey, ...]
    """The groups, in the order of the run."""
    of_groups: int
    """How many groups have a rollout that fulfils the condition."""
    all_groups: int
    all_rollouts: int
    """How many rollouts the run has."""
    max_members: int
    """A group with more rollouts is cut to so many: the best, the worst, and others at even distances between them."""
    cut_groups: tuple[GroupKey, ...]
    """The groups that are cut."""
    cut_rollouts: int
    """How many rollouts those have."""


class WrittenSubset(msgspec.Struct, frozen=True):
    """What was written of a subset."""

    ids: list[str]
    """Its rollouts."""
    shortened: int
    """How many of them have texts that were shortened."""
    unread: int
    """How many were left out because their lines are too long to be read for a subset."""


def select_subset(run: Run, where: str | None = None, groups: int | None = None) -> RunSubset:
    """Select the groups with a rollout that fulfils `where`; at most `groups`, spread evenly over the run."""
    if groups is not None and groups < 1:
        raise InputError(f"Expected at least one group, got {groups}.")
    if where is not None:
        list(run.rollouts(where=where, limit=0))  # refuses anything but an expression over the columns
    condition = "true" if where is None else f"(\n{where}\n)"
    sizes = f"""
        select {GROUP_COLUMNS}, count(*) from rollouts group by {GROUP_COLUMNS}
        having coalesce(bool_or(not retried and {condition}), false) order by {GROUP_ORDER}
    """
    found = [(GroupKey(*row[:-1]), row[-1]) for row in run.sql(sizes)]
    if not found:
        where_text = "for which that is true" if where is not None else "in it"
        raise InputError(f"Expected a run with rollouts to report on, found none {where_text}: {run.path}.")
    chosen, max_members = _fitting(found, groups)
    cut = {key: size for key, size in chosen if size > max_members}
    counts = run.sql(f"select count(distinct ({GROUP_COLUMNS})), count(*) from {COUNTED_ROLLOUTS}").fetchone() or (0, 0)
    return RunSubset(
        where=where,
        keys=tuple(key for key, _ in chosen),
        of_groups=len(found),
        all_groups=counts[0],
        all_rollouts=counts[1],
        max_members=max_members,
        cut_groups=tuple(cut),
        cut_rollouts=sum(cut.values()),
    )


def _fitting(found: Sequence[tuple[GroupKey, int]], groups: int | None) -> tuple[list[tuple[GroupKey, int]], int]:
    """As many groups as fit, and how many members each may have."""
    limit = DEFAULT_ROLLOUTS if groups is None else MAX_ROLLOUTS
    count = min(len(found), groups or len(found))
    while True:
        chosen, max_members = evenly_spaced(found, count), max(_COMPLETE_MEMBERS, limit // count)
        total = sum(min(size, max_members) for _, size in chosen)
        if total <= limit:
            return chosen, max_members
        count = max(1, count * limit // total)


def write_subset(run: Run, part: RunSubset, folder: Path, on_progress: Progress) -> WrittenSubset:
    """Write the rollouts and scores of a subset as a run at `folder`."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    (folder / RUN_FILE).write_bytes(encode_info(run.info))
    for number, ledger in enumerate(run.ledgers().values()):  # losses are those of the whole run
        (folder / LEDGER / ledger_name(f"{_WRITER}{number}", 0)).write_bytes(encode_ledger(ledger))
    lengths = _line_lengths(run, part)
    total = sum(lengths.values())
    ids = evenly_spaced(list(lengths), max(1, len(lengths) * _MAX_READ_BYTES // max(total, _MAX_READ_BYTES)))
    most = min(MAX_LINE_BYTES, fair_limit((lengths[one] for one in ids), MAX_BYTES))
    written: list[str] = []
    shortened = 0
    with (
        (folder / ROLLOUTS / segment_name(_WRITER, 0)).open("wb") as rollouts,
        (folder / SCORES / segment_name(_WRITER, 0)).open("wb") as scores,
    ):
        for batch in _batches(ids, _ID_BATCH):
            listed = ", ".join(map(sql_literal, batch))
            for rollout in run.rollouts(where=f"id in ({listed})"):
                short = rollout if lengths[rollout.id] <= most else shorten_texts(rollout, most)
                shortened += short is not rollout
                rollouts.write(encode_rollout(short))
                written.append(rollout.id)
                on_progress(len(written), len(ids), "reading")
            scores.writelines(_encode_scores(run, f"rollout in ({listed})", most))
        for keys in _batches(part.keys, _LOOKUP_BATCH):
            scores.writelines(_encode_scores(run, f"rollout is null and {group_condition(*keys)}", most))
    return WrittenSubset(written, shortened, len(lengths) - len(ids))


def _encode_scores(run: Run, where: str, most: int) -> Iterator[bytes]:
    for score in run.scores(where=where):
        line = encode_score(score)
        yield line if len(line) <= most else encode_score(shorten_texts(score, most))


def selected_ids(run: Run, where: str, ids: Sequence[str]) -> set[str]:
    """Those of the rollouts that fulfil a condition."""
    return {
        id_
        for batch in _batches(ids, _ID_BATCH)
        for (id_,) in run.sql(
            f"select id from {COUNTED_ROLLOUTS} and (\n{where}\n) and id in ({', '.join(map(sql_literal, batch))})"
        )
    }


def _line_lengths(run: Run, part: RunSubset) -> dict[str, int]:
    """The length of each rollout's line, by id, in the order of the groups."""
    lengths: dict[str, int] = {}
    for keys in _batches(part.keys, _LOOKUP_BATCH):
        cut = [key for key in keys if key in part.cut_groups]
        complete = [key for key in keys if key not in part.cut_groups]
        if complete:
            lengths |= _lengths_of(run, group_condition(*complete))
        for key in cut:
            for ids in _batches(_spread_members(run, key, part), _ID_BATCH):
                lengths |= _lengths_of(run, f"id in ({', '.join(map(sql_literal, ids))})")
    return lengths


def _lengths_of(run: Run, where: str) -> dict[str, int]:
    return {id_: location.length for id_, location in run.locations("rollouts", where).items()}


def _spread_members(run: Run, key: GroupKey, part: RunSubset) -> list[str]:
    """The members of a cut group: as many as may be that fulfil the condition, then others."""
    ids: list[str] = []
    condition = "true" if part.where is None else f"coalesce((\n{part.where}\n), false)"
    for wanted in (condition, f"not {condition}")[: 1 if part.where is None else 2]:
        members = f"{COUNTED_ROLLOUTS} and {group_condition(key)} and {wanted}"
        statement = select_evenly_spaced("id", members, part.max_members - len(ids))
        ids += [id_ for id_, _ in run.sql(statement)]
    return ids


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[first : first + size] for first in range(0, len(items), size))
