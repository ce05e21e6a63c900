"""What audits have in common: shares above a threshold, and the first iterations against the last."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rolltrace.check.audit import MAX_EXAMPLES, Finding
from rolltrace.check.audit_tables import AuditTables
from rolltrace.check.iteration_stats import IterationStats
from rolltrace.check.table_source import Row

MIN_ITERATIONS = 6
"""With fewer iterations there is no trend."""

_MAX_WINDOW = 10

Count = Callable[[IterationStats], tuple[int, int, Sequence[str]]]
"""How many of how many, and examples."""


def share_findings(
    tables: AuditTables, source: str, what: str, unit: str, *, in_batches: bool = False
) -> Iterator[Finding]:
    """A finding for each env in which the share of wrong rows, over all iterations, is above the threshold.

    `source` is SQL for rows with `split`, `env`, `iteration`, `id` of a rollout, and `wrong`. If it joins texts, look
    at them in batches of iterations.
    """
    question = f"""
        select split, env, iteration, count(*) as n, count(*) filter (wrong) as count,
            min(distinct id, {MAX_EXAMPLES}) filter (wrong) as ids
        from ({source}) group by split, env, iteration order by split, env, iteration
    """
    envs: dict[tuple[str, str], list[Row]] = {}
    for row in tables.rows_in_batches(question) if in_batches else tables.rows(question):
        envs.setdefault((row["split"], row["env"]), []).append(row)
    yield from counted_share_findings(tables, envs, what, unit)


def counted_share_findings(
    tables: AuditTables, envs: Mapping[tuple[str, str], Sequence[Row]], what: str, unit: str
) -> Iterator[Finding]:
    """The same for rows that are counted: by split and env, `n`, `count` of wrong ones and their `ids` by iteration."""
    for (split, env), rows in sorted(envs.items()):
        count, of = sum(row["count"] for row in rows), sum(row["n"] for row in rows)
        if tables.is_enough(of, unit) and count / of > tables.threshold:
            ids = dict.fromkeys(one for row in rows for one in sorted(row["ids"] or ()))
            trend = [[row["iteration"], row["count"] / row["n"]] for row in rows]
            data: dict[str, Any] = {"count": count, "of": of, "share": count / of}
            if len(trend) > 1:
                data["trend"] = trend
            message = f"{count:,} of {of:,} {unit} ({count / of:.0%}) {what}"
            yield Finding(message, tuple(ids)[:MAX_EXAMPLES], f"{split}/{env}", data=data)


def iteration_share_findings(
    tables: AuditTables, count: Count, what: str, kind: str, *, split: str | None = None
) -> Iterator[Finding]:
    """For each env, a finding about the iterations in which a share is above the threshold.

    It names examples of the latest of them. `kind` is what is counted; `what` is said about them. The threshold is
    about single iterations, so that a long good time before does not hide what happens now.
    """
    for (own_split, env), series in tables.iterations().items():
        checked = [one for one in series if tables.iteration in (None, one.iteration)]
        if split not in (None, own_split):
            continue
        above = []
        for one in checked:
            number, of, ids = count(one)
            if tables.is_enough(of, kind) and of and number / of > tables.threshold:
                above.append((one, number, of, ids))
        if not above:
            continue
        one, number, of, ids = above[-1]
        often = f", as in {len(above)} of {len(checked)} iterations" if len(checked) > 1 else ""
        yield Finding(
            f"{number} of {of} {what} ({number / of:.0%}) in iteration {one.iteration}{often}",
            tuple(ids),
            f"{own_split}/{env}",
            data={
                "count": number, "of": of, "share": number / of, "split": own_split, "env": env,
                "iteration": one.iteration, "iterations": [some[0].iteration for some in above[-100:]],
            },
        )  # fmt: skip


def first_and_last(
    tables: AuditTables, series: Sequence[IterationStats]
) -> tuple[Sequence[IterationStats], Sequence[IterationStats]] | None:
    """The first and the last third of the iterations, at most `_MAX_WINDOW` each; None if there are too few."""
    if tables.iteration is not None and (not series or series[-1].iteration != tables.iteration):
        return None
    if len(series) < MIN_ITERATIONS:
        tables.note = tables.note or f"too little data: {len(series)} iterations, at least {MIN_ITERATIONS} needed"
        return None
    window = min(_MAX_WINDOW, len(series) // 3)
    return series[:window], series[-window:]
