"""The tables that audits query: the rollouts that count, of a whole run or of one iteration."""

import re
from collections.abc import Iterator
from typing import Any

from rolltrace.check.audit import MAX_EXAMPLES, Audit, Finding
from rolltrace.check.iteration_stats import IterationStats, IterationStatsCache, by_env
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.query.copied_tables import CopiedTables
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey

Row = dict[str, Any]

_TABLES = {
    "attempts": "select * from rollouts",  # before `rollouts` is replaced
    "rollouts": "select * from rollouts where not retried",
    "groups": "select * from groups",
    "steps": "select * from steps semi join rollouts on rollouts.id = steps.rollout",
    "messages": "select * from messages semi join rollouts on rollouts.id = messages.rollout",
    "calls": """
        select * from calls where rollout in (select id from rollouts) or rollout is null
        or score in (select id from scores)
    """,
    "scores": "select * from scores where rollout in (select id from rollouts) or rollout is null",
}
"""By name, the rows that audits see."""
_ALSO = {"steps": ("rollouts",), "messages": ("rollouts",), "scores": ("rollouts",), "calls": ("rollouts", "scores")}
_NAMES = re.compile(rf"\b({'|'.join(_TABLES)})\b")


class TableSource:
    """The tables of one check, which its audits share: those of a whole run, or of one iteration.

    They are copied into memory, unless the run is too large for that.
    """

    def __init__(
        self, run: Run, iteration: int | None = None, stats: IterationStatsCache | None = None, *, copies: bool = True
    ) -> None:
        self.run = run
        self.iteration = iteration
        self._copies = copies
        self._copied: CopiedTables | None = None
        self._stats_cache = stats or IterationStatsCache(run)
        self._stats: dict[str | None, list[IterationStats]] = {}

    def rows(self, sql: str) -> Iterator[Row]:
        """The rows of a SELECT over the tables."""
        if self._copies:
            self._copied = self._copied or CopiedTables(self.run, self.iteration)
            return self._copied.rows(sql)
        names = set(_NAMES.findall(sql))
        for name in tuple(names):
            names.update(_ALSO.get(name, ()))
        parts = ", ".join(f"{name} as ({query})" for name, query in _TABLES.items() if name in names)
        # A statement that begins with `with` goes on after ours.
        rest = re.sub(r"^\s*with\b", ",", sql, count=1, flags=re.IGNORECASE)
        tables = frozenset(names - {"attempts"} | {"rollouts"})
        return self.run.select(f"with {parts} {rest}", tables).dicts()

    def iterations(self, measure: str | None) -> list[IterationStats]:
        """The numbers of all iterations, or up to the one that is checked; computed once."""
        if measure not in self._stats:
            self._stats[measure] = self._stats_cache.stats(measure, self.iteration, self.rows)
        return self._stats[measure]

    def close(self) -> None:
        """Free the memory of copied tables; the run stays open."""
        if self._copied is not None:
            self._copied.close()


class AuditTables:
    """What an audit of tables is called with.

    `rollouts`, `steps`, `messages`, `calls`, `scores` and `groups` have the columns of `docs/tables.md`, without
    rollouts that were played again; `attempts` are the rollouts with those. If one iteration is checked, all have its
    rows alone.
    """

    def __init__(self, source: TableSource, settings: CheckSettings, audit: Audit | None = None) -> None:
        self._source = source
        self.settings = settings
        own = AuditSettings() if audit is None else settings.audits.get(audit.name, AuditSettings())
        default = None if audit is None else audit.threshold
        self.threshold = own.threshold if own.threshold is not None else 0.0 if default is None else default.value
        """The number from which the audit reports."""
        self.min_sample = own.min_sample if own.min_sample is not None else 0 if default is None else default.min_sample
        self.note: str | None = None
        """Why the audit did not look, or not everywhere."""
        self._most = -1

    @property
    def run(self) -> Run:
        """The run, for what the tables lack."""
        return self._source.run

    @property
    def iteration(self) -> int | None:
        """The iteration that is checked; None for all."""
        return self._source.iteration

    def rows(self, sql: str) -> Iterator[Row]:
        """The rows of a SELECT over the tables."""
        return self._source.rows(sql)

    def iterations(self) -> dict[tuple[str, str], list[IterationStats]]:
        """By split and env, the numbers of its iterations in order, up to the one that is checked."""
        return by_env(self._source.iterations(self.settings.measure))

    def is_enough(self, count: int, what: str = "rollouts") -> bool:
        """Whether a sample is large enough to judge; if no sample is, the report says so."""
        if count > self._most:
            self._most = count
            self.note = (
                None
                if count >= self.min_sample
                else f"too little data: {count} {what}, at least {self.min_sample} needed"
            )
        return count >= self.min_sample

    def skip(self, reason: str) -> tuple[Finding, ...]:
        """Say why the audit has nothing to look at: `return tables.skip("no advantages are recorded")`."""
        self.note = reason
        return ()


def examples(ids: list[str]) -> tuple[str, ...]:
    """The ids that a finding about many rollouts names."""
    return tuple(ids[:MAX_EXAMPLES])


def scope_address(row: Row) -> str:
    """The address of a row's SPLIT/ENV, with ITERATION and GROUP if the row has them."""
    parts = [row["split"], row["env"]]
    if row.get("iteration") is not None:
        parts.append(str(row["iteration"]))
        if row.get("group") is not None:
            return GroupKey(row["split"], row["iteration"], row["env"], row["group"]).address
    return "/".join(parts)
