"""Finds the rollouts that a name means in a run of any size, and counts what there is."""

from collections.abc import Mapping

import msgspec

from rolltrace.query.address import choose, unknown_name
from rolltrace.query.run import Run
from rolltrace.query.tables import literal

_MOST_CANDIDATES = 10_000
_MOST_SUGGESTED_FROM = 1_000
_COLUMNS = 'id, split, env, iteration, "group", index, attempt, session'
_GROUP_ADDRESS = "concat_ws('/', split, env, iteration, \"group\")"


class Head(msgspec.Struct, frozen=True):
    """Where a rollout stands."""

    id: str
    split: str
    env: str
    iteration: int
    group: str
    index: int
    attempt: int
    session: str


class Totals(msgspec.Struct, frozen=True):
    """How much there is of a run; of a group that was played again, the latest session counts."""

    rollouts: int
    """One per index of a group: the last attempt."""
    groups: int
    rewarded: int
    """How many have a finite reward."""
    mean_reward: float | None
    """Over those."""
    stop_reasons: Mapping[str, int]
    """The most frequent first."""
    earlier: int
    """Attempts that were tried again, and rollouts that a later session played again."""


def find_rollouts(run: Run, name: str) -> list[Head]:
    """The one rollout that `name` means, or all of the group that it means; see `address.choose`."""
    wanted, ending = literal(name), literal(f"/{name}")
    whole = f"{_GROUP_ADDRESS} || '/' || index"
    heads = _heads(
        run,
        f"""where id = {wanted} or starts_with(id, {wanted}) or ends_with(id, {wanted})
            or {whole} = {wanted} or ends_with({whole}, {ending})
            or {_GROUP_ADDRESS} = {wanted} or ends_with({_GROUP_ADDRESS}, {ending})
            limit {_MOST_CANDIDATES}""",
    )
    if heads:
        return choose(heads, name, run.path)
    count = (run.sql("select count(*) from every_rollout").fetchone() or (0,))[0]
    raise unknown_name(_heads(run, f"limit {_MOST_SUGGESTED_FROM}"), count, name, run.path)


def count_rollouts(run: Run) -> Totals:
    """What there is, in one look."""
    every, rollouts, groups, rewarded, mean = run.sql(
        """select (select count(*) from every_rollout), count(*),
            count(distinct (run, split, iteration, env, "group")), count(*) filter (isfinite(reward)),
            avg(reward) filter (isfinite(reward)) from rollouts where not retried"""
    ).fetchone() or (0, 0, 0, 0, None)
    reasons = run.sql(
        "select stop_reason, count(*) as n from rollouts where not retried group by 1 order by n desc, stop_reason"
    )
    return Totals(rollouts, groups, rewarded, mean, dict(reasons.fetchall()), every - rollouts)


def _heads(run: Run, condition: str) -> list[Head]:
    return [Head(*row) for row in run.sql(f"select {_COLUMNS} from every_rollout {condition}")]
