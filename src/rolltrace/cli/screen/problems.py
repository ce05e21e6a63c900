"""What of a run could not be read, told on standard error."""

from collections.abc import Sequence

import click

from rolltrace.cli.screen.visible import visible_line
from rolltrace.store.problems import Problem

_MOST = 20


def tell_problems(problems: Sequence[Problem]) -> None:
    """Print a line for each problem, and how many more there are where there are many."""
    for problem in problems[:_MOST]:
        click.echo(f"Not read: {visible_line(str(problem))}", err=True)
    if len(problems) > _MOST:
        click.echo(f"Not read: {len(problems) - _MOST:,} more places; `rolltrace check` names them.", err=True)
