"""The state of a run according to every reader, for tests that expect them to agree."""

import json
from pathlib import Path

from click.testing import CliRunner

from rolltrace.cli.app import cli
from rolltrace.query.run import open_run
from rolltrace.query.run_state import planned_episodes, run_state
from rolltrace.query.run_totals import query_totals
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.run_list import RunList


def states(path: Path) -> str:
    """The state that all readers tell: the commands, SQL, the tables and the viewer.

    `ls` and `summary` write what `list_runs` and `summarize` return.
    """
    run = CliRunner()
    told = {
        "ls --json": json.loads(run.invoke(cli, ["ls", str(path), "--json"]).stdout)["state"],
        "summary --json": json.loads(run.invoke(cli, ["summary", str(path), "--json"]).stdout)["state"],
    }
    library = OpenRuns(path)
    try:
        [card] = RunList(library).list().runs
        told["viewer"] = card.state
    finally:
        library.close()
    with open_run(path) as opened:
        [(told["sql"],)] = opened.sql("select state from runs").fetchall()
        finished = query_totals(opened).finished
        told["tables"] = str(run_state(opened.ledgers().values(), planned_episodes(opened.info), finished))
    assert len(set(told.values())) == 1, told
    state = told["sql"]
    for command in ("ls", "summary", "show"):
        assert state in run.invoke(cli, [command, str(path)]).stdout
    return state
