"""Audits of the learning signal: groups with equal rewards, tasks without any, stale policies, log-probabilities."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, examples, scope_address
from rolltrace.check.iteration_stats import IterationStats
from rolltrace.check.settings import ANY_ENV, CheckSettings
from rolltrace.check.trends import first_and_last, iteration_share_findings
from rolltrace.query.table_schema import sql_literal
from rolltrace.trace.json_numbers import as_float
from rolltrace.trace.rollout import Rollout

TRAIN = "train"
"""The split that is trained on: an evaluation needs no signal."""
TRAINER_LOGPROBS = "trainer_logprobs"
"""The name of the scores that have the trainer's log-probabilities of the sampled tokens, by step."""

_MIN_TASK_REWARDS = 4
"""With fewer rewards, a task that was always or never solved says little."""
_SAMPLED_ROLLOUTS = {True: 100, False: 2_000}
"""Of how many of the newest rollouts tokens are compared, in an iteration and in a run."""

_FLAT_GROUP = "reward is not null and n > 1 and low = high"
_TRAINS_NOTHING = "reward is null or n < 2 or low = high"
_MEMBERS = """
    select id from (
        select *, count(reward) over same as n, min(reward) over same as low, max(reward) over same as high
        from rollouts where split = {split} and env = {env} and iteration = {iteration}
        window same as (partition by "group")
    ) where {condition} order by "group", "index", id limit {limit}
"""


@audit(
    Severity.WARNING,
    "The members of such a group have no advantage, so that their tokens are sampled, graded and then train nothing.",
    "Use tasks of a fitting difficulty, larger groups, or a reward with more levels; filter such groups knowingly.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.7,
        "If each task is solved in a tenth or nine tenths of its tries, 43 % of groups of eight have equal rewards "
        "(0.9⁸ + 0.1⁸); beyond 70 % most of the sampling is wasted.",
        min_sample=16,
        usual_share=0.43,
    ),
)
def groups_without_signal(tables: AuditTables) -> Iterator[Finding]:
    """In each training batch, most groups have members with different rewards."""
    for finding in iteration_share_findings(
        tables, lambda one: (one.groups_without_signal, one.groups, ()), "groups have equal rewards", "groups",
        split=TRAIN,
    ):  # fmt: skip
        yield _with_examples(tables, finding, _FLAT_GROUP)


def _with_examples(tables: AuditTables, finding: Finding, condition: str) -> Finding:
    split, env, iteration = (finding.data[name] for name in ("split", "env", "iteration"))
    return replace(finding, rollouts=_members(tables, split, env, iteration, condition))


def _members(tables: AuditTables, split: str, env: str, iteration: int, condition: str) -> tuple[str, ...]:
    """The first rollouts of an iteration for which a condition about their group's rewards holds."""
    rows = tables.rows(
        _MEMBERS.format(
            split=sql_literal(split), env=sql_literal(env), iteration=int(iteration), condition=condition,
            limit=MAX_EXAMPLES,
        )
    )  # fmt: skip
    return tuple(row["id"] for row in rows)


@audit(
    Severity.WARNING,
    "The share of groups that train nothing grows, so that each iteration teaches less than the one before.",
    "Add harder tasks if rewards are high, easier ones if they are low, and look for a collapse of the responses.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.25,
        "A quarter more of the batch is lost than at the start. The change must also be beyond three standard errors, "
        "which chance shows in one of 700 checks.",
        min_sample=16,
    ),
)
def signal_fades(tables: AuditTables) -> Iterator[Finding]:
    """The share of groups with equal rewards does not rise over the iterations."""
    for (split, env), series in tables.iterations().items():
        if split != TRAIN or (windows := first_and_last(tables, series)) is None:
            continue
        counts = [(sum(one.groups_without_signal for one in some), sum(one.groups for one in some)) for some in windows]
        if not tables.is_enough(min(of for _, of in counts), "groups at the start and at the end"):
            continue
        before, after = (count / of for count, of in counts)
        error = math.sqrt(sum(0.25 / of for _, of in counts))  # of a share that is 1/2, where it is the largest
        if after - before > max(tables.threshold, 3 * error):
            yield Finding(
                f"{after:.0%} of the groups have equal rewards in the last {len(windows[1])} iterations, "
                f"{before:.0%} in the first {len(windows[0])}",
                _members(tables, split, env, windows[1][-1].iteration, _FLAT_GROUP),
                f"{split}/{env}",
                data={"before": before, "after": after, "of": [of for _, of in counts]},
            )


