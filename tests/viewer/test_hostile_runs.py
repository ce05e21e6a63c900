"""A viewer over hostile runs: each page answers or refuses, other runs are served, and SIGTERM ends it."""

import contextlib
import http.client
import signal
import subprocess
import sys
import threading
import time

import pytest

from asking import ask, request
from hostile_runs import GOOD, SMALL, hostile_cases, make_good_run
from viewing import Viewer, viewing
from waiting import until

PAGES = ("run", "rollouts", "outcomes", "facets", "findings")
_SECONDS = 60
HANGS = """
import sys, time
from rolltrace.viewer import run_list
run_list.RunList.list = lambda self: time.sleep(3600)
from rolltrace.cli.app import cli
cli(["view", sys.argv[1], "--no-open"])
"""


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """A viewer over a good run and one of each case."""
    folder = tmp_path_factory.mktemp("runs")
    make_good_run(folder / "good")
    for number, make in enumerate(hostile_cases(SMALL).values()):
        make(make_good_run(folder / f"bad{number}"))
    with viewing(folder) as viewer:
        yield viewer


@pytest.mark.parametrize("number", range(len(hostile_cases(SMALL))), ids=list(hostile_cases(SMALL)))
def test_pages_of_a_hostile_run_end(viewer, number):
    """Each page shows what it has, or why there is nothing, and the good run is unaffected."""
    for page in PAGES:
        reply = ask(viewer, page, run=f"bad{number}")
        assert reply.status in (200, 400, 404)
        assert reply.json
    assert ask(viewer, "rollouts", run="good").json["total"] == GOOD


def test_list_has_every_run(viewer):
    """A run that cannot be read has an entry that says so."""
    until(lambda: not ask(viewer, "runs").json["pending"])
    runs = {run["key"]: run for run in ask(viewer, "runs").json["runs"]}
    assert len(runs) == len(hostile_cases(SMALL)) + 1
    assert runs["good"]["rollouts"] == GOOD
    assert runs["good"]["problem"] is None


def test_signal_ends_a_viewer_that_does_not_answer(tmp_path):
    """A request's thread may never end, but the process does."""
    words = [sys.executable, "-c", HANGS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            viewer = Viewer(process.stdout.readline().strip(), tmp_path, process)
            asking = threading.Thread(target=_ask_in_vain, args=(viewer,))
            asking.start()
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_SECONDS) == 0
            asking.join()
        finally:
            process.kill()


def _ask_in_vain(viewer: Viewer) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # the connection is cut
        request(viewer, "/api/runs")
