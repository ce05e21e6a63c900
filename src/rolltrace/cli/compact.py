"""`rolltrace compact`: compresses a run's segments and builds its tables."""

from pathlib import Path

import click


@click.command(short_help="Compress a run's files and build its tables, so that queries are fast.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def compact(run: Path, as_json: bool) -> None:
    """Compress the segments of RUN that no longer grow, and merge its tables into one Parquet file each.

    It may run at any time, any number of times, also while the run is being written and read. Nothing is lost: a
    compressed segment contains the same bytes, and the tables in cache/ can be deleted and built again.
    """
    from rolltrace.cli.screen.console import write_json
    from rolltrace.query.compact import compact as compact_run

    result = compact_run(run)
    if as_json:
        write_json(result)
        return
    rows = ", ".join(f"{count:,} {table}" for table, count in result.rows.items()) or "no rows"
    click.echo(f"{result.compressed} segments compressed; tables of {rows} in {result.bytes / 1e6:,.1f} MB")
