"""`rolltrace summary`: the numbers of one run."""

from pathlib import Path

import click


@click.command(short_help="Show the numbers of a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--partial", is_flag=True, help="Answer at once from a part of a long run; late scores may be missing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every iteration.")
def summary(run: Path, partial: bool, as_json: bool) -> None:
    """Show the numbers of RUN: rewards by iteration, stop reasons, failures and lost rollouts.

    Fractions are of all rollouts. Rollouts that were retried or superseded do not count, but failures of every attempt
    are shown.
    """
    from rolltrace.cli.screen.console import stdout_console, write_json
    from rolltrace.cli.screen.rollout_progress import show_coverage, table_progress
    from rolltrace.cli.screen.run_summary import show_run_summary
    from rolltrace.query.run_summary import summarize

    with table_progress(run) as on_progress:
        numbers = summarize(run, partial=partial, on_progress=on_progress)
    if as_json:
        write_json(numbers)
    else:
        show_run_summary(stdout_console(), numbers)
    show_coverage(numbers.coverage)
