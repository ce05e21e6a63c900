"""`rolltrace report`: a run, or part of it, as one file."""

import sys
from pathlib import Path

import click


@click.command(short_help="Write a run, or part of it, as one HTML file.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", metavar="FILE", type=click.Path(path_type=Path), help="The file; with --json also `-`, the default."
)
@click.option("--where", metavar="SQL", help="Only groups with a rollout for which this is true, such as 'reward < 0'.")
@click.option(
    "--groups",
    type=click.IntRange(min=1),
    help="At most this many groups, spread evenly over the run.  [default: all, or about 1,000 rollouts]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="The same as one JSON object: the run, its groups, their rollouts."
)
def report(run: Path, out: Path | None, where: str | None, groups: int | None, as_json: bool) -> None:
    """Write RUN as one HTML file with the pages of `rolltrace view`, which needs no server and no network.

    Groups are complete, so that their members can be compared. WHERE is an SQL expression over the columns of the table
    `rollouts`. The file contains all texts of its rollouts: share it only with people who may see the run.
    """
    from rolltrace.viewer.report_writer import stream_tree, write_report

    if as_json and (out is None or str(out) == "-"):
        message = stream_tree(run, sys.stdout.buffer, where=where, groups=groups)
    elif out is None:
        raise click.UsageError("Missing option '-o' / '--out': the file to write, such as report.html.")
    else:
        message = write_report(run, out, where=where, groups=groups, as_json=as_json)
    click.echo(message, err=True)
    if out is not None and str(out) != "-":
        click.echo(f"Written to {out}: {out.stat().st_size / 1e6:.1f} MB.", err=True)
