"""What a regrade moved: flips, correlation, the order within groups, and the tasks and rollouts that change most."""

import msgspec

from rolltrace.query.regrade_scope import OLD_REWARD, RegradeScope
from rolltrace.query.table_schema import GROUP_COLUMNS
from rolltrace.trace.json_numbers import Float

SOLVED_AT = 0.5
"""A value of at least this counts as solved, unless another threshold is named."""
_TOLERANCE = 1e-9
"""Values that differ by less are the same: sums of the same numbers may differ in the last digits."""
_MAX_LISTED = 10
_MAX_PAIRED = 512
"""Groups with more members are left out of the comparison of orders, which looks at every pair."""


class MovedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose mean changed."""

    env: str
    task: str
    n: int
    old: Float
    new: Float


class MovedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout whose value changed."""

    id: str
    env: str
    task: str
    iteration: int
    group: str
    index: int | None
    old: Float
    new: Float


class GroupOrder(msgspec.Struct, frozen=True, kw_only=True):
    """How the order within groups changed. Only finite values count, and groups with two of them."""

    groups: int
    reordered: int
    """Groups in which a pair has the opposite order."""
    best_changed: int
    """Groups of which no best member is still a best one."""
    signal_lost: int
    """Groups whose old values differ and whose new ones are all the same: they no longer train anything."""
    signal_gained: int
    pairs: int
    """Pairs of members with different old values, in groups of at most 512."""
    pairs_reversed: int
    pairs_tied: int
    """Pairs whose new values are the same."""


class RegradeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Old against new. The old value of a rollout is its reward when it was graded."""

    scores: int
    """Rollouts in scope that have a score."""
    failed: int
    """Scores without a value."""
    compared: int
    """Rollouts with two finite values; the numbers below are about these."""
    old_mean: Float | None
    new_mean: Float | None
    moved: int
    """Rollouts whose value changed."""
    up: int
    down: int
    threshold: Float
    """From here on a value counts as solved."""
    flipped_up: int
    """Rollouts that count as solved now, and did not before."""
    flipped_down: int
    pearson: Float | None
    """The correlation of old and new values; None if one of them is constant."""
    spearman: Float | None
    """The correlation of their ranks."""
    order: GroupOrder
    errors: dict[str, int]
    """Why scores failed, the most frequent first, at most 10."""
    tasks: tuple[MovedTask, ...]
    """The tasks whose mean changed most, at most 10."""
    rollouts: tuple[MovedRollout, ...]
    """The rollouts that changed most, at most 10."""


_VALUE = f"{{'old': {OLD_REWARD}, 'new': value, 'error': error_type || ': ' || error_message}}"
_TOTALS = f"""
    with ranked as (
        select *, rank() over (order by old_value) + (count(*) over (partition by old_value) - 1) / 2 as old_rank,
            rank() over (order by new_value) + (count(*) over (partition by new_value) - 1) / 2 as new_rank
        from compared
    )
    select (select count(*) from every_score) as scores,
        (select count(*) from every_score where new_value is null) as failed,
        count(*) as compared, avg(old_value) as old_mean, avg(new_value) as new_mean,
        count(*) filter (abs(change) > {_TOLERANCE}) as moved,
        count(*) filter (change > {_TOLERANCE}) as up, count(*) filter (change < -{_TOLERANCE}) as down,
        count(*) filter (old_value < $threshold and new_value >= $threshold) as flipped_up,
        count(*) filter (old_value >= $threshold and new_value < $threshold) as flipped_down,
        if(stddev_pop(old_value) > 0 and stddev_pop(new_value) > 0, corr(old_value, new_value), null) as pearson,
        if(stddev_pop(old_rank) > 0 and stddev_pop(new_rank) > 0, corr(old_rank, new_rank), null) as spearman
    from ranked
"""
_GROUPS = f"""
    with members as (
        select *, max(old_value) over own as old_best, max(new_value) over own as new_best, count(*) over own as size
        from compared window own as (partition by {GROUP_COLUMNS})
    )
    select count(*) as groups, count(*) filter (not best_kept) as best_changed,
        count(*) filter (had_signal and not has_signal) as signal_lost,
        count(*) filter (has_signal and not had_signal) as signal_gained
    from (
        select bool_or(old_best - old_value <= {_TOLERANCE} and new_best - new_value <= {_TOLERANCE}) as best_kept,
            max(old_value) - min(old_value) > {_TOLERANCE} as had_signal,
            max(new_value) - min(new_value) > {_TOLERANCE} as has_signal
        from members where size >= 2 group by {GROUP_COLUMNS}
    )
"""
_PAIRS = f"""
    with members as (
        select {GROUP_COLUMNS}, old_value, new_value from compared
        qualify count(*) over (partition by {GROUP_COLUMNS}) <= {_MAX_PAIRED}
    ), pairs as (
        select {GROUP_COLUMNS}, a.new_value - b.new_value as change
        from members a join members b using ({GROUP_COLUMNS}) where a.old_value - b.old_value > {_TOLERANCE}
    )
    select count(*) as pairs, count(*) filter (change < -{_TOLERANCE}) as pairs_reversed,
        count(*) filter (abs(change) <= {_TOLERANCE}) as pairs_tied,
        count(distinct ({GROUP_COLUMNS})) filter (change < -{_TOLERANCE}) as reordered
    from pairs
"""
_ERRORS = f"""
    select left(failure, 200) as why, count(*) as n from every_score where failure is not null
    group by 1 order by n desc, why limit {_MAX_LISTED}
"""
_TASKS = f"""
    select env, task, count(*) as n, avg(old_value) as old, avg(new_value) as new from compared
    group by env, task having abs(old - new) > {_TOLERANCE} order by abs(old - new) desc, n desc, env, task
    limit {_MAX_LISTED}
"""
_ROLLOUTS = f"""
    select id, env, task, iteration, "group", "index", old_value as old, new_value as new from compared
    where abs(change) > {_TOLERANCE} order by abs(change) desc, id limit {_MAX_LISTED}
"""


def compare_scores(scope: RegradeScope, threshold: float = SOLVED_AT) -> RegradeReport:
    """Compare the scores of a regrade with the rewards that the rollouts had."""
    totals = _TOTALS.replace("$threshold", repr(float(threshold)))
    # One statement, so that scores and rollouts are joined once.
    [(numbers, groups, pairs, errors, tasks, rollouts)] = scope.select(f"""
        with every_score as materialized (
            select id, task, "index", {GROUP_COLUMNS}, s.value.old as old_value, s.value.new as new_value,
                s.value.error as failure
            from ({scope.rollouts}) r join ({scope.latest_scores(_VALUE)}) s on s.rollout = r.id where not retried
        ), compared as materialized (
            select *, new_value - old_value as change from every_score
            where isfinite(old_value) and isfinite(new_value)
        )
        select (select t from ({totals}) t), (select t from ({_GROUPS}) t), (select t from ({_PAIRS}) t),
            (select list(t) from ({_ERRORS}) t), (select list(t) from ({_TASKS}) t),
            (select list(t) from ({_ROLLOUTS}) t)
    """)
    return RegradeReport(
        **numbers,
        threshold=threshold,
        order=GroupOrder(**groups, **pairs),
        errors={row["why"]: row["n"] for row in errors or ()},
        tasks=tuple(MovedTask(**row) for row in tasks or ()),
        rollouts=tuple(MovedRollout(**row) for row in rollouts or ()),
    )
