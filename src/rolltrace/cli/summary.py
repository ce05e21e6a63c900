"""`rolltrace summary`: one run's numbers."""

from pathlib import Path

import click


@click.command(short_help="Show one run's numbers.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every iteration.")
def summary(run: Path, as_json: bool) -> None:
    """Show the numbers of RUN: rewards by iteration, how rollouts ended, what failed, what was lost.

    Shares are of all rollouts. One that a later attempt or a restart played again does not count; what failed is told
    of every attempt.
    """
    from rolltrace.cli.screen.console import stdout_console, write_record
    from rolltrace.cli.screen.run_summary import show_run_summary
    from rolltrace.query.run_summary import summarize
    from rolltrace.trace.strict_json import encode_json

    numbers = summarize(run)
    if as_json:
        write_record(encode_json(numbers) + b"\n")
    else:
        show_run_summary(stdout_console(), numbers)
