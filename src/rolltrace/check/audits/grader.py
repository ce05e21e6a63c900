"""Audits of graders: replies that cannot be read, the order of answers, ties, constant scores, and length."""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, examples, scope_address
from rolltrace.trace.json_numbers import as_float

_MATRIX = "scores where rollout is null and json_type(data, '$.extra.matrix') = 'ARRAY'"
_GRADER_CALLS = "calls where calls.role = 'grader'"
_NO_JUDGE = "no judge has compared or scored responses"
_MAX_MEMBERS = 512
"""A larger preference matrix is not looked at."""

_CALLS = """
    with asked as (
        select coalesce(calls.rollout, calls.score) as owner, calls.rollout, calls.position, calls.continues_call,
            calls.error_type, calls.reply, calls.split, calls.env, calls.role
        from calls where calls.role = 'grader'
    ), again as (
        select distinct owner, continues_call as position from asked where continues_call is not null
    ), judged as (
        select coalesce(rollouts.split, asked.split) as split, coalesce(rollouts.env, asked.env) as env,
            asked.rollout, asked.error_type is not null or asked.reply is null or again.position is not null as failed
        from asked left join rollouts on rollouts.id = asked.rollout
        left join again on again.owner = asked.owner and again.position = asked.position
    )
    select split, env, count(*) as n, count(*) filter (failed) as failed,
        min(distinct rollout, 10) filter (failed and rollout is not null) as ids
    from judged where split is not null group by all order by split, env
"""


@audit(
    Severity.WARNING,
    "Replies without a readable score are asked for again, or leave the rollout without a reward.",
    "Read the replies: state the format of the score more clearly, allow more tokens, or use a stronger grader.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.05, "A grader that follows its format fails in about one of a hundred calls.", min_sample=20, usual_share=0.01
    ),
)
def unreadable_replies(tables: AuditTables) -> Iterator[Finding]:
    """Few replies of graders cannot be read."""
    rows = [*tables.rows(_CALLS)] if tables.has(_GRADER_CALLS) else []
    if not rows:
        tables.skip("no calls of graders are recorded")
    for row in rows:
        if tables.is_enough(row["n"], "calls") and row["failed"] / row["n"] > tables.threshold:
            yield Finding(
                f"{row['failed']} of {row['n']} replies of graders failed or could not be read",
                tuple(row["ids"] or ()),
                scope_address(row),
                data={"count": row["failed"], "of": row["n"], "share": row["failed"] / row["n"]},
            )


class _Matchups(msgspec.Struct):
    """What a judge decided in one env: how often the first, the second, or none was preferred."""

    first: int = 0
    second: int = 0
    ties: int = 0
    pairs: int = 0
    """Compared in both orders."""
    disagreeing: int = 0
    """Pairs whose orders do not have the same winner."""
    ids: list[str] = []
    """Rollouts of the first groups with such a pair."""
    tied: list[str] = []
    """Rollouts of the first groups with a tie."""

    @property
    def count(self) -> int:
        """The number of comparisons."""
        return self.first + self.second + self.ties


_MATRICES = """
    select split, env, iteration, "group", data from scores
    where rollout is null and split is not null and json_type(data, '$.extra.matrix') = 'ARRAY'
    order by split, env, iteration, "group"
"""


def _matchups(tables: AuditTables) -> dict[tuple[str, str], _Matchups]:
    """The matchups of all preference graders, by split and env; a run without matchups is noted in the report."""
    envs: dict[tuple[str, str], _Matchups] = {}
    for row in tables.rows(_MATRICES):
        matrix, ids = _matrix(row["data"])
        if matrix:
            _add_matchups(envs.setdefault((row["split"], row["env"]), _Matchups()), matrix, ids)
    if not envs:
        tables.skip("no judge has compared responses")
    return envs


def _matrix(data: Any) -> tuple[list[list[float | None]], list[str]]:
    """The matrix in a score's data, and the ids of its members; empty without a valid one."""
    try:
        extra = json.loads(data)["extra"]
        rows, ids = extra["matrix"], extra.get("ids")
    except (TypeError, ValueError, KeyError, AttributeError):
        return [], []
    if not 1 < len(rows) <= _MAX_MEMBERS or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        return [], []
    names = ids if isinstance(ids, list) and len(ids) == len(rows) else []
    matrix = [[_number(cell) for cell in row] for row in rows]
    return matrix, [str(name) for name in names]


