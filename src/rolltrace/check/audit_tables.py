"""What an audit of tables is called with: the tables, its threshold, and notes for the report."""

from collections.abc import Iterator

from rolltrace.check.audit import MAX_EXAMPLES, Audit, Finding
from rolltrace.check.iteration_stats import IterationStats, by_env
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.check.table_source import Row, TableSource
from rolltrace.query.run import Run
from rolltrace.trace.score import GroupKey


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

    def rows_in_batches(self, sql: str, *, splits_iterations: bool = False) -> Iterator[Row]:
        """The rows of a SELECT that looks at each iteration by itself, for some iterations after the other.

        Use this if a statement holds texts, or something for each rollout: memory then does not grow with the run. With
        `splits_iterations`, a large iteration comes in parts.
        """
        return self._source.rows_in_batches(sql, splits_iterations=splits_iterations)

    def has(self, rows: str) -> bool:
        """Whether there are such rows: `tables.has("steps where policy_version is not null")`."""
        return any(self.rows(f"select 1 from {rows} limit 1"))

    def iterations(self) -> dict[tuple[str, str], list[IterationStats]]:
        """By split and env, the numbers of its iterations in order, up to the one that is checked."""
        return by_env(self._source.iterations(self.settings.measure))

    def is_enough(self, count: int, what: str = "rollouts") -> bool:
        """Whether a sample is large enough to judge; if no sample is, the report says so."""
        needed = max(self.min_sample, 1)
        if count > self._most:
            self._most = count
            self.note = None if count >= needed else f"too little data: {count} {what}, at least {needed} needed"
        return count >= needed

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
