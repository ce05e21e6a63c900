"""What a check of a run came to."""

from typing import Any

import msgspec

from rolltrace.check.audit import Audit, Finding, Severity
from rolltrace.trace.codec import wire_free_form
from rolltrace.trace.strict_json import json_encoder


class AuditOutcome(msgspec.Struct, frozen=True):
    """What one audit came to."""

    audit: str
    severity: Severity
    about: str
    """Why it matters and what to do."""
    count: int = 0
    """How many findings there are."""
    findings: tuple[Finding, ...] = ()
    """The first of them."""
    error: str | None = None
    """Why the audit itself failed, where it did; it then says nothing about the run."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What all audits of one run came to."""

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
    """One for each audit, whether or not it found something."""

    @property
    def with_findings(self) -> list[AuditOutcome]:
        """Those that have something to say, the worst first."""
        telling = [result for result in self.results if result.count or result.error is not None]
        return sorted(telling, key=lambda result: list(Severity).index(outcome_severity(result)))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; what is only worth knowing is not wrong."""
        return all(outcome_severity(result) is Severity.INFO for result in self.with_findings)

    def count(self, severity: Severity) -> int:
        """How many findings of this severity there are."""
        return sum(
            result.count + (result.error is not None)
            for result in self.with_findings
            if outcome_severity(result) is severity
        )


def outcome_severity(result: AuditOutcome) -> Severity:
    """How bad a result is; an audit that failed is an error, since nobody knows what it would have found."""
    return Severity.ERROR if result.error is not None else result.severity


def encode_audit(audit: Audit) -> bytes:
    """An audit's name, severity and explanation as one JSON object."""
    told = {"name": audit.name, "severity": audit.severity, "about": audit.about, "over": audit.input}
    return json_encoder.encode(told)


def encode_report(report: AuditReport) -> bytes:
    """A report as one JSON object."""
    fields: dict[str, Any] = {name: getattr(report, name) for name in report.__struct_fields__}
    fields["ok"] = report.ok
    fields["results"] = [
        {**msgspec.structs.asdict(result), "findings": [_plain(finding) for finding in result.findings]}
        for result in report.results
    ]
    return json_encoder.encode(fields)


def _plain(finding: Finding) -> dict[str, Any]:
    return {**msgspec.structs.asdict(finding), "data": wire_free_form(finding.data)}
