"""`rolltrace ls`: the runs below a directory."""

from pathlib import Path

import click


@click.command(short_help="List the runs below a directory.")
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def ls(directory: Path, as_json: bool) -> None:
    """List the runs in and below DIR (by default runs/), the newest first.

    A large run is not read for this: its groups and rewards show once its tables were made, as by `rolltrace compact`.
    """
    from rolltrace.cli.screen.console import output, write_record
    from rolltrace.cli.screen.runs import show_runs
    from rolltrace.query.listing import encode_listed, list_runs

    found = list_runs(directory)
    if as_json:
        for run in found:
            write_record(encode_listed(run) + b"\n")
    elif found:
        show_runs(output(), found)
    else:
        click.echo(f"There is no run below {directory}.", err=True)
