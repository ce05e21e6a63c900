"""Audits of the values of rewards: within their range, recorded as numbers, and the same for the same response."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, audit
from rolltrace.check.audit_tables import AuditTables, scope_address
from rolltrace.check.table_source import Row
from rolltrace.query.table_schema import sql_literal

_TOLERANCE = 1e-6
"""The relative error of a loop that adds in 32 bits."""
_MAX_PLACES = 100
"""How many names of values are told apart."""


@audit(
    Severity.ERROR,
    "A reward is outside the range that was declared for its env. A bonus is paid twice, a scale is wrong, or the "
    "grader returned something else than its score; one such number dominates its batch.",
    "Look at the terms of these rollouts. If the range is wrong, correct `reward_range`.",
    input=AuditInput.TABLES,
)
def reward_out_of_range(tables: AuditTables) -> Iterator[Finding]:
    """Every reward is within the range that the settings, or else the env's group builder, declare."""
    question = """
        select split, env, reward_min, reward_max, count(*) as n, min(reward) as low, max(reward) as high
        from rollouts where isfinite(reward) group by split, env, reward_min, reward_max order by all
    """
    tables.skip("no range of rewards is declared")
    for row in tables.rows(question):
        declared = tables.settings.range_of(row["env"])
        low, high = declared or (row["reward_min"], row["reward_max"])
        if low is None or high is None:
            continue
        tables.note = None
        allowed = _TOLERANCE * max(1.0, *(abs(bound) for bound in (low, high) if math.isfinite(bound)), 0.0)
        if row["low"] < low - allowed or row["high"] > high + allowed:
            bounds = low - allowed, high + allowed
            yield from _outside(tables, row, (low, high), bounds, by_env=declared is None)


def _outside(
    tables: AuditTables, row: Row, declared: tuple[float, float], bounds: tuple[float, float], *, by_env: bool
) -> Iterator[Finding]:
    # What a builder declares is what its env gives; the runner may charge more for limits.
    own = "and steps > 0 and id not in (select rollout from steps where env_reward is distinct from reward)"
    stated = ("is null" if row[name] is None else f"= '{row[name]!r}'::double" for name in ("reward_min", "reward_max"))
    same_range = "and reward_min {} and reward_max {}".format(*stated)
    question = f"""
        select count(*) as wrong, min(id, {MAX_EXAMPLES}) as ids, arg_min(reward, id) as reward from rollouts
        where split = {sql_literal(row["split"])} and env = {sql_literal(row["env"])} {same_range}
            and isfinite(reward) and (reward < '{bounds[0]!r}'::double or reward > '{bounds[1]!r}'::double)
            {own if by_env else ""}
    """
    [found] = tables.rows(question)
    if found["wrong"]:
        low, high = declared
        message = (
            f"expected rewards from {low:.6g} to {high:.6g}, {found['wrong']} of {row['n']} are outside; "
            f"the first is {found['reward']:.6g}"
        )
        data = {"count": found["wrong"], "of": row["n"], "low": row["low"], "high": row["high"]}
        yield Finding(message, tuple(found["ids"]), scope_address(row), f"{low:g}..{high:g}", data=data)


_TEXT = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*%?\s*", re.IGNORECASE)
_REWARD_NAME = re.compile(r"reward|score|bonus|penalt|advantage", re.IGNORECASE)
_MOVED = "reward_data."
"""What the name of a value begins with that was in `reward_data` and is not a number."""
_HAS_TEXT = r"""'"(reward_data\.|[^"]*(reward|score|bonus|penalt|advantage)[^"]*"\s*:\s*"\s*[-+.]?\d)', 'i'"""


