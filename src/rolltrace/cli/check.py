"""`rolltrace check`: audits runs."""

from pathlib import Path

import click


@click.command(short_help="Audit runs for lost or damaged data and sums that do not add up.")
@click.argument("runs", metavar="RUN...", type=click.Path(path_type=Path), nargs=-1)
@click.option("--only", multiple=True, metavar="AUDIT", help="Run only this audit; repeatable.")
@click.option("--skip", multiple=True, metavar="AUDIT", help="Skip this audit; repeatable.")
@click.option("--add", multiple=True, metavar="AUDIT", help="Add your own audit: package.module:name; repeatable.")
@click.option("--most", type=click.IntRange(min=1), default=20, help="Show at most this many findings per audit.")
@click.option("--list", "as_list", is_flag=True, help="List the audits, and check nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run, or per audit with --list.")
def check(
    runs: tuple[Path, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    add: tuple[str, ...],
    most: int,
    as_list: bool,
    as_json: bool,
) -> None:
    """Audit each RUN: damaged and missing files, duplicate records, sums that do not add up.

    The exit code is 1 if something is wrong. Findings of severity info do not change it.
    """
    from rolltrace.check.audit_registry import select_audits
    from rolltrace.check.audit_report import encode_report
    from rolltrace.check.check_run import check_run
    from rolltrace.cli.screen.audit_report import show_audit_list, show_report
    from rolltrace.cli.screen.console import stdout_console, write_json, write_record
    from rolltrace.cli.screen.rollout_progress import rollout_progress

    audits = select_audits(only, skip, add)
    if as_list:
        if as_json:
            for audit in audits:
                write_json({"name": audit.name, "severity": audit.severity, "about": audit.about, "over": audit.input})
        else:
            show_audit_list(stdout_console(), audits)
        return
    if not runs:
        raise click.UsageError("Expected at least one RUN to check, got none.")
    is_ok = True
    for number, run in enumerate(runs):
        with rollout_progress(run) as on_progress:
            report = check_run(run, only=only, skip=skip, add=add, max_findings=most, on_progress=on_progress)
        is_ok &= report.ok
        if as_json:
            write_record(encode_report(report) + b"\n")
        else:
            show_report(stdout_console(), report, is_first=number == 0)
    if not is_ok:
        raise SystemExit(1)
