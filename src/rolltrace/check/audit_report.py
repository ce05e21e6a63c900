"""The report of a check: the outcome of every audit of a run."""

import msgspec
from msgspec.structs import asdict

from rolltrace.check.audit import Finding, Severity
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.strict_json import encode_json


class AuditOutcome(msgspec.Struct, frozen=True):
    """The outcome of one audit."""

    audit: str
    severity: Severity
    about: str
    """Why it matters and what to do."""
    count: int = 0
    """How many findings there are."""
    findings: tuple[Finding, ...] = ()
    """The first of them."""
    error: str | None = None
    """Why the audit itself failed, if it did; its findings are then incomplete."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of all audits of one run."""

    path: str
    run: str | None
    """The run's id."""
    rollouts: int
    """How many were read."""
    scores: int
    sessions: int
    files: int
    bytes: int
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
        return all(outcome_severity(result) is Severity.INFO for result in self.with_findings)

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
