"""The report of `rolltrace replay`."""

from rich.console import Console
from rich.text import Text

from rolltrace.cli.hints import command
from rolltrace.cli.screen.console import print_wrapped
from rolltrace.jobs.replay_report import ReplayReport, report_lines


def show_replay_report(console: Console, report: ReplayReport) -> None:
    """Print the counts of each environment, the first differences, and the conclusion."""
    for line in report_lines(report):
        print_wrapped(console, Text(line.text, line.style), line.indent)
    if report.differing:
        example = command("show", report.path, report.differing[0].id)
        print_wrapped(console, Text(f"To look at the first: {example}", "dim"))
