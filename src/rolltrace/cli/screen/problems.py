"""What of a run could not be read, told on standard error."""

from collections.abc import Sequence

import click

from rolltrace.store.read_errors import ReadError
from rolltrace.terminal_text import escape_line

_MOST = 20


def show_read_errors(problems: Sequence[ReadError]) -> None:
    """Print a line for each problem, and how many more there are where there are many."""
    for problem in problems[:_MOST]:
        click.echo(f"Not read: {escape_line(str(problem))}", err=True)
    if len(problems) > _MOST:
        click.echo(f"Not read: {len(problems) - _MOST:,} more places; `rolltrace check` names them.", err=True)
