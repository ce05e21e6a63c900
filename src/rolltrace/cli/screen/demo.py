"""What came of the demo, as a table."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.number_format import format_duration, short_number
from rolltrace.jobs.demo_run import DemoResult
from rolltrace.jobs.play_summary import PlaySummary
from rolltrace.terminal_text import escape_line


def show_demo(console: Console, demo: DemoResult) -> None:
    """Print a line for each environment, what the audits found, and what recording cost."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("environment", no_wrap=True)
    table.add_column("mean reward", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("stopped", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    for summary in demo.summaries:
        table.add_row(
            Text(escape_line(summary.env), "bold"),
            "–" if summary.mean_reward is None else short_number(round(summary.mean_reward, 4)),
            f"{summary.rewarded}/{summary.rollouts}",
            _stopped(summary),
            format_duration(summary.seconds),
        )
    console.print(table)
    console.print()
    rollouts = sum(summary.rollouts for summary in demo.summaries)
    who = f"by {escape_line(demo.policy)}, graded and answered by {escape_line(demo.grader)}"
    playing = (
        f"{rollouts} rollouts {who}, in {format_duration(demo.seconds)}; all recorded in {escape_line(demo.path)}."
    )
    console.print(Text(playing, "bold"), soft_wrap=True)
    fraction = _percent(demo.recording_fraction)
    cost = f"Recording them took {format_duration(demo.recording_seconds)} of computing: {fraction}"
    console.print(Text(f"{cost} of the time (measured by recording them once more)."), soft_wrap=True)
    if demo.report.ok:
        audits = f"✓ {len(demo.report.results)} audits found nothing wrong."
        console.print(Text(audits, "green"), soft_wrap=True)
    for result in demo.report.with_findings:
        what = f"{escape_line(result.audit)}: {result.count} found; rolltrace check {escape_line(demo.path)} says more"
        console.print(Text(what, "yellow"), soft_wrap=True)


def _stopped(summary: PlaySummary) -> Text:
    """How the rollouts ended, and how often a part failed."""
    ends = ", ".join(f"{escape_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    text = Text(ends)
    for layer in sorted({message.partition(" ")[0] for message in summary.errors}):
        count = sum(times for message, times in summary.errors.items() if message.partition(" ")[0] == layer)
        text.append(f"  ({escape_line(layer)} failed {count} ×)", "red")
    return text


def _percent(share: float) -> str:
    return "under 0.01 %" if share < 0.0001 else f"{100 * share:.2g} %"
