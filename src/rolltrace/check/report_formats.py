"""Reports of checks for other tools: SARIF, and annotations of GitHub Actions."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from rolltrace.check.audit import Finding, Severity
from rolltrace.check.audit_report import AuditOutcome, AuditReport, outcome_severity
from rolltrace.terminal_text import escape_text
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.strict_json import encode_json
from rolltrace.version import __version__

_SARIF_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_GITHUB_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def viewer_link(viewer: str, finding: Finding) -> str | None:
    """The page of the finding's first rollout; `viewer` is the URL of the run's page."""
    return (
        f"{viewer.rstrip('/')}/rollout/{quote(finding.rollouts[0], safe='', errors='backslashreplace')}"
        if finding.rollouts
        else None
    )


def to_sarif(reports: Sequence[AuditReport], viewer: str | None = None) -> bytes:
    """The findings of some runs as one SARIF 2.1.0 file, one SARIF run for each report."""
    version = "2.1.0"
    schema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
    runs = [_sarif_run(report, viewer) for report in reports]
    return encode_json({"$schema": schema, "version": version, "runs": runs})


def _sarif_run(report: AuditReport, viewer: str | None) -> dict[str, Any]:
    rules = [
        {
            "id": result.audit,
            "shortDescription": {"text": result.why},
            "help": {"text": result.fix or result.why},
            "defaultConfiguration": {"level": _SARIF_LEVELS[result.severity]},
            "properties": {"tags": [result.family]},
        }
        for result in report.results
    ]
    failures = [
        {"level": "error", "message": {"text": result.error}, "associatedRule": {"id": result.audit}}
        for result in report.results
        if result.error is not None
    ]
    return {
        "tool": {"driver": {"name": "rolltrace check", "version": __version__, "rules": rules}},
        "automationDetails": {"id": f"rolltrace/{report.run or report.path}"},
        "originalUriBaseIds": {"RUN": {"description": {"text": f"The directory of the run, {report.path}"}}},
        "invocations": [{"executionSuccessful": not failures, "toolExecutionNotifications": failures}],
        "results": [
            _sarif_result(number, result, finding, viewer)
            for number, result in enumerate(report.results)
            for finding in result.findings
        ],
    }


def _sarif_result(number: int, result: AuditOutcome, finding: Finding, viewer: str | None) -> dict[str, Any]:
    logical = [{"name": rollout, "kind": "object"} for rollout in finding.rollouts]
    if finding.address is not None:
        logical.insert(0, {"fullyQualifiedName": finding.address, "kind": "namespace"})
    location: dict[str, Any] = {"logicalLocations": logical} if logical else {}
    if finding.file is not None:
        region = {} if finding.offset is None else {"region": {"byteOffset": finding.offset}}
        artifact = {"uri": quote(finding.file, errors="backslashreplace"), "uriBaseId": "RUN"}
        location["physicalLocation"] = {"artifactLocation": artifact, **region}
    found: dict[str, Any] = {
        "ruleId": result.audit,
        "ruleIndex": number,
        "level": _SARIF_LEVELS[result.severity],
        "message": {"text": finding.message},
        "locations": [location] if location else [],
        "partialFingerprints": {"rolltraceFinding/v1": _fingerprint(result.audit, finding)},
        "properties": {"data": FrozenMap.of(finding.data)},
    }
    if viewer is not None and (link := viewer_link(viewer, finding)) is not None:
        found["hostedViewerUri"] = link
    return found


def _fingerprint(audit: str, finding: Finding) -> str:
    return hashlib.blake2b(f"{audit}\0{finding.key}".encode(), digest_size=16).hexdigest()


def github_annotations(report: AuditReport, viewer: str | None = None) -> Iterator[str]:
    """Lines that GitHub Actions shows as annotations of a job."""
    for result in report.with_findings:
        command = _GITHUB_COMMANDS[outcome_severity(result)]
        title = _property(f"rolltrace check: {result.audit}")
        if result.error is not None:
            yield f"::{command} title={title}::{_data(f'the audit itself failed: {result.error}')}"
        for finding in result.findings:
            where = finding.address or ", ".join(finding.rollouts) or finding.file or ""
            link = None if viewer is None else viewer_link(viewer, finding)
            text = "\n".join(filter(None, (finding.message, f"{report.path} {where}".strip(), result.fix, link)))
            yield f"::{command} title={title}::{_data(text)}"


def _data(text: str) -> str:
    """Text as a workflow command takes it, so that nothing in it starts another command or steers a terminal."""
    return escape_text(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
