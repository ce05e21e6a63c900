"""`rolltrace ls`: the runs below a directory."""

from pathlib import Path

import click

_DEFAULT_LIMIT = 100


@click.command(short_help="List the runs below a directory.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option(
    "--limit", type=click.IntRange(min=1), help=f"At most this many runs; by default {_DEFAULT_LIMIT}, with --json all."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def ls(directory: Path, limit: int | None, as_json: bool) -> None:
    """List the runs in and below DIR (by default runs/), the newest first.

    Rollouts are counted as in `rolltrace summary`. Large runs are not read: their numbers are shown once their tables
    are built, for example by `rolltrace compact`; before that, an upper bound of their rollouts is shown.
    """
    from rolltrace.cli.screen.console import stdout_console, write_json
    from rolltrace.cli.screen.run_list import show_runs
    from rolltrace.query.run_listing import list_runs
    from rolltrace.terminal_text import escape_line

    if limit is None and not as_json:
        limit = _DEFAULT_LIMIT
    listing = list_runs(directory, limit)
    if as_json:
        for run in listing.runs:
            write_json(run)
    elif listing.runs:
        show_runs(stdout_console(), listing.runs)
    else:
        click.echo(f"There is no run below {directory}.", err=True)
    for message in listing.unreadable:
        click.echo(escape_line(message), err=True)
    if len(listing.runs) < listing.total:
        message = f"The newest {len(listing.runs):,} of {listing.total:,} runs: --limit shows more."
        click.echo(message, err=True)
