"""`rolltrace ls`: the runs below a directory."""

from pathlib import Path

import click

_DEFAULT_LIMIT = 100
_READ_SECONDS = 1.5
"""For how long runs are read that were never listed, unless the output is for a program."""


@click.command(short_help="List the runs below a directory.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option(
    "--limit", type=click.IntRange(min=1), help=f"At most this many runs; by default {_DEFAULT_LIMIT}, with --json all."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def ls(directory: Path, limit: int | None, as_json: bool) -> None:
    """List the runs in and below DIR (by default runs/), the newest first.

    Rollouts are counted as in `rolltrace summary`. Large runs are not read: their numbers are shown once their tables
    are built, for example by `rolltrace compact`; before that, an upper bound of their rollouts is shown. The same
    holds for the rest of very many runs that were never listed; with --json, all of them are read.
    """
    from rolltrace.cli.screen.console import show_read_errors, stdout_console, write_json
    from rolltrace.cli.screen.run_list import show_runs
    from rolltrace.query.run_listing import list_runs
    from rolltrace.store.object_address import as_path
    from rolltrace.terminal_text import escape_line

    if limit is None and not as_json:
        limit = _DEFAULT_LIMIT
    listing = list_runs(directory, limit, None if as_json else _READ_SECONDS)
    if as_json:
        for run in listing.runs:
            write_json(run)
    elif listing.runs:
        show_runs(stdout_console(), listing.runs)
    else:
        click.echo(f"There is no run below {as_path(directory)}.", err=True)
    for message in listing.unreadable:
        click.echo(escape_line(message), err=True)
    for run in listing.runs:
        show_read_errors(run.problems, run.problem_count or 0, run.path)
    if listing.unread:
        click.echo(f"{listing.unread:,} runs were not read yet: the next `rolltrace ls` reads more of them.", err=True)
    if len(listing.runs) < listing.total:
        message = f"The newest {len(listing.runs):,} of {listing.total:,} runs: --limit shows more."
        click.echo(message, err=True)
