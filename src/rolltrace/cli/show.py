"""`rolltrace show`: a run as a table, a rollout as a transcript."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rolltrace.query.run import Run
    from rolltrace.trace.rollout import Rollout
    from rolltrace.trace.score import Score

_PAGE = 1_000
_MOST_FAILURES = 100


@click.command(short_help="Show a run as a table, or a rollout as a transcript.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("id", required=False)
@click.option("--full", is_flag=True, help="Fold nothing: whole tracebacks, states and raw answers.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="Show at most so many rollouts.  [default: 1000; all as JSON]"
)
@click.option("--json", "as_json", is_flag=True, help="The records as JSON lines.")
def show(run: Path, id: str | None, full: bool, limit: int | None, as_json: bool) -> None:  # noqa: A002 - as the help shows it
    """Show RUN as a table of its rollouts, or the rollout that ID names as a transcript.

    ID is a rollout's id, four letters or more of its beginning or end, or where the rollout stands in the run, as the
    table says: GROUP/INDEX, ITERATION/GROUP/INDEX or ENV/ITERATION/GROUP/INDEX. Without INDEX it names a whole group.
    """
    from rolltrace.cli.screen.problems import tell_problems
    from rolltrace.query.run import Run
    from rolltrace.store.reader import RunReader

    with Run([RunReader(run)]) as opened:
        if id is None:
            _show_all(opened, limit, as_json=as_json)
        else:
            chosen = _chosen(opened, id, limit)
            _show_records(chosen) if as_json else _show_transcripts(opened, chosen, full=full)
        tell_problems(opened.problems)


def show_run(run: "Run", limit: int = _PAGE) -> None:
    """Print the run's header, its totals, and a table of its rollouts, the first `limit` of them."""
    from rolltrace.cli.screen import overview
    from rolltrace.cli.screen.console import output
    from rolltrace.query.totals import ask_totals

    console = output()
    totals = ask_totals(run)
    overview.show_header(console, str(run.path), run.info)
    overview.show_totals(console, totals)
    rollouts = list(run.rollouts(order_by=_ORDER, limit=limit))
    if rollouts:
        failed = list(run.scores(where="error_type is not null", order_by='"at"', limit=_MOST_FAILURES))
        overview.show_rollouts(console, rollouts, rewards_of(run, rollouts), failed)
    overview.show_rest(console, len(rollouts), totals.rollouts + totals.retried)
    overview.show_ledgers(console, map(totals.settled, run.ledgers().values()))


def rewards_of(run: "Run", rollouts: "Sequence[Rollout]") -> "dict[str, float | None]":
    """The reward of each rollout by id, as it stands now."""
    from rolltrace.query.rewards import ask_rewards

    return ask_rewards(run, rollouts)


_ORDER = 'split, env, iteration, "group", session, index, attempt'


def _show_all(run: "Run", limit: int | None, *, as_json: bool) -> None:
    if as_json:
        _show_records(run.rollouts(limit=limit))
    else:
        show_run(run, _PAGE if limit is None else limit)


def _chosen(run: "Run", name: str, limit: int | None) -> "list[Rollout]":
    from rolltrace.errors import UnknownNameError
    from rolltrace.query.find import find_rollouts

    try:
        return [run.get(name)][:limit]  # by its whole id, which needs no table
    except UnknownNameError:
        return [run.get(head.id) for head in find_rollouts(run, name, limit)]


def _scores_of(run: "Run", rollouts: "Sequence[Rollout]") -> "list[Score]":
    return list(run.scores(where=f"rollout in ({_ids(rollouts)})", order_by='"at"')) if rollouts else []


def _ids(rollouts: "Sequence[Rollout]") -> str:
    from rolltrace.query.tables import literal

    return ", ".join(literal(rollout.id) for rollout in rollouts)


def _show_transcripts(run: "Run", rollouts: "Sequence[Rollout]", *, full: bool) -> None:
    from rolltrace.cli.screen.console import output
    from rolltrace.cli.screen.transcript import Transcript

    scores, rewards = _scores_of(run, rollouts), rewards_of(run, rollouts)
    console = output()
    transcript = Transcript(console, full=full)
    for place, rollout in enumerate(rollouts):
        if place:
            console.print("\n")
        own = [score for score in scores if score.rollout == rollout.id]
        transcript.show(rollout, rewards[rollout.id], own)


def _show_records(rollouts: "Iterable[Rollout]") -> None:
    from rolltrace.cli.screen.console import write_record
    from rolltrace.trace.codec import encode_rollout

    for rollout in rollouts:
        write_record(encode_rollout(rollout))
