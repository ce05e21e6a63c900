"""`rolltrace query`: SQL over runs."""

from itertools import islice
from pathlib import Path

import click

_DEFAULT_LIMIT = 100


@click.command(short_help="Query one run, or many, with SQL.")
@click.argument("runs", metavar="RUN…", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.argument("sql")
@click.option(
    "--limit", type=click.IntRange(min=1), help=f"At most this many rows; by default {_DEFAULT_LIMIT}, with --json all."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Time-out in seconds.")
@click.option("--partial", is_flag=True, help="Answer at once from a part of a long run; late scores may be missing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def query(
    runs: tuple[Path, ...], sql: str, limit: int | None, timeout: float | None, partial: bool, as_json: bool
) -> None:
    """Run one SELECT over one RUN or many.

    RUN is a run, a directory of runs, an address such as s3://bucket/runs, or a pattern in quotes such as 'runs/a-*'.
    The column run has the id of the run that a row is from; the table runs has its path.

    The tables are runs, rollouts, every_rollout, steps, messages, calls, scores, groups and ledger; docs/tables.md has
    their columns. A statement can only read, and only these tables. It does not see rollouts that are written while it
    runs.
    """
    from rolltrace.cli.screen.console import show_read_errors, stdout_console, write_record
    from rolltrace.cli.screen.rollout_progress import show_coverage, table_progress
    from rolltrace.cli.screen.sql_rows import encode_row, show_rows
    from rolltrace.query.run import open_run

    with table_progress(runs[0]) as on_progress, open_run(runs, partial=partial, on_progress=on_progress) as opened:
        result = opened.sql(sql, timeout=timeout)
        if as_json:
            for row in islice(result, limit):
                write_record(encode_row(result.columns, result.types, row))
        else:
            limit = limit or _DEFAULT_LIMIT
            rows = result.fetchmany(limit + 1)
            show_rows(stdout_console(), result.columns, result.types, rows[:limit])
            if len(rows) > limit:
                click.echo(f"These are the first {limit} rows: --limit shows more, --json all.", err=True)
        show_coverage(opened.coverage)
        show_read_errors(opened.problems)
