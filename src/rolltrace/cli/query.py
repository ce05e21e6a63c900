"""`rolltrace query`: SQL over runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rolltrace.query.result import QueryResult

_DEFAULT_LIMIT = 100


@click.command(short_help="Query one run, or many, with SQL.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sql")
@click.option(
    "--limit", type=click.IntRange(min=1), help=f"At most this many rows; by default {_DEFAULT_LIMIT}, with --json all."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Time-out in seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
def query(run: Path, sql: str, limit: int | None, timeout: float | None, as_json: bool) -> None:
    """Run one SELECT over RUN, or over all runs in a directory.

    The tables are runs, rollouts, every_rollout, steps, messages, calls, scores, groups and ledger; docs/tables.md has
    their columns. A statement can only read, and only these tables. It does not see rollouts that are written while it
    runs.
    """
    from rolltrace.cli.screen.console import show_read_errors
    from rolltrace.query.run import open_run

    with open_run(run) as opened:
        result = opened.sql(sql, timeout=timeout)
        if as_json:
            _write_rows(result, limit)
        else:
            _show_rows(result, limit or _DEFAULT_LIMIT)
        show_read_errors(opened.problems)


def _write_rows(result: "QueryResult", limit: int | None) -> None:
    from itertools import islice

    from rolltrace.cli.screen.console import write_record
    from rolltrace.cli.screen.sql_rows import encode_row

    for row in islice(result, limit):
        write_record(encode_row(result.columns, result.types, row))


def _show_rows(result: "QueryResult", limit: int) -> None:
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.cli.screen.sql_rows import show_rows

    rows = result.fetchmany(limit + 1)
    show_rows(stdout_console(), result.columns, result.types, rows[:limit])
    if len(rows) > limit:
        click.echo(f"These are the first {limit} rows: --limit shows more, --json all.", err=True)
