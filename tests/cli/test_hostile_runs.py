"""Every command over hostile runs ends soon and in little memory, with an answer or an error message."""

import re
import sys

import pytest

from asking import request
from hostile_runs import FULL, GOOD, SMALL, hostile_cases, make_good_run
from measured_command import Measured, measure, resident_megabytes
from rolltrace import open_run
from rolltrace.errors import RunNotFoundError
from viewing import viewing

COMMANDS = {
    "show": ("show", "RUN"),
    "query": ("query", "RUN", "select count(*) as n from rollouts"),
    "summary": ("summary", "RUN"),
    "check": ("check", "RUN"),
    "report": ("report", "RUN", "-o", "report.html"),
    "compact": ("compact", "RUN"),
}
READ = """
import sys, rolltrace
with rolltrace.open_run(sys.argv[1]) as run:
    print(sum(1 for _ in run.rollouts()), run.sql("select count(*) from steps").fetchall(), len(run.problems))
"""
PAGES = ("run", "rollouts", "outcomes", "findings")


def test_the_other_run_is_listed_and_read(rolltrace, tmp_path):
    """A valid run among one of each hostile case is listed and can be queried."""
    good = make_good_run(tmp_path / "good")
    for number, make_hostile in enumerate(hostile_cases(SMALL).values()):
        make_hostile(make_good_run(tmp_path / f"bad{number}"))
    listed = rolltrace("ls", tmp_path)
    assert listed.exit_code == 0
    assert "good" in listed.output
    assert rolltrace("query", good, "select count(*) as n from rollouts", "--json").exit_code == 0


@pytest.mark.parametrize("case", hostile_cases(SMALL))
def test_commands_end_with_an_answer_or_an_error_message(rolltrace, tmp_path, case):
    """The valid rollouts are read, unless the run has no valid `run.json`."""
    bad = make_good_run(tmp_path / "bad")
    hostile_cases(SMALL)[case](bad)
    is_refused = "config" in case or "run.json" in case
    for name, words in COMMANDS.items():
        shown = rolltrace(*(bad if word == "RUN" else word for word in words))
        assert shown.exception is None or isinstance(shown.exception, SystemExit), name
        assert shown.exit_code == 2 if is_refused else shown.exit_code in (0, 1), name
    if is_refused:
        with pytest.raises(RunNotFoundError):
            open_run(bad)
    else:
        with open_run(bad) as run:
            assert len(list(run.rollouts())) >= GOOD


MAX_SECONDS, MAX_MEGABYTES = 60, 600
"""For a machine with other work; the table says what it took."""


@pytest.mark.slow
@pytest.mark.parametrize("case", hostile_cases(FULL))
def test_large_hostile_runs(tmp_path, case, capfd):
    """The same at the sizes that took gigabytes and hung. Prints time, memory and exit code of each (`pytest -s`)."""
    make_good_run(tmp_path / "good")
    bad = make_good_run(tmp_path / "bad")
    hostile_cases(FULL)[case](bad)
    rolltrace = (sys.executable, "-m", "rolltrace")
    took = {"ls": measure([*rolltrace, "ls", tmp_path], MAX_SECONDS, MAX_MEGABYTES)}
    for name, words in COMMANDS.items():
        paths = {"RUN": bad, "report.html": tmp_path / "report.html"}
        took[name] = measure([*rolltrace, *(paths.get(word, word) for word in words)], MAX_SECONDS, MAX_MEGABYTES)
    took["open_run"] = measure([sys.executable, "-c", READ, bad], MAX_SECONDS, MAX_MEGABYTES)
    with viewing(tmp_path) as viewer:
        for page in PAGES:
            assert request(viewer, f"/api/{page}?run=bad").status in (200, 400, 404)
        assert request(viewer, "/api/rollouts?run=good").json["total"] == GOOD
        megabytes = resident_megabytes(viewer.process.pid)
    with capfd.disabled():
        cells = [f"{one.seconds:.1f} s, {one.megabytes} MB, {one.code}" for one in took.values()]
        sys.stdout.write(f"\n| {case} | {' | '.join(cells)} | {megabytes} MB |\n")
    for name, one in took.items():
        assert_ended(one, name)
    assert "good" in took["ls"].out
    assert megabytes < MAX_MEGABYTES


def assert_ended(one: Measured, name: str) -> None:
    """Asserts that the command exited by itself, without a traceback (except `open_run`, whose error is one)."""
    assert one.code in (0, 1, 2), (name, one)
    assert not re.search("Traceback", one.err) or name == "open_run", (name, one.err)
