"""Runs as a table."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.screen.amounts import size
from rolltrace.cli.screen.visible import number, visible_line
from rolltrace.query.listing import Listed, State

_STYLES = {State.CLOSED: "green", State.OPEN: "yellow", State.LOST: "red", State.UNKNOWN: "red"}
_MOST_NAMES = 3
_ROOMY = 110
"""A terminal with fewer columns is spared the policies."""


def show_runs(console: Console, runs: Sequence[Listed]) -> None:
    """Print a line for each run."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("run", overflow="fold")
    table.add_column("created (UTC)", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("rollouts", "groups", "reward", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("envs", overflow="fold")
    if has_room := console.width >= _ROOMY:
        table.add_column("policies", overflow="fold")
    for run in runs:
        table.add_row(
            Text(visible_line(run.name), "bold"),
            Text("–" if run.created_at is None else f"{run.created_at:%Y-%m-%d %H:%M}", "dim"),
            _state(run),
            Text(f"{run.rollouts:,}"),
            Text("–" if run.groups is None else f"{run.groups:,}"),
            Text(number(run.mean_reward)),
            Text(size(run.bytes), "dim"),
            _names(run.envs),
            *([_names(run.policies)] if has_room else []),
        )
    console.print(table)


def _state(run: Listed) -> Text:
    told = f"{run.lost:,} lost" if run.state is State.LOST else run.state.value
    return Text(told, _STYLES[run.state])


def _names(names: Sequence[str] | None) -> Text:
    if names is None:
        return Text("–", "dim")
    told = ", ".join(visible_line(name) for name in names[:_MOST_NAMES])
    return Text(told if len(names) <= _MOST_NAMES else f"{told} and {len(names) - _MOST_NAMES} more")