def _number(value: Any) -> float | None:
    number = None if isinstance(value, bool) else as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _add_matchups(matchups: _Matchups, matrix: Sequence[Sequence[float | None]], ids: Sequence[str]) -> None:
    concerned: dict[str, None] = {}
    tied: dict[str, None] = {}
    for one, row in enumerate(matrix):
        for other, score in enumerate(row):
            if score is not None:
                matchups.first += score > 0
                matchups.second += score < 0
                matchups.ties += score == 0
                if score == 0 and ids:
                    tied |= dict.fromkeys((ids[one], ids[other]))
    for one, other in combinations(range(len(matrix)), 2):
        score, swapped = matrix[one][other], matrix[other][one]
        if score is None or swapped is None:
            continue
        matchups.pairs += 1
        if _sign(score) != -_sign(swapped):
            matchups.disagreeing += 1
            concerned |= dict.fromkeys([ids[one], ids[other]] if ids else [])
    for known, new in ((matchups.ids, concerned), (matchups.tied, tied)):
        known += [] if len(known) >= MAX_EXAMPLES else new


def _sign(score: float) -> int:
    return (score > 0) - (score < 0)


@audit(
    Severity.WARNING,
    "A judge that prefers an answer because it comes first, or second, rewards the order, not the answer.",
    "Compare each pair in both orders, number the answers neutrally, or use another judge.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.2, "60 to 40 for one position. The bias must also be beyond three standard errors, which a judge without one "
        "shows by chance in one of 400 checks.", min_sample=40,
    ),
)  # fmt: skip
def position_bias(tables: AuditTables) -> Iterator[Finding]:
    """The answer that is shown first wins about as often as the second."""
    for (split, env), one in _matchups(tables).items():
        decided = one.first + one.second
        if not tables.is_enough(decided, "decided comparisons"):
            continue
        bias = (one.first - one.second) / max(decided, 1)
        if abs(bias) > max(tables.threshold, 3 / math.sqrt(max(decided, 1))):
            winner = "first" if bias > 0 else "second"
            yield Finding(
                f"the {winner} answer won {max(one.first, one.second)} of {decided} comparisons",
                examples(one.ids),
                f"{split}/{env}",
                data={"first": one.first, "second": one.second, "ties": one.ties, "bias": bias},
            )


@audit(
    Severity.WARNING,
    "A judge that changes its mind when two answers are swapped gives rewards that are mostly noise.",
    "Use a stronger judge or a clearer question; count only pairs in which both orders agree.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.375,
        "A coin disagrees with itself in half of the pairs. A judge half way between a coin and certainty is right in "
        "three of four comparisons, and disagrees with itself in 2 · ¾ · ¼ = 37.5 % of pairs. The share must be beyond "
        "that by two standard errors: from 12 of 20 pairs on, which such a judge shows by chance in 3 % of checks.",
        min_sample=20,
    ),
)
def order_disagreement(tables: AuditTables) -> Iterator[Finding]:
    """Both orders of a pair of answers mostly have the same winner."""
    for (split, env), one in _matchups(tables).items():
        if not tables.is_enough(one.pairs, "pairs in both orders"):
            continue
        share = one.disagreeing / max(one.pairs, 1)
        if share - 2 * math.sqrt(share * (1 - share) / max(one.pairs, 1)) > tables.threshold:
            yield Finding(
                f"the judge disagrees with itself in {one.disagreeing} of {one.pairs} pairs if the order is swapped",
                examples(one.ids),
                f"{split}/{env}",
                data={"count": one.disagreeing, "of": one.pairs, "share": share},
            )


@audit(
    Severity.WARNING,
    "A judge that finds most answers equally good gives little signal.",
    "Ask for a decision, or for finer scores; use a stronger judge, or answers that differ more.",
    input=AuditInput.TABLES,
    threshold=Threshold(0.5, "Half of the comparisons are paid for and say nothing.", min_sample=20, usual_share=0.25),
)
def frequent_ties(tables: AuditTables) -> Iterator[Finding]:
    """Most comparisons have a winner."""
    for (split, env), one in _matchups(tables).items():
        if tables.is_enough(one.count, "comparisons") and one.ties / one.count > tables.threshold:
            yield Finding(
                f"{one.ties} of {one.count} comparisons are ties",
                examples(one.tied),
                f"{split}/{env}",
                data={"count": one.ties, "of": one.count, "share": one.ties / one.count},
            )


_SCORES = """
    with criteria as (
        select id, split, env, unnest(from_json(
            if(json_type(grade_extra, '$.criteria') = 'ARRAY', grade_extra -> '$.criteria', '[]'),
            '[{"name": "VARCHAR", "score": "DOUBLE"}]'
        )) as criterion
        from rollouts where grade_extra is not null
    ), scored as (
        select id, split, env, criterion.name as name, criterion.score as score
        from criteria where isfinite(criterion.score)
    )
"""


