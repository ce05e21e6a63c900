"""How far a job has come: a bar on a terminal, plain lines elsewhere, both on standard error."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rolltrace.cli.screen.console import stderr_console
from rolltrace.cli.screen.number_format import short_number
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.terminal_text import escape_line

_MAX_LINES = 100


@contextlib.contextmanager
def progress(total: int, *, plain: bool = False) -> Iterator[Callable[[GroupResult], None]]:
    """A function to call with each group that has finished, of so many; plain lines leave the line that is typed in."""
    console = stderr_console()
    if plain or not console.is_terminal:
        yield PlainProgress(total, lambda line: _print_if_heard(console, line)).advance
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("groups"), TextColumn("{task.description}", markup=False))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        rewards = _Mean()
        yield lambda group: bar.update(task, advance=1, description=f"mean reward {rewards.with_group(group)}")


def _print_if_heard(console: Console, line: str) -> None:
    """Print a line; that nobody listens any more is no reason to stop the job."""
    with contextlib.suppress(OSError):
        console.print(line, soft_wrap=True)


class PlainProgress:
    """A line for each group, or for each hundredth part of very many."""

    def __init__(self, total: int, write: Callable[[str], None]) -> None:
        self._total = total
        self._write = write
        self._done = 0
        self._every = max(1, total // _MAX_LINES)
        self._mean = _Mean()

    def advance(self, group: GroupResult) -> None:
        """Count a group, and say so where it is time."""
        self._done += 1
        mean = self._mean.with_group(group)
        if self._done % self._every and self._done != self._total:
            return
        rewards = ", ".join(short_number(member.reward) for member in group.members)
        name = escape_line(group.group)
        self._write(f"{self._done}/{self._total} groups, mean reward {mean}: {name}: {rewards}")


class _Mean:
    """The mean reward so far, over the rollouts that have one."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def with_group(self, group: GroupResult) -> str:
        known = [reward for reward in group.rewards if reward is not None]
        self._sum += sum(known)
        self._count += len(known)
        return short_number(self._sum / self._count if self._count else None)
