"""Audits of recorded advantages: they follow from the group's rewards, and have the right sign."""

from collections.abc import Iterator
from operator import itemgetter

import msgspec

from rolltrace.check.audit import MAX_EXAMPLES, AuditInput, Finding, Severity, Threshold, audit
from rolltrace.check.audit_tables import AuditTables, examples, scope_address
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_literal

_NOT_RECORDED = "no advantages of whole groups are recorded (scores named `advantage`)"
_RECORDED = "scores where name = 'advantage'"
_HUGE = 1e100
"""Numbers from here on cannot be squared."""
_MOST = 0.5
"""The share of groups from which on a formula is taken for the one that was used."""
_MIN_GROUPS = 3
"""In fewer groups than this, a scale of the iteration fits by chance."""

FORMULAS = {
    "reward - mean": "a - d",
    "(reward - mean) / std": "a - d / (std + eps)",
    "(reward - mean) / sample std": "a - d / (std * sqrt(n / (n - 1)) + eps)",
    "reward - mean of the other members": "a - d * n / (n - 1)",
    "(reward - mean) * scale of the iteration": "a - d * scale - shift",
    "(reward - mean of the iteration) * scale of the iteration": "a - reward * scale - constant",
}
"""By name, the difference of an advantage `a` and the formula's; `d` is reward - mean. Programs add a small `eps` to
the divisor. The last two cover scaling and whitening by batch, after or instead of subtracting the group's mean."""


def _fit(name: str, difference: str) -> str:
    """SQL for whether all members of a group have this formula's advantage; null if that cannot be known."""
    # The tolerance is for 32 bits. If all rewards are equal, rounding errors are divided by a small `eps`.
    options = [difference.replace("eps", eps) for eps in ("0", "1e-6", "1e-4")]
    found = " or ".join(f"max(abs({one})) <= any_value(1e-3 * size + 1e-5)" for one in dict.fromkeys(options))
    if "iteration" in name:
        fits = f"coalesce(any_value(scale) > 0 and ({found}), false)"
        return f"case when any_value(groups) >= {_MIN_GROUPS} then {fits} end"
    return f"coalesce(case when any_value(differs) then {found} else any_value(size) <= 1e-2 end, false)"


# A group counts if all its members with a reward have an advantage, so that its own mean is known. An advantage of a
# reward less a penalty that is not recorded (`after_penalty` in the score's data) does not follow from the reward.
_GROUPS = f"""
    with given as (
        select rollout, arg_max(value, created_at) as a from scores
        where name = 'advantage' and value is not null and rollout is not null
            and not coalesce(try_cast(data ->> '$.after_penalty' as boolean), false)
        group by rollout
    ), members as (
        select {GROUP_COLUMNS}, r.id, r."index", r.reward, given.a, r.seat
        from rollouts r left join given on given.rollout = r.id where r.reward is not null
    ), means as (
        select {GROUP_COLUMNS}, count(*) as n, avg(reward) as mean, avg(a) as mean_a, max(abs(a)) as size,
            max(reward) - min(reward) > 1e-6 * greatest(1, max(abs(reward))) as differs
        from members group by {GROUP_COLUMNS}
        having n >= 2 and count(a) = n and count(seat) = 0 and max(abs(reward)) < {_HUGE} and max(abs(a)) < {_HUGE}
    ), centred as (
        select *, reward - mean as d from members join means using ({GROUP_COLUMNS})
    ), slopes as (
        select {GROUP_COLUMNS}, sum(d * d) as dd, sum(d * a) / nullif(dd, 0) as slope
        from centred group by {GROUP_COLUMNS}
    )
"""
_FITTED = f"""
    {_GROUPS}, scales as (
        select split, env, iteration, count(*) filter (differs) as groups, median(slope) filter (differs) as scale,
            median(mean_a) as shift, median(mean_a - slope * mean) filter (differs) as constant
        from means join slopes using ({GROUP_COLUMNS}) group by split, env, iteration
    ), measured as (
        select *, sqrt(dd / n) as std
        from centred join slopes using ({GROUP_COLUMNS}) join scales using (split, env, iteration)
    ), fitted as (
        select {GROUP_COLUMNS}, any_value(differs) as differs, any_value(mean) as mean,
            list(id order by "index", id) as ids, list(reward order by "index", id)[:4] as rewards,
            list(a order by "index", id)[:4] as advantages,
            [{", ".join(_fit(*formula) for formula in FORMULAS.items())}] as fits
        from measured group by {GROUP_COLUMNS}
    )
"""
_MATCHES, _ALL_MATCHES = (
    ", ".join(f"count(*) filter ({condition} and fits[{number}])" for number in range(1, len(FORMULAS) + 1))
    for condition in ("differs", "true")
)
_COUNTS = f"""
    {_FITTED} select split, env, count(*) filter (differs) as groups,
        [{_MATCHES}] as matches, [{_ALL_MATCHES}] as all_matches,
        flatten(arg_min(ids, {{'iteration': iteration, 'group': "group"}}, {MAX_EXAMPLES}) filter (differs)) as ids
    from fitted group by split, env
"""
_MISMATCHES = f"""
    {_FITTED} from fitted where split = {{split}} and env = {{env}} and not fits[{{number}}]
    order by iteration, "group"
"""


