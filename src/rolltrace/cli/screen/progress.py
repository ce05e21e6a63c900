"""How far a job has come: a bar on a terminal, plain lines elsewhere, both on standard error."""

import contextlib
from collections.abc import Callable, Iterator
from statistics import fmean

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rolltrace.cli.screen.console import errors
from rolltrace.cli.screen.visible import number, visible_line
from rolltrace.rollout.group import GroupResult

_MOST_LINES = 100


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[GroupResult], None]]:
    """A function to call with each group that has finished, of so many."""
    console = errors()
    if not console.is_terminal:
        lines = PlainProgress(total, lambda line: console.print(line, soft_wrap=True))
        yield lines.advance
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("groups"), TextColumn("{task.description}", markup=False))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        rewards = _Mean()
        yield lambda group: bar.update(task, advance=1, description=f"mean reward {rewards.with_group(group)}")


class PlainProgress:
    """A line for each group, or for each hundredth part of very many."""

    def __init__(self, total: int, write: Callable[[str], None]) -> None:
        self._total = total
        self._write = write
        self._done = 0
        self._every = max(1, total // _MOST_LINES)
        self._mean = _Mean()

    def advance(self, group: GroupResult) -> None:
        """Count a group, and say so where it is time."""
        self._done += 1
        mean = self._mean.with_group(group)
        if self._done % self._every and self._done != self._total:
            return
        rewards = ", ".join(number(member.reward) for member in group.members)
        name = visible_line(group.group)
        self._write(f"{self._done}/{self._total} groups, mean reward {mean}: {name}: {rewards}")


class _Mean:
    """The mean over the groups so far that have one."""

    def __init__(self) -> None:
        self._means: list[float] = []

    def with_group(self, group: GroupResult) -> str:
        if group.rewards:
            self._means.append(fmean(group.rewards))
        return number(fmean(self._means) if self._means else None)
