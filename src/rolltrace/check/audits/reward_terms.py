"""Audits of what rewards are made of: terms and weights that explain them, and that matter."""

import re
from collections.abc import Iterator

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, scope_address
from rolltrace.check.table_source import Row

_TOLERANCE = 1e-6
"""The relative error of a loop that adds in 32 bits."""
_HUGE = 1e100
"""Numbers from here on cannot be squared."""

_IS_RESULT = re.compile(
    r"correct|accura|answer|right|success|solve|win|won|pass|match|exact|reward|score|grade|f1|outcome|goal|preference"
    r"|rubric|total|overall|quality|judge",
    re.IGNORECASE,
)
"""Names of terms that say how well the task was done."""
_IS_FORM = re.compile(r"format|form\b|well_formed|length|style|tag|parse|json|xml|schema|penalt", re.IGNORECASE)
"""Names of terms that say how a response looks."""

_TERMS = f"""
    with terms as (
        select hash(s.rollout) as rollout, unnest(map_entries(s.reward_data)) as term from steps s
        union all
        select hash(r.id), unnest(map_entries(r.grade_reward_data)) from rollouts r
    ), totals as (
        select rollout, term.key as term, count(*) as n, sum(term.value) as value, min(term.value) as low,
            max(term.value) as high
        from terms group by rollout, term.key
    ), known as not materialized (
        select hash(id) as rollout, id, split, env, task, reward, status = 'ok' and stopped_by = 'env' as is_played
        from rollouts
    ), counted as (
        select split, env, count(*) filter (is_played) as played from known group by split, env
    ), compared as (
        select *, if(abs(value) < {_HUGE} and abs(reward) < {_HUGE}, value, null) as x,
            if(x is null, null, reward) as y
        from totals join known using (rollout)
    ), values as (
        select split, env, term, sum(n)::bigint as n, min(low) as low, max(high) as high,
            min(task) <> max(task) as has_tasks, min(id, {MAX_EXAMPLES}) as ids,
            count(*) filter (is_played) as having_it, count(x) as rewards,
            min(id, {MAX_EXAMPLES}) filter (x is not null) as reward_ids,
            case when min(x) < max(x) and min(y) < max(y) then corr(x, y) ** 2 end as r2
        from compared group by split, env, term
    )
    select v.*, played, low = 1 and having_it = played as passes from values v join counted using (split, env)
    order by split, env, term
"""
"""One row for each term: its values, and, over the rollouts with a reward, R² of the term and the reward."""


def _weighted(weights: str, terms: str) -> str:
    """SQL for the list of weighted terms, each with its `key`."""
    return f"""list_transform(
        map_entries({weights}), lambda w: {{'key': w.key, 'value': w.value * coalesce({terms}[w.key], 0)}}
    )"""


@audit(
    Severity.ERROR,
    "The stated terms and weights do not add up to the reward. Either the reward has a part that is not recorded, or a "
    "weight is not the one that was used, so what you tune is not what the policy is trained on.",
    "Record every term with its weight, or correct the sum.",
    input=AuditInput.TABLES,
)
def unexplained_reward(tables: AuditTables) -> Iterator[Finding]:
    """Where weights are stated, the reward is the sum of weight × term."""
    question = f"""
        with parts as (
            select split, env, 'steps' as place, rollout, step, coalesce(env_reward, reward) as reward,
                {_weighted("reward_weights", "reward_data")} as parts
            from steps where cardinality(reward_weights) > 0
            union all
            select split, env, 'grade', id, null, grade_reward,
                {_weighted("grade_reward_weights", "grade_reward_data")}
            from rollouts where cardinality(grade_reward_weights) > 0
        ), sums as (
            select *, list_sum(list_transform(parts, lambda one: one.value)) as total,
                list_sum(list_transform(parts, lambda one: abs(one.value))) as size
            from parts
        ), compared as (
            select *, abs(reward - total) > {_TOLERANCE} * greatest(1, size) as is_wrong from sums
            where isfinite(reward) and isfinite(total) and isfinite(size)
        )
        select split, env, place, count(*) as n, count(*) filter (is_wrong) as wrong,
            min(distinct rollout, {MAX_EXAMPLES}) filter (is_wrong) as ids,
            arg_min(reward, rollout) filter (is_wrong) as reward, arg_min(total, rollout) filter (is_wrong) as total
        from compared group by split, env, place order by all
    """
    tables.skip("no weights of terms are recorded")
    for row in tables.rows(question):
        tables.note = None
        if row["wrong"]:
            message = (
                f"expected the sum of weight × term, {row['wrong']} of {row['n']} rewards of {row['place']} differ; "
                f"the first is {row['reward']:.6g}, its terms sum up to {row['total']:.6g}"
            )
            data = {"count": row["wrong"], "of": row["n"], "reward": row["reward"], "sum": row["total"]}
            yield Finding(message, tuple(row["ids"]), scope_address(row), row["place"], data=data)


@audit(
    Severity.WARNING,
    "All rewards are the same, whatever the task and the response, so every advantage is 0 and nothing is learnt.",
    "Look at the grader: one that always fails, a field that is not read, or tasks that are far too hard or too easy.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.0,
        "The difference of the highest and the lowest reward. If 5 in 100 responses were different, 100 rollouts would "
        "show it in 99 of 100 cases.",
        min_sample=100,
    ),
)
def constant_reward(tables: AuditTables) -> Iterator[Finding]:
    """Rewards differ between the tasks and responses of an env."""
    question = f"""
        select split, env, count(*) as n, min(reward) as low, max(reward) as high, count(distinct task) as tasks,
            min(id, {MAX_EXAMPLES}) as ids
        from rollouts where isfinite(reward) group by split, env order by all
    """
    for row in tables.rows(question):
        if tables.is_enough(row["n"]) and row["tasks"] > 1 and row["high"] - row["low"] <= tables.threshold:
            message = f"the reward is {row['low']:.6g} in all {row['n']} rollouts of {row['tasks']} tasks"
            data = {"value": row["low"], "of": row["n"], "tasks": row["tasks"]}
            yield Finding(message, tuple(row["ids"]), scope_address(row), data=data)


