"""Progress on standard error, for commands that read many rollouts."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rolltrace.cli.screen.console import stderr_console
from rolltrace.terminal_text import escape_line


class OnProgress(Protocol):
    """Call it with the rollouts done and expected, and with what is done to them."""

    def __call__(self, done: int, expected: int, action: str = "", /) -> None: ...  # noqa: D102 - as above


@contextlib.contextmanager
def rollout_progress(path: Path) -> Iterator[OnProgress]:
    """Show the progress on the run at `path`, if standard error is a terminal."""
    console = stderr_console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rollouts"),
    )
    name = escape_line(path.name)
    is_shown = console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task(name, total=None)

        def on_progress(done: int, expected: int, action: str = "", /) -> None:
            description = f"{name}: {action}" if action else name
            bar.update(task, completed=done, total=max(done, expected), description=description)

        yield on_progress


@contextlib.contextmanager
def table_progress(path: Path) -> Iterator[Callable[[float], None]]:
    """Show how much of the run at `path` was read into tables, once that takes several steps."""
    console = stderr_console()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{escape_line(path.name)}: making tables", total=1.0, visible=False)
        yield lambda coverage: bar.update(task, completed=coverage, visible=coverage < 1)


def show_coverage(coverage: float) -> None:
    """Say on standard error that an answer is about a part of the run, if it is."""
    if coverage < 1:
        part = f"the newest {coverage:.0%} of the run, and late scores may be missing"
        click.echo(f"This is about {part}: without --partial, the command reads all of it.", err=True)
