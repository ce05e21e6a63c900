"""`rolltrace show`: a run or a group as a table, a rollout as a transcript."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rolltrace.query.run import Run
    from rolltrace.trace.rollout import Rollout
    from rolltrace.trace.score import GroupKey

_PAGE = 1_000
_MAX_FAILURES = 100


@click.command(short_help="Show a run or a group as a table, or a rollout as a transcript.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("id", required=False)
@click.option("--full", is_flag=True, help="Show complete texts, tracebacks, states and raw answers.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="Show at most this many rollouts.  [default: 1000; all as JSON]"
)
@click.option("--json", "as_json", is_flag=True, help="The records as JSON lines, with late scores.")
def show(run: Path, id: str | None, full: bool, limit: int | None, as_json: bool) -> None:  # noqa: A002 - as the help shows it
    """Show RUN as a table of its rollouts; with ID, a rollout as a transcript, or a group as a table.

    ID is a rollout's id, at least four characters of its beginning or end, or its address in the table: GROUP/INDEX,
    ITERATION/GROUP/INDEX or ENV/ITERATION/GROUP/INDEX. Without INDEX it is a group: the shared prompt, then a table of
    its members, the best first. `rolltrace view` shows the members side by side.
    """
    from rolltrace.cli.screen.console import show_read_errors
    from rolltrace.query.run import Run
    from rolltrace.store.reader import RunReader

    with Run([RunReader(run)]) as opened:
        if id is not None:
            _show_named(opened, id, limit, full=full, as_json=as_json)
        elif as_json:
            _show_records(opened.rollouts(limit=limit))
        else:
            _show_run(opened, _PAGE if limit is None else limit)
        show_read_errors(opened.problems)


def _show_run(run: "Run", limit: int) -> None:
    """Print the run's header, its totals, and a table of its rollouts, the first `limit` of them."""
    from rolltrace.cli.screen import run_table
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.query.histogram import query_histogram
    from rolltrace.query.run_state import planned_episodes, run_state, settle_continued
    from rolltrace.query.run_totals import query_totals

    console = stdout_console()
    totals = query_totals(run)
    run_table.show_header(console, str(run.path), run.info)
    ledgers, planned = run.ledgers().values(), planned_episodes(run.info)
    run_table.show_totals(console, totals, run_state(ledgers, planned, totals.finished), planned)
    run_table.show_rewards(console, query_histogram(run))
    rollouts = list(run.rollouts(order_by=_ORDER, limit=limit))
    if rollouts:
        failed = list(run.scores(where="error_type is not null", order_by="created_at", limit=_MAX_FAILURES))
        run_table.show_rollouts(console, rollouts, failed)
    run_table.show_omitted_count(console, len(rollouts), totals.rollouts + totals.retried)
    run_table.show_ledgers(console, [totals.reconcile(ledger) for ledger in settle_continued(ledgers)])
    if rollouts:
        run_table.show_next_commands(console, str(run.path), rollouts[0].group_key.address)


_ORDER = 'split, env, iteration, "group", session, index, attempt'


def _show_named(run: "Run", name: str, limit: int | None, *, full: bool, as_json: bool) -> None:
    """Show the rollout or the group that a name means; a group of one is shown as its rollout."""
    from rolltrace.errors import UnknownNameError
    from rolltrace.query.rollout_lookup import find_rollouts

    try:
        chosen = [run.get(name)][:limit]  # by its full id, without building tables
    except UnknownNameError:
        run.hold()  # one state of the run for all statements, which then look for new segments once
        heads = find_rollouts(run, name, limit if as_json else 2)
        if len(heads) > 1 and not as_json:
            _show_group(run, heads[0].group_key, name, limit, full=full)
            return
        chosen = [run.get(head.id) for head in heads][:limit]
    _show_records(chosen) if as_json else _show_transcripts(chosen, full=full)


def _show_group(run: "Run", key: "GroupKey", name: str, limit: int | None, *, full: bool) -> None:
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.cli.screen.group_table import show_group
    from rolltrace.query.group_comparison import MAX_MEMBERS, compare_group

    most = MAX_MEMBERS if limit is None else limit
    group = compare_group(run, key, most=most)
    show_group(stdout_console(), group, str(run.path), name, full=full)


def _show_transcripts(rollouts: "Sequence[Rollout]", *, full: bool) -> None:
    from rolltrace.cli.screen.console import stdout_console
    from rolltrace.cli.screen.transcript import RolloutTranscript

    console = stdout_console()
    transcript = RolloutTranscript(console, full=full)
    for number, rollout in enumerate(rollouts):
        if number:
            console.print("\n")
        transcript.show(rollout)


def _show_records(rollouts: "Iterable[Rollout]") -> None:
    from rolltrace.cli.screen.console import write_record
    from rolltrace.trace.codec import encode_with_scores

    for rollout in rollouts:
        write_record(encode_with_scores(rollout))