@audit(
    Severity.WARNING,
    "If most scores are one value, good and bad responses are not told apart, and the grader gives almost no signal.",
    "Describe the levels of the score with examples, or ask for finer scores.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.9,
        "Nine of ten scores are the same; a policy that is nearly perfect has this, too.",
        min_sample=40,
        usual_share=0.75,
    ),
)
def piled_scores(tables: AuditTables) -> Iterator[Finding]:
    """The scores of a rubric are spread over several values."""
    rows = [*tables.rows(f"""{_SCORES}, counted as (
        select split, env, score, count(*) as same, min(distinct id, 10) as ids from scored group by all
    ) select split, env, arg_max(score, same) as score, max(same) as same, sum(same)::bigint as n, count(*) as values,
        arg_max(ids, same) as ids from counted group by all order by split, env
    """)]  # fmt: skip
    if not rows:
        tables.skip("no scores of criteria are recorded")
    for row in rows:
        if tables.is_enough(row["n"], "scores") and row["values"] > 1 and row["same"] / row["n"] > tables.threshold:
            yield Finding(
                f"{row['same']} of {row['n']} scores of criteria are {row['score']:g}",
                tuple(row["ids"]),
                scope_address(row),
                data={"score": row["score"], "count": row["same"], "of": row["n"]},
            )


@audit(
    Severity.WARNING,
    "A criterion with the same score for every response costs calls and has no effect on advantages.",
    "Reword it, drop it, or check whether the grader sees what it needs to judge it.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        16,
        "A criterion that has another score for one response of four has 16 equal ones by chance in 1 % (0.75¹⁶). "
        "Fewer are not judged.",
    ),
)
def constant_criterion(tables: AuditTables) -> Iterator[Finding]:
    """Each criterion of a rubric has different scores for different responses."""
    rows = [*tables.rows(f"""{_SCORES}
        select split, env, name, count(*) as n, min(score) as low, max(score) as high, min(id, 10) as ids
        from scored where name is not null group by all order by split, env, name
    """)]  # fmt: skip
    if not rows:
        tables.skip("no scores of criteria are recorded")
    for row in rows:
        if row["n"] >= tables.threshold and row["low"] == row["high"] and tables.is_enough(row["n"], "scores"):
            yield Finding(
                f"criterion {row['name']} has the score {row['low']:g} for all {row['n']} responses",
                tuple(row["ids"]),
                scope_address(row),
                row["name"],
                data={"score": row["low"], "of": row["n"]},
            )


_LENGTHS = """
    with judged as (
        select distinct calls.rollout as id from calls where calls.role = 'grader' and calls.rollout is not null
        union select unnest(from_json(data -> '$.extra.ids', '["VARCHAR"]')) from scores
        where rollout is null and json_type(data, '$.extra.matrix') = 'ARRAY'
            and json_type(data, '$.extra.ids') = 'ARRAY'
    ), lengths as (
        select rollout, sum(length(response)) as chars from steps
        where rollout in (select id from judged) and not regexp_full_match(response, 'hashed:\\d+:[0-9a-f]{16}')
        group by rollout
    ), members as (
        select split, env, {'iteration': iteration, 'group': "group"} as member_of, id, reward, chars
        from rollouts join lengths on lengths.rollout = id where isfinite(reward)
    ), ranked as (
        select split, env, id, count(*) over (partition by split, env, member_of) as size,
            rank() over (partition by split, env, member_of order by reward)
                + count(*) over (partition by split, env, member_of, reward) / 2 - (size + 2) / 2 as by_reward,
            rank() over (partition by split, env, member_of order by chars)
                + count(*) over (partition by split, env, member_of, chars) / 2 - (size + 2) / 2 as by_length
        from members
    )
    select split, env, count(*) as n, round(corr(by_reward, by_length), 12) as correlation,
        arg_min(id, {'chars': -by_length, 'id': id}, 10) as ids
    from ranked where size > 1 group by all order by split, env
"""
"""Ranks are within the group, less their mean; equal values have the same rank."""


@audit(
    Severity.WARNING,
    "A judge whose score follows the length of a response teaches the policy to write more, whatever it says.",
    "Tell the judge to ignore length, compare responses of similar length, or take length out of the score.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        0.71, "Good responses are often longer, so some correlation is usual. From √½ on, length explains more of the "
        "variance of the order than everything else together (r² > ½). Without a relation, ten groups of four are "
        "beyond 0.36 by chance in 5 % of checks.",
        min_sample=40,
    ),
)  # fmt: skip
def judge_follows_length(tables: AuditTables) -> Iterator[Finding]:
    """Within groups, the order by a judge's reward is not the order by length."""
    rows = [*tables.rows(_LENGTHS)] if tables.has(_GRADER_CALLS) or tables.has(_MATRIX) else []
    if not rows:
        tables.skip(_NO_JUDGE)
    for row in rows:
        correlation = row["correlation"]
        if tables.is_enough(row["n"]) and correlation is not None and correlation > tables.threshold:
            yield Finding(
                f"within groups, rewards and lengths of {row['n']} responses have a rank correlation of "
                f"{correlation:.2f}",
                tuple(row["ids"]),
                scope_address(row),
                data={"correlation": correlation, "of": row["n"]},
            )
