"""`rolltrace compact`: seals a run's segments and builds its tables."""

from pathlib import Path

import click


@click.command(short_help="Seal a run's files and build its tables, so that questions are answered at once.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="What was done as one JSON object.")
def compact(run: Path, as_json: bool) -> None:
    """Compress the segments of RUN that no longer grow, and make one Parquet file of each table.

    It may be done at any time and any number of times, also while the run is written and read. Nothing is lost: the
    bytes of a segment are the same when it is read, and the tables in cache/ can be deleted and made again.
    """
    import msgspec

    from rolltrace.cli.screen.console import write_record
    from rolltrace.query.compact import compact as compact_run

    done = compact_run(run)
    if as_json:
        write_record(msgspec.json.encode(done) + b"\n")
        return
    rows = ", ".join(f"{count:,} {table}" for table, count in done.rows.items()) or "no rows"
    click.echo(f"{done.sealed} segments sealed; tables of {rows} in {done.bytes / 1e6:,.1f} MB")
