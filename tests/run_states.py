"""The state of a run as every reader tells it, for tests that expect them to agree."""

import json
from pathlib import Path

from click.testing import CliRunner

from rolltrace.cli.app import cli
from rolltrace.query.listing import list_runs
from rolltrace.query.run import open_run
from rolltrace.query.run_state import planned_episodes, run_state
from rolltrace.query.summary import summarize
from rolltrace.query.totals import ask_totals
from rolltrace.viewer.cards import Cards
from rolltrace.viewer.library import Library


def states(path: Path) -> str:
    """The state that all readers tell: Python, the commands, SQL, the tables and the viewer."""
    run = CliRunner()
    told = {
        "listing": str(list_runs(path).runs[0].state),
        "summary": str(summarize(path).state),
        "ls --json": json.loads(run.invoke(cli, ["ls", str(path), "--json"]).stdout)["state"],
        "summary --json": json.loads(run.invoke(cli, ["summary", str(path), "--json"]).stdout)["state"],
    }
    library = Library(path)
    try:
        [card] = Cards(library).all().runs
        told["viewer"] = card.state
    finally:
        library.close()
    with open_run(path) as opened:
        [(told["sql"],)] = opened.sql("select state from runs").fetchall()
        finished = ask_totals(opened).finished
        told["tables"] = str(run_state(opened.ledgers().values(), planned_episodes(opened.info), finished))
    assert len(set(told.values())) == 1, told
    state = told["sql"]
    for command in ("ls", "summary", "show"):
        assert state in run.invoke(cli, [command, str(path)]).stdout
    return state
