"""The report of `rolltrace check`."""

from collections.abc import Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rolltrace.check.audit import Audit, Finding, Severity
from rolltrace.check.audit_report import AuditOutcome, AuditReport, outcome_severity
from rolltrace.check.report_formats import viewer_link
from rolltrace.check.watch import FindingChanges
from rolltrace.cli.hints import command
from rolltrace.cli.screen.console import print_wrapped
from rolltrace.cli.screen.number_format import format_duration, plural
from rolltrace.terminal_text import escape_line

_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_MAX_IDS = 3
_SIGNS = {Severity.ERROR: "✗", Severity.WARNING: "!", Severity.INFO: "·"}


def show_audit_list(console: Console, audits: Sequence[Audit]) -> None:
    """Print each audit's name, severity and explanation."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for audit in audits:
        severity = Text(audit.severity.value, _STYLES[audit.severity])
        table.add_row(Text(escape_line(audit.name), "bold"), severity, Text(escape_line(f"{audit.why} {audit.fix}")))
    console.print(table)


def show_changes(console: Console, changes: FindingChanges) -> None:
    """Print what is new and what is resolved since the last check."""
    report = changes.report
    failed = [result for result in report.results if result.error is not None]
    for result in failed:
        message = f"! {result.audit}  the audit itself failed: {result.error}"
        print_wrapped(console, Text(escape_line(message), "red"))
    if not changes.new and not changes.resolved and not failed:
        at = "no iteration yet" if report.iteration is None else f"iteration {report.iteration}: nothing wrong"
        print_wrapped(console, Text(at, "dim"))
    for result, finding in changes.new:
        _show_change(console, "+", _STYLES[result.severity], report, result, finding)
    for result, finding in changes.resolved:
        _show_change(console, "−", "green", report, result, finding)


def _show_change(
    console: Console, sign: str, style: str, report: AuditReport, result: AuditOutcome, finding: Finding
) -> None:
    line = Text(f"{sign} ", f"bold {style}")
    line.append(escape_line(result.audit), f"bold {style}")
    line.append(f"  iteration {report.iteration}  ", "dim")
    line.append(escape_line(finding.message) if sign == "+" else f"resolved: {escape_line(finding.message)}")
    print_wrapped(console, line)
    if evidence := _evidence(finding):
        print_wrapped(console, Text(evidence, "dim"), "    ")


def show_report(console: Console, report: AuditReport, viewer: str | None = None, *, is_first: bool = True) -> None:
    """Print what was checked, the findings of each audit, and the conclusion."""
    if not is_first:
        console.print()
    print_wrapped(console, Text(escape_line(report.path), "bold"))
    records = f"{plural(report.rollouts, 'rollout')} and {plural(report.scores, 'score')}"
    audits = f"{plural(len(report.results), 'audit')} in {format_duration(report.seconds)}"
    facts = [
        f"{records} of {plural(report.sessions, 'session')}",
        f"{plural(report.files, 'file')}, {decimal(report.bytes)}",
    ]
    if report.iteration is not None:
        facts = [f"iteration {report.iteration}", records]
    facts.append(audits)
    print_wrapped(console, Text(" · ".join(facts), "dim"))
    for result in report.with_findings:
        console.print()
        _show_result(console, result, viewer)
    _show_notes(console, report)
    console.print()
    print_wrapped(console, _conclusion(report))
    example = next(
        (f.rollouts[0] for result in report.with_findings for f in result.findings if _is_shown(result, f)), None
    )
    if example is not None:
        print_wrapped(console, Text(f"To look at one: {command('show', report.path, example)}", "dim"))


def _show_notes(console: Console, report: AuditReport) -> None:
    """Print which audits could say nothing, by reason."""
    audits_by_reason: dict[str, list[str]] = {}
    for result in report.results:
        if result.note is not None:
            audits_by_reason.setdefault(result.note, []).append(result.audit)
    if audits_by_reason:
        console.print()
        print_wrapped(
            console,
            Text(f"{plural(sum(map(len, audits_by_reason.values())), 'audit')} had too little to judge:", "dim"),
        )
    for reason, audits in audits_by_reason.items():
        print_wrapped(console, Text(escape_line(f"{', '.join(audits)}: {reason}"), "dim"), "  ")


def _show_result(console: Console, result: AuditOutcome, viewer: str | None) -> None:
    severity = outcome_severity(result)
    title = Text(f"{_SIGNS[severity]} ", f"bold {_STYLES[severity]}")
    title.append(escape_line(result.audit), f"bold {_STYLES[severity]}")
    title.append(f"  {severity.value}", _STYLES[severity])
    if result.count:
        title.append(f"  {plural(result.count, 'finding')}")
    print_wrapped(console, title)
    if result.error is not None:
        print_wrapped(console, Text(f"the audit itself failed: {escape_line(result.error)}", "red"), "  ")
    print_wrapped(console, Text(escape_line(f"{result.why} {result.fix}".strip()), "dim"), "  ")
    for finding in result.findings:
        print_wrapped(console, Text(f"– {escape_line(finding.message)}"), "  ")
        if evidence := _evidence(finding):
            print_wrapped(console, Text(evidence, "dim"), "    ")
        if viewer is not None and (link := viewer_link(viewer, finding)) is not None:
            print_wrapped(console, Text(escape_line(link), "dim"), "    ")
    if more := result.count - len(result.findings):
        print_wrapped(console, Text(f"… and {more} more: --most {result.count} shows all", "italic"), "  ")


def _evidence(finding: Finding) -> str:
    """Where a finding is: rollouts that `rolltrace show` takes, then the file and the session."""
    rollouts = ", ".join(finding.rollouts[:_MAX_IDS]) + (", …" if len(finding.rollouts) > _MAX_IDS else "")
    file = finding.file
    if file is not None and finding.offset is not None:
        file = f"{file}, byte {finding.offset}"
    labels = {rollouts or None: "", finding.address: "", file: "", finding.session: "session "}
    named = finding.session is not None and finding.file is not None and finding.session in finding.file
    facts = [
        f"{label}{escape_line(text)}"
        for text, label in labels.items()
        if text is not None and not (named and text == finding.session)
    ]
    return " · ".join(facts)


def _is_shown(result: AuditOutcome, finding: Finding) -> bool:
    """Whether `rolltrace show` can show the rollout of a finding, which is missing if it is unknown."""
    return bool(finding.rollouts) and result.audit != "unknown_rollout"


def _conclusion(report: AuditReport) -> Text:
    counts = {severity: report.count(severity) for severity in Severity}
    accepted = sum(result.accepted for result in report.results)
    more = Text(f", {accepted} accepted" if accepted else "", "dim")
    if not any(counts.values()):
        return Text("✓ nothing wrong", "bold green") + more
    parts = [Text("✓ nothing wrong", "bold green")] if report.ok else []
    names = {Severity.ERROR: "error", Severity.WARNING: "warning"}
    for severity, count in counts.items():
        if count:
            total = f"{count} worth knowing" if severity is Severity.INFO else plural(count, names[severity])
            parts.append(Text(total, f"bold {_STYLES[severity]}"))
    return Text(", ").join(parts) + more
