"""What a check of a run came to."""

from typing import Any

import msgspec

from rolltrace.check.audit import Audit
from rolltrace.check.finding import Finding, Severity
from rolltrace.trace.careful import json_encoder
from rolltrace.trace.codec import wire_free_form


class Result(msgspec.Struct, frozen=True):
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


class Report(msgspec.Struct, frozen=True, kw_only=True):
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
    results: tuple[Result, ...]
    """One for each audit, whether or not it found something."""

    @property
    def found(self) -> list[Result]:
        """Those that have something to say, the worst first."""
        telling = [result for result in self.results if result.count or result.error is not None]
        return sorted(telling, key=lambda result: list(Severity).index(severity_of(result)))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; what is only worth knowing is not wrong."""
        return all(severity_of(result) is Severity.INFO for result in self.found)

    def count(self, severity: Severity) -> int:
        """How many findings of this severity there are."""
        return sum(
            result.count + (result.error is not None) for result in self.found if severity_of(result) is severity
        )


def severity_of(result: Result) -> Severity:
    """How bad a result is; an audit that failed is an error, since nobody knows what it would have found."""
    return Severity.ERROR if result.error is not None else result.severity


def encode_audit(audit: Audit) -> bytes:
    """An audit's name, severity and explanation as one JSON object."""
    told = {"name": audit.name, "severity": audit.severity, "about": audit.about, "over": audit.over}
    return json_encoder.encode(told)


def encode_report(report: Report) -> bytes:
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
