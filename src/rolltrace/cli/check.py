"""`rolltrace check`: audits runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rolltrace.check.audit_report import AuditReport
    from rolltrace.check.check_run import CheckOptions
    from rolltrace.check.watch import FindingChanges

_SEVERITIES = ("error", "warning", "info")
_NEVER = "never"
_FORMATS = ("text", "json", "sarif", "github")
_FILE = click.Path(path_type=Path)
_ALL = 10**9


@click.command(short_help="Audit runs for lost data, wrong rewards, broken environments and reward hacking.")
@click.argument("runs", metavar="RUN...", type=_FILE, nargs=-1)
@click.option("--only", multiple=True, metavar="AUDIT", help="Run only this audit or family of audits; repeatable.")
@click.option("--skip", multiple=True, metavar="AUDIT", help="Skip this audit or family of audits; repeatable.")
@click.option("--add", multiple=True, metavar="AUDIT", help="Add your own audit: package.module:name; repeatable.")
@click.option("--config", type=_FILE, metavar="FILE", help="Thresholds and more; see docs/checks.md.")
@click.option("--tokenizer", metavar="DIR", help="The policy's tokenizer, to compare token ids with the text.")
@click.option("--baseline", type=_FILE, metavar="FILE", help="Leave out the findings that this file accepts.")
@click.option(
    "--write-baseline",
    type=_FILE,
    metavar="FILE",
    help="Accept all findings: write them to this file, with those that --baseline accepts.",
)
@click.option("--iteration", metavar="N|latest", help="Check one iteration only, without the files.")
@click.option("--watch", is_flag=True, help="Follow the newest iteration: print new and resolved findings.")
@click.option(
    "--fail-on",
    type=click.Choice([*_SEVERITIES, _NEVER]),
    help="The lowest severity that gives exit code 1; by default error.",
)
@click.option("--most", type=click.IntRange(min=1), default=20, help="Show at most this many findings per audit.")
@click.option("--list", "as_list", is_flag=True, help="List the audits, and check nothing.")
@click.option("--format", "output", type=click.Choice(_FORMATS), default="text", help="By default text.")
@click.option(
    "--json", "as_json", is_flag=True, help="Short for --format json: one object per run, or audit with --list."
)
@click.option("--viewer", metavar="URL", help="The address of the run's page in a viewer, for links to rollouts.")
def check(
    runs: tuple[Path, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    add: tuple[str, ...],
    config: Path | None,
    tokenizer: str | None,
    baseline: Path | None,
    write_baseline: Path | None,
    iteration: str | None,
    watch: bool,
    fail_on: str | None,
    most: int,
    as_list: bool,
    output: str,
    as_json: bool,
    viewer: str | None,
) -> None:
    """Audit each RUN: lost and damaged data, sums that do not add up, and training data that is not what it seems.

    The exit code is 1 if there is an error, or a finding of the severity that --fail-on names.
    """
    from msgspec.structs import replace

    from rolltrace.check.audit import Severity
    from rolltrace.check.check_run import CheckOptions
    from rolltrace.check.settings import CheckSettings, load_settings

    output = "json" if as_json else output
    settings = CheckSettings() if config is None else load_settings(config)
    settings = settings if tokenizer is None else replace(settings, tokenizer=tokenizer)
    options = CheckOptions(only=only, skip=skip, add=add, settings=settings, baseline=baseline, max_findings=most)
    if as_list:
        _list_audits(options, as_json=output == "json")
        return
    if not runs or (watch and len(runs) > 1):
        raise click.UsageError(
            f"Expected {'one' if watch else 'at least one'} RUN to check, got {len(runs) or 'none'}."
        )
    if watch:
        ignored = {
            "--iteration": iteration,
            "--write-baseline": write_baseline,
            "--fail-on": fail_on,
            "--viewer": viewer,
        }
        if given := [name for name, value in ignored.items() if value is not None]:
            raise click.UsageError(f"Expected --watch without {', '.join(given)}.")
        _watch(runs[0], options, output)
        return
    if write_baseline is not None:
        options["max_findings"] = _ALL
    lowest = fail_on or settings.fail_on or Severity.ERROR.value
    reports = []
    for run in runs:
        report = _check(run, iteration, options)
        reports.append(report)
        _show(report, output, viewer, is_first=len(reports) == 1)
    if output == "sarif":
        _write_sarif(reports, viewer)
    if write_baseline is not None:
        _accept(reports, write_baseline, baseline)
    elif lowest != _NEVER and any(report.fails(Severity(lowest)) for report in reports):
        raise SystemExit(1)


def _write_sarif(reports: "list[AuditReport]", viewer: str | None) -> None:
    from rolltrace.check.report_formats import to_sarif
    from rolltrace.cli.screen.console import write_record

    write_record(to_sarif(reports, viewer) + b"\n")


def _accept(reports: "list[AuditReport]", file: Path, before: Path | None) -> None:
    from rolltrace.check.baseline import load_baseline, write_baseline
    from rolltrace.cli.screen.number_format import plural

    write_baseline(file, reports, None if before is None else load_baseline(before))
    count = sum(len(result.findings) for report in reports for result in report.results)
    click.echo(f"{plural(count, 'finding')} accepted in {file}.", err=True)


def _check(run: Path, iteration: str | None, options: "CheckOptions") -> "AuditReport":
    from rolltrace.check.check_run import IterationChecker, check_run
    from rolltrace.cli.screen.rollout_progress import rollout_progress
    from rolltrace.errors import InputError

    if iteration is not None:
        number = _iteration(iteration)
        with IterationChecker(run, **options) as checker:
            if number is not None and not checker.has_iteration(number):
                raise InputError(f"Expected rollouts of iteration {number} in {run}, got none.")
            return checker.check(number)
    with rollout_progress(run) as on_progress:
        return check_run(run, on_progress=on_progress, **options)


def _show(report: "AuditReport", output: str, viewer: str | None, *, is_first: bool) -> None:
    from rolltrace.check.audit_report import encode_report
    from rolltrace.check.report_formats import github_annotations
    from rolltrace.cli.screen.audit_report import show_report
    from rolltrace.cli.screen.console import stdout_console, write_record

    if output == "json":
        write_record(encode_report(report) + b"\n")
    elif output == "github":
        for line in github_annotations(report, viewer):
            click.echo(line)
    elif output == "text":
        show_report(stdout_console(), report, viewer, is_first=is_first)


def _watch(run: Path, options: "CheckOptions", output: str) -> None:
    import threading

    from rolltrace.check.watch import watch_run
    from rolltrace.cli.screen.audit_report import show_changes
    from rolltrace.cli.screen.console import stdout_console, write_json

    if output not in ("text", "json"):
        raise click.UsageError(f"Expected --format text or json with --watch, got {output}.")
    for changes in _until_interrupted(watch_run(run, threading.Event(), **options)):
        if output == "text":
            show_changes(stdout_console(), changes)
        for kind, pairs in {"new": changes.new, "resolved": changes.resolved}.items() if output == "json" else ():
            for result, finding in pairs:
                write_json(
                    {
                        "change": kind,
                        "iteration": changes.report.iteration,
                        "audit": result.audit,
                        "severity": result.severity,
                        "message": finding.message,
                        "rollouts": finding.rollouts,
                        "address": finding.address,
                    }
                )


def _until_interrupted(changes: "Iterator[FindingChanges]") -> "Iterator[FindingChanges]":
    """Ctrl-C is how a watch ends."""
    try:
        yield from changes
    except KeyboardInterrupt:
        return


def _list_audits(options: "CheckOptions", *, as_json: bool) -> None:
    from rolltrace.check.audit_registry import select_audits
    from rolltrace.cli.screen.audit_report import show_audit_list
    from rolltrace.cli.screen.console import stdout_console, write_json

    audits = select_audits(options["only"], options["skip"], options["add"])
    if not as_json:
        show_audit_list(stdout_console(), audits)
        return
    for audit in audits:
        fields = ("name", "family", "severity", "why", "fix", "holds")
        write_json({**{name: getattr(audit, name) for name in fields}, "over": audit.input})


def _iteration(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"expected a number or latest, got {text!r}", param_hint="--iteration")
    return int(text)
