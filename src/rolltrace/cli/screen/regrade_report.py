"""The progress and the report of `rolltrace regrade`."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.console import print_wrapped, stderr_console, table_cell
from rolltrace.cli.screen.number_format import format_duration, plural, short_number
from rolltrace.cli.screen.rollout_progress import rollout_progress
from rolltrace.terminal_text import escape_line

if TYPE_CHECKING:
    from rolltrace.jobs.regrade import RegradeSummary
    from rolltrace.query.regrade_report import RegradeReport

_LINE_SECONDS = 5.0
"""Between two lines of progress if standard error is not a terminal."""


@contextlib.contextmanager
def regrade_progress(path: Path) -> Iterator[Callable[[int, int], None]]:
    """Show progress on standard error: a bar on a terminal, a line every few seconds elsewhere."""
    console = stderr_console()
    next_line = time.monotonic() + _LINE_SECONDS

    def print_line(done: int, expected: int) -> None:
        nonlocal next_line
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _LINE_SECONDS
            with contextlib.suppress(OSError):  # a closed standard error does not stop the job
                console.print(f"{done:,}/{expected:,} rollouts", soft_wrap=True)

    if not console.is_terminal:
        yield print_line
        return
    with rollout_progress(path) as on_progress:
        yield lambda done, expected: on_progress(done, expected, "grading")


def show_regrade(console: Console, summary: "RegradeSummary") -> None:
    """Print what was graded, and what moved."""
    title = Text(escape_line(summary.path), "bold").append(f": {escape_line(summary.name)}", "not bold")
    print_wrapped(console, title)
    facts = [f"{plural(summary.graded, 'rollout')} graded in {format_duration(summary.seconds)}"]
    if summary.graded_before:
        facts.append(f"{summary.graded_before:,} before")
    if summary.rewards:
        facts.append(f"{plural(summary.rewards, 'reward')} replaced")
    print_wrapped(console, Text(" · ".join(facts), "dim"))
    if summary.mixed_groups:
        mixed = f"old and new rewards in {plural(summary.mixed_groups, 'group')}: advantages mix two scales"
        print_wrapped(console, Text(f"! {mixed}", "yellow"))
    for reason, count in summary.skipped.items():
        print_wrapped(console, Text(f"not graded: {count:,} × {escape_line(reason)}", "yellow"))
    for message, count in summary.report.errors.items():
        print_wrapped(console, Text(f"failed: {count:,} × {escape_line(message)}", "red"))
    console.print()
    _show_numbers(console, summary.report)
    _show_moved(console, summary.report)


def _show_numbers(console: Console, report: "RegradeReport") -> None:
    order, n = report.order, report.compared
    rows = {
        "mean": f"{short_number(report.old_mean)} → {short_number(report.new_mean)} (n = {n:,})",
        "moved": f"{report.moved:,} of {n:,}: {report.up:,} up, {report.down:,} down",
        f"flips at {short_number(report.threshold)}": f"{report.flipped_up:,} solved now, "
        f"{report.flipped_down:,} no longer",
        "correlation": f"Pearson {short_number(report.pearson)}, Spearman {short_number(report.spearman)}",
        "order in groups": f"{order.reordered:,} of {plural(order.groups, 'group')} reordered, "
        f"{order.best_changed:,} with another best member; of {plural(order.pairs, 'pair')} "
        f"{order.pairs_reversed:,} reversed, {order.pairs_tied:,} now equal",
        "signal": f"lost in {plural(order.signal_lost, 'group')}, gained in {order.signal_gained:,}",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(value))
    console.print(table)


def _show_moved(console: Console, report: "RegradeReport") -> None:
    """The tasks and the rollouts that changed most."""
    if report.tasks:
        table = _table("task", "n")
        for task in report.tasks:
            name = table_cell(escape_line(f"{task.env} {task.task}"))
            table.add_row(name, f"{task.n:,}", *_change(task.old, task.new))
        console.print()
        console.print(table)
    if report.rollouts:
        table = _table("rollout", "task")
        for rollout in report.rollouts:
            name = table_cell(escape_line(f"{rollout.env} {rollout.task}"))
            table.add_row(escape_line(rollout.id), name, *_change(rollout.old, rollout.new))
        console.print()
        console.print(table)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold")
    for name in ("old", "new", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _change(old: float, new: float) -> tuple[str, str, Text]:
    change = new - old
    return short_number(old), short_number(new), Text(f"{change:+.6g}", "green" if change > 0 else "red")
