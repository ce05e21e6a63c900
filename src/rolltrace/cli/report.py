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

    Groups of up to 256 rollouts are complete, so that their members can be compared. A report has at most 1,000
    rollouts, or 10,000 with --groups, and about 30 MB of text: it says what is left out. WHERE is an SQL expression
    over the columns of the table `rollouts`. The file contains the texts of its rollouts: share it only with people who
    may see the run.
    """
    from rolltrace.cli.screen.rollout_progress import rollout_progress
    from rolltrace.cli.signals import exit_on_sigterm
    from rolltrace.viewer.report_writer import stream_tree, write_report

    to_stdout = as_json and (out is None or str(out) == "-")
    if out is None and not as_json:
        raise click.UsageError("Missing option '-o' / '--out': the file to write, such as report.html.")
    with exit_on_sigterm(), rollout_progress(run) as on_progress:
        if out is None or to_stdout:
            message = stream_tree(run, sys.stdout.buffer, where=where, groups=groups, on_progress=on_progress)
        else:
            message = write_report(run, out, where=where, groups=groups, as_json=as_json, on_progress=on_progress)
    click.echo(message, err=True)
    if out is not None and not to_stdout:
        click.echo(f"Written to {out}: {out.stat().st_size / 1e6:.1f} MB.", err=True)