def _lost(one: IterationStats) -> tuple[int, int, Sequence[str]]:
    return (one.rollouts - one.effective, one.rollouts if one.groups else 0, ())


@audit(
    Severity.WARNING,
    "What is left of the batch after failed rollouts and groups with equal rewards are filtered is so small that the "
    "gradient is mostly noise.",
    "Sample more groups, or resample until the batch is full; see why rollouts fail and why groups have no signal.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.75,
        "With a quarter of the batch, the noise of the gradient is twice as large: it falls with the square root of "
        "the batch.",
        min_sample=32,
        usual_share=0.5,
    ),
)
def small_effective_batch(tables: AuditTables) -> Iterator[Finding]:
    """A good part of each training batch has a reward, in a group whose rewards differ."""
    what = "rollouts train nothing: they failed, have no reward, or are in a group with equal rewards"
    for finding in iteration_share_findings(tables, _lost, what, "rollouts", split=TRAIN):
        yield _with_examples(tables, finding, _TRAINS_NOTHING)


# Of an env whose rewards are all the same, nothing: that has an audit of its own.
_TASKS = """
    with tasks as (
        select split, env, task, count(reward) as n, min(reward) as low, max(reward) as high
        from rollouts where isfinite(reward) and split = 'train' group by split, env, task
    ), levels as (
        select split, env, min(low) as lowest, max(high) as highest from tasks group by split, env
    ), judged as (
        select split, env, task, low >= coalesce({highest}, highest) as highest, high <= coalesce({lowest}, lowest)
            as lowest
        from tasks join levels using (split, env) where n >= {least} and levels.lowest < levels.highest
    )
    select split, env, count(*) as n, count(*) filter (highest) as highest, count(*) filter (lowest) as lowest,
        min(task, 100) filter (highest) as highest_tasks, min(task, 100) filter (lowest) as lowest_tasks
    from judged group by split, env order by split, env
"""
_OF_TASKS = "select task, id from rollouts where isfinite(reward) and {condition} order by task, id limit 10"


def _tasks_at(tables: AuditTables, side: str, what: str) -> Iterator[Finding]:
    """Envs in which many tasks have the highest or the lowest reward in all tries."""
    bounds = {name: _declared(tables.settings, number) for number, name in enumerate(("lowest", "highest"))}
    for row in tables.rows(_TASKS.format(least=_MIN_TASK_REWARDS, **bounds)):
        count, of, tasks = row[side], row["n"], row[f"{side}_tasks"]
        if tables.is_enough(of, "tasks") and of and count / of > tables.threshold:
            condition = " and ".join(f"{name} = {sql_literal(row[name])}" for name in ("split", "env"))
            condition += f" and task in ({', '.join(map(sql_literal, tasks[:10]))})"
            yield Finding(
                f"{count} of {of} tasks {what}, such as {tasks[0]!r}",
                tuple(one["id"] for one in tables.rows(_OF_TASKS.format(condition=condition))),
                scope_address(row),
                data={"count": count, "of": of, "tasks": tasks},
            )


