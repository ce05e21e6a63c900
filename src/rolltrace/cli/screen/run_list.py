"""A table of runs."""

from collections.abc import Sequence

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.console import table_cell
from rolltrace.cli.screen.number_format import short_number
from rolltrace.cli.screen.styles import state_text
from rolltrace.query.run_listing import ListedRun
from rolltrace.query.run_state import RunState
from rolltrace.terminal_text import escape_line

_MAX_NAMES = 3
_SHORTEST = 6
_NUMBERS, _NUMBERS_WIDE = 55, 71
"""The width of a line without names, envs and policies."""
_DAY, _TIME = "%Y-%m-%d", "%Y-%m-%d %H:%M"
_WIDE, _ROOMY = 100, 120
"""Below the first width, sizes and the time of day are left out; below the second, policies."""


def show_runs(console: Console, runs: Sequence[ListedRun]) -> None:
    """Print a line for each run."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    is_wide, is_roomy = console.width >= _WIDE, console.width >= _ROOMY
    table.add_column("run", overflow="fold", min_width=12)
    table.add_column("created (UTC)" if is_wide else "created", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("rollouts", "groups", "reward", *(["size"] if is_wide else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    headings = ("envs", *(["policies"] if is_roomy else []))
    room = console.width - (_NUMBERS_WIDE if is_wide else _NUMBERS) - max(len(run.name) for run in runs)
    for heading in headings:  # cut first: a run's name is needed whole to go on with
        width = max(_SHORTEST, room // len(headings) - 2)
        table.add_column(heading, no_wrap=True, overflow="ellipsis", max_width=width)
    for run in runs:
        table.add_row(
            Text(escape_line(run.name), "bold"),
            Text(f"{run.created_at:{_TIME if is_wide else _DAY}}", "dim"),
            _state(run),
            Text(f"≤ {run.recorded:,}" if run.rollouts is None else f"{run.rollouts:,}"),
            Text("–" if run.groups is None else f"{run.groups:,}"),
            Text(short_number(run.mean_reward)),
            *([Text(decimal(run.bytes), "dim")] if is_wide else []),
            _names(run.envs),
            *([_names(run.policies)] if is_roomy else []),
        )
    console.print(table)


def _state(run: ListedRun) -> Text:
    text = state_text(run.state)
    if run.lost:
        text.append(f" · {run.lost:,} lost", "red")
    if run.maybe_lost:
        text.append(f" · {run.maybe_lost:,} in flight", "red" if run.state is RunState.DIED else "")
    if run.collides:
        text.append(f" · {run.collides:,} collide", "red")
    if run.problem_count:
        text.append(" · damaged", "red")
    return text


def _names(names: Sequence[str] | None) -> Text:
    if names is None:
        return Text("–", "dim")
    listed = ", ".join(escape_line(name) for name in names[:_MAX_NAMES])
    return table_cell(listed if len(names) <= _MAX_NAMES else f"{listed} and {len(names) - _MAX_NAMES} more")