class _Formula(msgspec.Struct):
    """The formula that explains the advantages of one env."""

    matches: list[int]
    """By formula, how many groups it explains of those with different rewards."""
    all_matches: list[int]
    """By formula, how many groups it explains."""
    groups: int = 0
    """How many such groups there are."""
    ids: list[str] = []
    """Rollouts of the first of these groups."""

    @property
    def number(self) -> int:
        """Which formula explains most of these groups. Where several do, groups with equal rewards decide."""
        return max(range(len(FORMULAS)), key=lambda number: (self.matches[number], self.all_matches[number]))

    @property
    def share(self) -> float:
        """The share of the groups that it explains."""
        return self.matches[self.number] / self.groups if self.groups else 1.0

    @property
    def name(self) -> str | None:
        """Its name; None if it explains too few groups, or if no group has different rewards."""
        return [*FORMULAS][self.number] if self.groups and self.share >= _MOST else None


def _formulas(tables: AuditTables) -> list[tuple[tuple[str, str], _Formula]]:
    """By split and env, the formula; empty without advantages, which the report then says."""
    tables.skip(_NOT_RECORDED)
    envs: dict[tuple[str, str], _Formula] = {}
    for row in tables.rows_in_batches(_COUNTS) if tables.has(_RECORDED) else ():
        one = envs.setdefault((row["split"], row["env"]), _Formula([0] * len(FORMULAS), [0] * len(FORMULAS)))
        one.groups += row["groups"]
        one.matches = [count + more for count, more in zip(one.matches, row["matches"], strict=True)]
        one.all_matches = [count + more for count, more in zip(one.all_matches, row["all_matches"], strict=True)]
        one.ids = [*one.ids, *(row["ids"] or ())][:MAX_EXAMPLES]
    return sorted(envs.items(), key=itemgetter(0))


@audit(
    Severity.ERROR,
    "The advantages of these groups are not computed as those of the others. The policy is trained on wrong numbers, "
    "such as those of another group.",
    "Compute the advantages from the rewards of the group's own members, and record them under their own ids.",
    input=AuditInput.TABLES,
)
def advantage_mismatch(tables: AuditTables) -> Iterator[Finding]:
    """Advantages follow from the rewards of the group, by the formula that explains most groups."""
    for (split, env), formula in _formulas(tables):
        tables.note = None if formula.name or not formula.groups else "the advantages follow no formula that is known"
        if formula.name is None:
            continue
        place = {"split": sql_literal(split), "env": sql_literal(env), "number": formula.number + 1}
        for row in tables.rows_in_batches(_MISMATCHES.format(**place)):
            rewards, advantages = (_numbers(row[name]) for name in ("rewards", "advantages"))
            message = f"expected advantages of {formula.name} for the rewards {rewards}, got {advantages}"
            data = {"formula": formula.name, "mean": row["mean"], "members": len(row["ids"])}
            yield Finding(message, examples(row["ids"]), scope_address(row), data=data)


@audit(
    Severity.WARNING,
    "The advantages follow from no usual formula over the rewards of a group or an iteration. If a group's mean is "
    "meant to be the baseline, they belong to other rollouts, or to other rewards.",
    "Compare some groups by hand. If the formula is your own, skip this audit.",
    input=AuditInput.TABLES,
    threshold=Threshold(
        _MOST, "The share of groups that a formula must explain. With the right one, all groups fit.", min_sample=4
    ),
)
def advantage_formula(tables: AuditTables) -> Iterator[Finding]:
    """A usual formula explains most advantages."""
    for (split, env), formula in _formulas(tables):
        n, share = formula.groups, formula.share
        if tables.is_enough(n, "groups with different rewards") and share < tables.threshold:
            message = f"no formula explains the advantages of more than {share:.0%} of {n} groups"
            data = {"of": n, "share": share, "formula": formula.name}
            yield Finding(message, tuple(formula.ids), f"{split}/{env}", data=data)


@audit(
    Severity.ERROR,
    "In these groups a higher reward has a lower advantage, so the policy learns to do worse.",
    "Look for a sign that is flipped, such as a loss in place of a reward, and for members in another order.",
    input=AuditInput.TABLES,
)
def advantage_sign(tables: AuditTables) -> Iterator[Finding]:
    """In a group, a higher reward goes with a higher advantage."""
    if not tables.has(_RECORDED):
        tables.skip(_NOT_RECORDED)
        return
    question = f"""
        {_GROUPS}
        select {GROUP_COLUMNS}, list(id order by "index", id) filter (d * (a - mean_a) < 0) as ids,
            any_value(slope) as slope, arg_max(a, reward) as best, arg_min(a, reward) as worst
        from centred join slopes using ({GROUP_COLUMNS}) where differs
        group by {GROUP_COLUMNS} having any_value(slope) < -1e-6 order by all
    """
    for row in tables.rows_in_batches(question):
        message = f"the highest reward has the advantage {row['best']:.4g}, the lowest has {row['worst']:.4g}"
        yield Finding(message, examples(row["ids"] or []), scope_address(row), data={"slope": row["slope"]})


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values) + (", …" if len(values) == 4 else "")
