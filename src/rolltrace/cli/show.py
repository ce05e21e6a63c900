"""`rolltrace show`: a run as a table, a rollout as a transcript."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rolltrace.store.reader import RunReader
    from rolltrace.trace.rollout import Rollout


@click.command(short_help="Show a run as a table, or a rollout as a transcript.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("id", required=False)
@click.option("--full", is_flag=True, help="Fold nothing: whole tracebacks, states and raw answers.")
@click.option("--json", "as_json", is_flag=True, help="The records as JSON lines.")
def show(run: Path, id: str | None, full: bool, as_json: bool) -> None:  # noqa: A002 - the name that the help shows
    """Show RUN as a table of its rollouts, or the rollout that ID names as a transcript.

    ID is a rollout's id, the beginning or end of it, or where the rollout stands in the run, as the table says:
    GROUP/INDEX, ITERATION/GROUP/INDEX or ENV/ITERATION/GROUP/INDEX. Without INDEX it names a whole group.
    """
    from rolltrace.query.address import choose
    from rolltrace.store.reader import RunReader

    reader = RunReader(run)
    rollouts = list(reader.rollouts())
    chosen = rollouts if id is None else choose(rollouts, id, run)
    if as_json:
        _show_records(chosen)
    elif id is None:
        show_run(reader, chosen)
    else:
        _show_transcripts(reader, chosen, full=full)
    _tell_problems(reader)


def show_run(reader: "RunReader", rollouts: "Sequence[Rollout]") -> None:
    """Print the run's header, its totals and its table."""
    from rolltrace.cli.screen import overview
    from rolltrace.cli.screen.console import output
    from rolltrace.query.rewards import latest_rewards

    console = output()
    scores = list(reader.scores())
    rewards = latest_rewards(rollouts, scores)
    overview.show_header(console, str(reader.path), reader.info)
    overview.show_totals(console, rollouts, rewards)
    if rollouts:
        overview.show_rollouts(console, rollouts, rewards, scores)
    overview.show_ledgers(console, reader.ledgers().values())


def _show_transcripts(reader: "RunReader", rollouts: "Sequence[Rollout]", *, full: bool) -> None:
    from rolltrace.cli.screen.console import output
    from rolltrace.cli.screen.transcript import Transcript
    from rolltrace.query.rewards import latest_rewards

    scores = list(reader.scores())
    rewards = latest_rewards(rollouts, scores)
    console = output()
    transcript = Transcript(console, full=full)
    for place, rollout in enumerate(rollouts):
        if place:
            console.print("\n")
        own = [score for score in scores if score.rollout == rollout.id]
        transcript.show(rollout, rewards[rollout.id], own)


def _show_records(rollouts: "Sequence[Rollout]") -> None:
    from rolltrace.cli.screen.console import write_record
    from rolltrace.trace.codec import encode_rollout

    for rollout in rollouts:
        write_record(encode_rollout(rollout))


def _tell_problems(reader: "RunReader") -> None:
    from rolltrace.cli.screen.visible import visible_line

    for problem in reader.problems:
        click.echo(f"Not read: {visible_line(str(problem))}", err=True)