def _declared(settings: CheckSettings, number: int) -> str:
    """SQL for the lowest or the highest reward that the settings declare for an env."""
    others = "null"
    cases = ""
    for env, bounds in settings.reward_range.items():
        bound = f"'{bounds[number]!r}'::double"
        if env == ANY_ENV:
            others = bound
        else:
            cases += f" when {sql_literal(env)} then {bound}"
    return f"case env{cases} else {others} end" if cases else others


@audit(
    Severity.WARNING,
    "A task that is solved in every try has no signal any more.",
    "Drop these tasks, or sample them rarely, and add harder ones.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.5,
        "Half of the tasks have nothing to teach. One that is solved in 7 of 10 tries is solved in four of four by "
        "chance in 24 % (0.7⁴).",
        min_sample=20,
        usual_share=0.24,
    ),
)
def tasks_always_solved(tables: AuditTables) -> Iterator[Finding]:
    """Few training tasks have the highest reward in every try."""
    yield from _tasks_at(tables, "highest", "have the highest reward in every try")


@audit(
    Severity.WARNING,
    "A task that is never solved has no signal; it may be too hard, or its reference answer may be wrong.",
    "Look at its answers and its reference. Drop it, make it easier, or sample more tries of it.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.5,
        "Half of the tasks cannot teach anything yet. One that is solved in 3 of 10 tries is solved in none of four by "
        "chance in 24 % (0.7⁴).",
        min_sample=20,
        usual_share=0.24,
    ),
)
def tasks_never_solved(tables: AuditTables) -> Iterator[Finding]:
    """Few training tasks have the lowest reward in every try."""
    yield from _tasks_at(tables, "lowest", "have the lowest reward in every try")


_VERSIONS = """
    with versions as (
        select rollouts.split, rollouts.env, rollouts.iteration, rollouts.policy, rollout,
            steps.policy_version as version, try_cast(steps.policy_version as double) as number
        from steps join rollouts on rollouts.id = rollout
        where steps.policy_version is not null and rollouts.split = 'train'
    ), known as (
        select split, env, iteration, policy, version, any_value(number) as number,
            min(rollout) as first
        from versions group by split, env, iteration, policy, version
    ), ranked as (
        select *, dense_rank() over (partition by split, env, iteration, policy order by first) as rank,
            bool_and(coalesce(isfinite(number), false))
                over (partition by split, env, iteration, policy) as has_numbers
        from known
    ), lags as (
        select *, max(if(has_numbers, number, rank)) over (partition by split, env, iteration, policy)
            - if(has_numbers, number, rank) as lag
        from ranked
    )
    select split, env, iteration, policy, count(distinct rollout) as rollouts,
        count(distinct rollout) filter (lag > {threshold}) as stale, max(lag) as lag,
        min(distinct rollout, 10) filter (lag > {threshold}) as ids
    from versions join lags using (split, env, iteration, policy, version) group by all
    having stale > 0 order by split, env, iteration, policy
"""


@audit(
    Severity.WARNING,
    "Responses of an old policy are off-policy: their importance ratios are clipped or explode, and training drifts.",
    "Limit how far the sampler may be behind, or correct for it; drop rollouts that are older.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        4,
        "What asynchronous trainers allow by default or in their guides: up to 2 versions in "
        "[prime-rl](https://docs.primeintellect.ai/prime-rl/async.md), 4 in "
        "[AReaL](https://inclusionai.github.io/AReaL/algorithms/async.html); both correct the loss for it.",
    ),
)
def stale_policy(tables: AuditTables) -> Iterator[Finding]:
    """No turn of a training batch is of a policy that is several versions older than the newest in the batch."""
    if not tables.has("steps where policy_version is not null"):
        tables.skip("no policy versions are recorded")
        return
    for row in tables.rows_in_batches(_VERSIONS.format(threshold=float(tables.threshold))):
        if not tables.is_enough(row["rollouts"]):
            continue
        yield Finding(
            f"{row['stale']} of {row['rollouts']} rollouts have turns of a policy that is more than "
            f"{tables.threshold:g} versions older than the newest of the batch, up to {row['lag']:g}",
            tuple(row["ids"]),
            scope_address(row),
            row["policy"] or "",
            data={"count": row["stale"], "of": row["rollouts"], "lag": row["lag"]},
        )