@audit(
    Severity.WARNING,
    'A number was recorded as text, such as "0.500", or as something else that is not a number. It is rounded, and no '
    "mean, plot or audit of the term has it.",
    "Record the raw number in `reward_data`; format numbers only where they are shown.",
    input=AuditInput.TABLES,
)
def reward_as_text(tables: AuditTables) -> Iterator[Finding]:
    """Rewards and their terms are recorded as numbers, not as text."""
    question = f"""
        select split, env, rollout, 'steps.extra' as place, extra::varchar as value from steps
        where regexp_matches(extra::varchar, {_HAS_TEXT})
        union all
        select split, env, rollout, 'steps.env_state', env_state::varchar from steps
        where regexp_matches(env_state::varchar, {_HAS_TEXT})
        union all
        select split, env, id, 'grade.extra', grade_extra::varchar from rollouts
        where regexp_matches(grade_extra::varchar, {_HAS_TEXT})
    """
    places: dict[tuple[str, str, str], tuple[list[str], Any]] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for row in tables.rows(question):
        for name, value in _texts(row["value"]):
            key = row["split"], row["env"], f"{row['place']}.{name}"
            if key in places or len(places) < _MAX_PLACES:
                ids, _ = places.setdefault(key, ([], value))
                counts[key] = counts.get(key, 0) + 1
                if len(ids) < MAX_EXAMPLES and row["rollout"] not in ids:
                    ids.append(row["rollout"])
    for key, (ids, value) in sorted(places.items()):
        split, env, place = key
        message = f"expected a number, {place} is {_shown(value)} in {counts[key]} records"
        yield Finding(message, tuple(ids), f"{split}/{env}", place, data={"count": counts[key], "value": _shown(value)})


def _texts(encoded: str) -> Iterator[tuple[str, Any]]:
    """The values of a free-form map that should be numbers, by name."""
    values = json.loads(encoded)
    moved = values.get("non_numeric")
    for name, value in {**values, **(moved if isinstance(moved, dict) else {})}.items():
        if name.startswith(_MOVED):
            yield name, value
        elif isinstance(value, str) and len(value) < 40 and _REWARD_NAME.search(name) and _TEXT.fullmatch(value):
            yield name[:80], value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"


# Graded by no model, by no comparison with others, and not clamped by a limit.
_SAME_RESPONSES = """
    with responses as (
        select rollout, termination, hash(response, raw) as response from steps
        where response <> '' and env_reward = reward
    ), contexts as (
        select id, reward, hash(
            split, env, task, stop_reason, task_data::varchar, env_args::varchar, grade_reward is null
        ) as context
        from rollouts
        where steps = 1 and status = 'ok' and calls = 0 and seat is null
            and isfinite(reward) and reward = line_reward and unclamped_reward is null
    ), answers as (
        select id, reward, hash(context, termination, response) as same from contexts join responses on rollout = id
    ), repeated as (
        select same from answers
        group by same having max(reward) - min(reward) > 1e-6 * greatest(1, max(abs(reward)))
    )
"""


@audit(
    Severity.WARNING,
    "The same response to the same prompt has different rewards, although no model graded it. The grader is not "
    "deterministic, was changed during the run, or rewards belong to other rollouts.",
    "Grade one of these responses twice. Look for random numbers, time-outs and global state in the grader.",
    input=AuditInput.TABLES,
)
def inconsistent_rewards(tables: AuditTables) -> Iterator[Finding]:
    """The same response to the same prompt of a task has the same reward, unless a model graded it."""
    if not any(tables.rows(f"{_SAME_RESPONSES} select 1 from repeated limit 1")):
        return
    question = f"""
        {_SAME_RESPONSES}, suspects as (
            select a.same, r.split, r.env, r.task, r.id, r.reward
            from answers a semi join repeated using (same) join rollouts r on r.id = a.id
        ), prompts as (
            select m.rollout, bit_xor(hash(m.position, m.role, m.content, m.parts)) as prompt
            from messages m where m.step is null and m.rollout in (select id from suspects) group by m.rollout
        ), same as (
            select split, env, task, any_value(reward) as example, min(reward) as low, max(reward) as high,
                list(id order by id) as ids
            from suspects join prompts p on p.rollout = id
            group by split, env, task, same, prompt
            having high - low > 1e-6 * greatest(1, max(abs(reward)))
        )
        select split, env, count(*) as n, count(distinct task) as tasks, arg_min(low, task) as low,
            arg_min(high, task) as high, min(task) as task, flatten(list(ids[:{MAX_EXAMPLES}] order by task)) as ids
        from same group by split, env order by all
    """
    for row in tables.rows(question):
        message = (
            f"{row['n']} responses to {row['tasks']} tasks do not have the same reward each time; one to task "
            f"{row['task'][:80]} has {row['low']:.6g} and {row['high']:.6g}"
        )
        data = {"count": row["n"], "tasks": row["tasks"], "low": row["low"], "high": row["high"]}
        yield Finding(message, tuple(row["ids"][:MAX_EXAMPLES]), scope_address(row), data=data)