@audit(
    Severity.WARNING,
    "A term that never changes adds nothing to any advantage. What it was meant to reward or punish is not trained.",
    "Look at the check behind it: it may always fail, or be recorded only if it is true. If it is a penalty that is "
    "never charged, drop the term.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.0,
        "The difference of its highest and its lowest value. If 2 in 100 responses were different, 200 rollouts would "
        "show it in 98 of 100 cases.",
        min_sample=200,
    ),
)
def dead_reward_term(tables: AuditTables) -> Iterator[Finding]:
    """Every number of `reward_data` changes now and then, or is 1 in every rollout: a check that always passes."""
    tables.skip("no terms of rewards are recorded (`reward_data`)")
    for row in tables.rows(_TERMS):
        is_same = row["high"] - row["low"] <= tables.threshold  # not if one of them is NaN
        if not row["played"] or not tables.is_enough(row["n"], "values") or not is_same:
            continue
        if row["has_tasks"] and not row["passes"]:
            message = f"{row['term']!r} is {row['low']:.6g} all {row['n']} times that it is recorded"
            data = {"value": row["low"], "of": row["n"]}
            yield Finding(message, tuple(row["ids"]), scope_address(row), row["term"], data=data)


@audit(
    Severity.WARNING,
    "A term about the form of a response alone decides the reward; the terms about its result have no effect. The "
    "policy is trained on the form only.",
    "Look at the term for the result: its check may always fail, its weight may be 0, or the tasks may be too hard.",
    input=AuditInput.TABLES,
    threshold=Threshold(0.999, "R² of the reward and the one term; what is left is rounding.", min_sample=100),
)
def single_term_reward(tables: AuditTables) -> Iterator[Finding]:
    """The reward depends on more than one term, or on the one for the result."""
    tables.skip("no terms of rewards are recorded (`reward_data`)")
    by_env: dict[tuple[str, str], list[Row]] = {}
    for row in tables.rows(_TERMS):
        if row["rewards"] and tables.is_enough(row["rewards"]):
            by_env.setdefault((row["split"], row["env"]), []).append(row)
    for rows in by_env.values():
        alone = [row for row in rows if row["r2"] is not None and row["r2"] >= tables.threshold]
        results = [row for row in rows if _IS_RESULT.search(row["term"])]
        if not alone or any(row in results for row in alone):
            continue
        for row in alone:
            others = [other["term"] for other in rows if other is not row]
            if others and (results or _IS_FORM.search(row["term"])):
                message = (
                    f"{row['term']!r} alone explains the rewards of {row['rewards']} rollouts (R² {row['r2']:.4f}), "
                    f"not {', '.join(repr(name) for name in others[:4])}"
                )
                data = {"r2": row["r2"], "of": row["rewards"], "other_terms": others[:MAX_EXAMPLES]}
                yield Finding(message, tuple(row["reward_ids"]), scope_address(row), row["term"], data=data)


_PENALTIES = f"""
    with weighted as (
        select rollout, unnest({_weighted("reward_weights", "reward_data")}) as term from steps
        where cardinality(reward_weights) > 0
        union all
        select id, unnest({_weighted("grade_reward_weights", "grade_reward_data")}) from rollouts
        where cardinality(grade_reward_weights) > 0
        union all
        select rollout, {{'key': 'limits', 'value': reward - coalesce(env_reward, 0)}} from steps
    ), totals as (
        select hash(rollout) as rollout, term.key as term, sum(term.value) as value, max(term.value) <= 0 as is_penalty
        from weighted group by hash(rollout), term.key
    )
    select r.split, r.env, term, count(*) as n, count(*) filter (value < 0) as charged, stddev_pop(value) as own,
        stddev_pop(r.reward - value) as rest, min(r.id, {MAX_EXAMPLES}) filter (value < 0) as ids
    from totals t join rollouts r on hash(r.id) = t.rollout
    where abs(value) < {_HUGE} and abs(r.reward) < {_HUGE}
    group by r.split, r.env, term having bool_and(is_penalty) and charged > 0 order by all
"""


@audit(
    Severity.WARNING,
    "A penalty moves the reward more than everything else together, so the policy is trained to avoid the penalty, for "
    "example by saying little, rather than to do the task.",
    "Lower its weight, or fix what it punishes.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        1.0,
        "The standard deviation of the penalty over that of the rest of the reward: the larger of two parts decides.",
        min_sample=100,
    ),
)
def dominant_penalty(tables: AuditTables) -> Iterator[Finding]:
    """No penalty, a term with a weight or a charge for a limit, moves the reward more than the rest of it."""
    for row in tables.rows(_PENALTIES):
        if tables.is_enough(row["n"]) and row["own"] > tables.threshold * row["rest"] + _TOLERANCE:
            name = "the penalty for limits" if row["term"] == "limits" else f"the penalty {row['term']!r}"
            message = (
                f"{name}, charged in {row['charged']} of {row['n']} rollouts, has a standard deviation of "
                f"{row['own']:.4g}, the rest of the reward {row['rest']:.4g}"
            )
            data = {"count": row["charged"], "of": row["n"], "std": row["own"], "rest": row["rest"]}
            yield Finding(message, tuple(row["ids"]), scope_address(row), row["term"], data=data)
