"""What came of the demo, as a table."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.visible import duration, number, visible_line
from rolltrace.jobs.demo import Demo
from rolltrace.jobs.summary import Summary


def show_demo(console: Console, demo: Demo) -> None:
    """Print a line for each environment, what the audits found, and what recording cost."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("environment", no_wrap=True)
    table.add_column("mean reward", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("stopped", overflow="fold")
    table.add_column("took", justify="right", no_wrap=True)
    for summary in demo.summaries:
        table.add_row(
            Text(visible_line(summary.env), "bold"),
            "–" if summary.mean_reward is None else number(round(summary.mean_reward, 4)),
            f"{summary.rewarded}/{summary.rollouts}",
            _stopped(summary),
            duration(summary.seconds),
        )
    console.print(table)
    console.print()
    rollouts = sum(summary.rollouts for summary in demo.summaries)
    who = f"by {visible_line(demo.policy)}, graded and answered by {visible_line(demo.grader)}"
    playing = f"{rollouts} rollouts {who}, in {duration(demo.seconds)}; all recorded in {visible_line(demo.path)}."
    console.print(Text(playing, "bold"), soft_wrap=True)
    cost = f"Recording them took {duration(demo.recording_seconds)} of computing: {_percent(demo.recording_share)}"
    console.print(Text(f"{cost} of the time (measured by recording them once more)."), soft_wrap=True)
    if demo.report.ok:
        audits = f"✓ {len(demo.report.results)} audits found nothing wrong."
        console.print(Text(audits, "green"), soft_wrap=True)
    for result in demo.report.found:
        what = (
            f"{visible_line(result.audit)}: {result.count} found; rolltrace check {visible_line(demo.path)} says more"
        )
        console.print(Text(what, "yellow"), soft_wrap=True)


def _stopped(summary: Summary) -> Text:
    """How the rollouts ended, and how often a part failed."""
    ends = ", ".join(f"{visible_line(reason)} {count}" for reason, count in sorted(summary.stop_reasons.items()))
    text = Text(ends)
    for layer in sorted({message.partition(" ")[0] for message in summary.errors}):
        count = sum(times for message, times in summary.errors.items() if message.partition(" ")[0] == layer)
        text.append(f"  ({visible_line(layer)} failed {count} ×)", "red")
    return text


def _percent(share: float) -> str:
    return "under 0.01 %" if share < 0.0001 else f"{100 * share:.2g} %"
