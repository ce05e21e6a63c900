"""The report of a check: the outcome of every audit of a run."""

import msgspec
from msgspec.structs import asdict

from rolltrace.check.audit import Finding, Severity
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.strict_json import encode_json


class AuditOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one audit."""

    audit: str
    family: str
    severity: Severity
    why: str
    fix: str
    """What to do about its findings."""
    count: int = 0
    """How many findings there are."""
    findings: tuple[Finding, ...] = ()
    """The first of them."""
    accepted: int = 0
    """How many more there are that the baseline accepts."""
    note: str | None = None
    """Why the audit could not judge, such as too little data."""
    error: str | None = None
    """Why the audit itself failed, if it did; its findings are then incomplete."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all audits of one run, or of one iteration of it."""

    path: str
    run: str | None
    """The run's id."""
    iteration: int | None = None
    """The iteration that was checked; None for the whole run. Files are then not read."""
    rollouts: int
    """How many were read."""
    scores: int
    sessions: int = 0
    files: int = 0
    bytes: int = 0
    """The size of those files."""
    seconds: float
    results: tuple[AuditOutcome, ...]
    """One for each audit, with or without findings."""

    @property
    def with_findings(self) -> list[AuditOutcome]:
        """The outcomes with findings or an error, the worst first."""
        results = [result for result in self.results if result.count or result.error is not None]
        return sorted(results, key=lambda result: list(Severity).index(outcome_severity(result)))

    @property
    def ok(self) -> bool:
        """Whether there is no warning and no error; findings of severity `info` do not count."""
        return not self.fails(Severity.WARNING)

    def fails(self, lowest: Severity) -> bool:
        """Whether there is a finding of this severity, or of a worse one."""
        ranks = list(Severity)
        return any(ranks.index(outcome_severity(result)) <= ranks.index(lowest) for result in self.with_findings)

    def count(self, severity: Severity) -> int:
        """How many findings of this severity there are."""
        return sum(
            result.count + (result.error is not None)
            for result in self.with_findings
            if outcome_severity(result) is severity
        )


def outcome_severity(result: AuditOutcome) -> Severity:
    """Return the severity of an outcome; an audit that failed is an error."""
    return Severity.ERROR if result.error is not None else result.severity


def encode_report(report: AuditReport) -> bytes:
    """Encode a report as one JSON object."""
    results = [
        {**asdict(result), "findings": [{**asdict(one), "data": FrozenMap.of(one.data)} for one in result.findings]}
        for result in report.results
    ]
    return encode_json({**asdict(report), "ok": report.ok, "results": results})
