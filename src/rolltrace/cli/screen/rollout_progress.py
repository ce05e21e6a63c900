"""A progress bar on standard error, for commands that read many rollouts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
