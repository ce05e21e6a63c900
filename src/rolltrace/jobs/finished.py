"""Which groups of a run are finished, as its records say."""

from typing import NamedTuple

from rolltrace.jobs.plan import Plan
from rolltrace.query.run import Run
from rolltrace.query.table_schema import CANCELLED, INTERRUPTED_SCORE
from rolltrace.rollout.strategies import RETRIED_LAYERS

_GROUPS = f"""
    select iteration, env, "group",
        count(*) as members,
        count(distinct "index") as indexes,
        max("index") + 1 as places,
        count(distinct session) as sessions,
        count(*) filter ({CANCELLED}) as cancelled,
        count(*) filter (status = 'ok' and line_reward is null and graded.rollout is null) as ungraded,
        count(*) filter (status = 'error' and list_contains($retried, error_layer) and attempt < $retries) as to_retry
    from rollouts left join (
        select distinct rollout from scores where name = 'reward' and not {INTERRUPTED_SCORE}
    ) graded on graded.rollout = rollouts.id
    where split = $split and not retried
    group by all
"""  # noqa: S608 - the conditions are constants
"""What the run shows of each group: of superseded rollouts and earlier attempts, nothing.

Stricter than `FINISHED`: what the runner played has a reward or a score, so that one without both is not graded.
"""


class RecordedGroup(NamedTuple):
    """What a run has of one group."""

    members: int
    is_finished: bool
    """Whether each of these was played to its end in one session, and graded where the group is graded."""


RecordedGroups = dict[tuple[str, str], RecordedGroup]
"""What a run has of the groups of one iteration, by env and name."""


def read_groups(run: Run, plan: Plan) -> dict[int, RecordedGroups]:
    """What a run has of the groups of its plan, by iteration."""
    found: dict[int, RecordedGroups] = {}
    rules = {"retried": [layer.value for layer in RETRIED_LAYERS], "retries": plan.retries}
    for row in run.sql(_GROUPS, {"split": plan.split, **rules}).dicts():
        is_whole = row["members"] == row["indexes"] == row["places"] and row["sessions"] == 1
        is_finished = is_whole and not (row["cancelled"] or row["ungraded"] or row["to_retry"])
        groups = found.setdefault(row["iteration"], {})
        groups[row["env"], row["group"]] = RecordedGroup(row["members"], is_finished)
    return found