@audit(
    Severity.WARNING,
    "The trainer gives the sampled tokens other probabilities than the sampler did, so that training is off-policy "
    "even with the newest weights.",
    "Compare weights, tokens, templates, temperature and number formats of both; correct by importance weights.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.1,
        "At 0.1 the probability of the average token is off by a tenth (e^0.1 = 1.11), half of the clip range of 0.2 "
        "that PPO and GRPO have by default. Measured with the same weights in bfloat16, engines are apart by 0.03 to "
        "0.05 (root mean square: [Fast-LLM](https://github.com/ServiceNow/Fast-LLM/pull/525), "
        "[TRL](https://github.com/huggingface/trl/issues/6789)).",
        min_sample=200,
    ),
)
def logprob_gap(tables: AuditTables) -> Iterator[Finding]:
    """Sampler and trainer agree on the log-probabilities of the sampled tokens."""
    limit = _SAMPLED_ROLLOUTS[tables.iteration is not None]
    scores = (
        f"select rollout, arg_max(data, created_at) as data from scores where name = {sql_literal(TRAINER_LOGPROBS)}"
    )
    newest = tables.rows(f"{scores} and rollout is not null group by rollout order by rollout desc limit {limit}")
    trainer = {row["rollout"]: _tokens(row["data"]) for row in newest}
    if not trainer:
        tables.skip("no log-probabilities of a trainer are recorded")
        return
    gaps: dict[str, dict[str, list[float]]] = {}
    rest = iter(trainer)
    while ids := [*islice(rest, 100)]:
        for rollout in tables.run.rollouts(f"id in ({', '.join(map(sql_literal, ids))})"):
            own = _gaps(rollout, trainer.get(rollout.id, []))
            if own:
                gaps.setdefault(f"{rollout.split}/{rollout.env}", {})[rollout.id] = own
    if not gaps:
        tables.skip("no log-probabilities of a sampler are recorded")
    for address, by_rollout in sorted(gaps.items()):
        numbers = [gap for some in by_rollout.values() for gap in some]
        mean = math.fsum(numbers) / len(numbers)
        if tables.is_enough(len(numbers), "tokens") and mean > tables.threshold:
            worst = sorted(by_rollout, key=lambda one: -math.fsum(by_rollout[one]) / len(by_rollout[one]))
            yield Finding(
                f"the log-probabilities of {len(numbers)} tokens differ by {mean:.3g} on average between sampler and "
                f"trainer",
                examples(
                    [one for one in worst if math.fsum(by_rollout[one]) / len(by_rollout[one]) > tables.threshold]
                ),
                address,
                data={"mean": mean, "max": max(numbers), "tokens": len(numbers), "rollouts": len(by_rollout)},
            )


def _tokens(data: Any) -> list[Any]:
    """The numbers of each step, from a score's data."""
    try:
        tokens = json.loads(data)["tokens"]
    except (TypeError, ValueError, KeyError):
        return []
    return tokens if isinstance(tokens, list) else []


def _gaps(rollout: Rollout, by_step: Sequence[Any]) -> list[float]:
    """The differences of all tokens that both know; steps with other numbers of tokens are left out."""
    sampled = [step.tokens.logprobs if step.tokens is not None else None for step in rollout.steps]
    if len(by_step) != len(sampled):
        sampled = [one for one in sampled if one is not None]
    gaps = []
    for own, other in zip(sampled, by_step, strict=False):
        if own is not None and isinstance(other, list) and len(own) == len(other):
            gaps += [abs(a - b) for a, b in zip(own, map(as_float, other), strict=True) if b is not None]
    return [gap for gap in gaps if math.isfinite(gap)]
