"""Runs that are killed at any moment and resumed show what an undisturbed run shows."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from rolltrace.check.check_run import check_run
from rolltrace.cli.app import cli
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_summary import summarize
from rolltrace.store.ledger import encode_ledger
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import utc_now
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.run_list import RunList
from rolltrace.viewer.run_overview import run_overview
from run_states import states

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "write-a-game.md"
SLOW = """
import asyncio, os, pathlib, random
from rolltrace.testing.noisy import NoisyPolicy

class Slow(NoisyPolicy):
    def __init__(self, fails: float = 0.0):
        super().__init__(name="slow")
        self.fails = fails
        self.asked = 0

    async def complete(self, request):
        self.asked += 1
        if "HOLD_AFTER" in os.environ and self.asked > int(os.environ["HOLD_AFTER"]):
            pathlib.Path(os.environ["HOLD_FILE"]).touch()
            await asyncio.Event().wait()
        chance = random.Random(request.seed)
        await asyncio.sleep(chance.random() * 0.03)
        if chance.random() < self.fails:
            raise ConnectionError("refused")
        return await super().complete(request)
"""
"""A policy that takes its time. After HOLD_AFTER requests it answers no more, and makes HOLD_FILE."""
JOBS = {
    "arithmetic": [
        "arithmetic", "--policy", "slow:Slow,fails=0.1", "--retries", "2", "--groups", "12", "--iterations", "3",
    ],
    "repeated": ["problems", "--policy", "slow:Slow", "--groups", "40", "--group-size", "2", "--strategy", "fail-fast"],
    "preference": ["preference", "--policy", "slow:Slow", "--groups", "4", "--iterations", "3"],
    "twenty_questions": ["twenty_questions", "--policy", "slow:Slow", "--groups", "4", "--group-size", "2"],
    "game": ["sticks:SticksTasks", "--policy", "slow:Slow", "--groups", "5", "--iterations", "2", "--max-turns", "9"],
}  # fmt: skip
COMPARED = {
    "rollouts": (
        "select * exclude (id, run, session, started_at, ended_at, seconds) from rollouts "
        'order by iteration, "group", "index", attempt'
    ),
    "groups": (
        "select * exclude (run, members), [[m.\"index\", m.reward, m.advantage] for m in members] as members "
        'from groups order by iteration, "group"'
    ),
    "calls": 'select iteration, "group", role, policy, step, position, reply, error_type from calls order by all',
    "steps": (
        'select r.iteration, r."group", r."index", r.attempt, s.* exclude (rollout, run, seconds) '
        "from steps s join rollouts r on r.id = s.rollout "
        'order by r.iteration, r."group", r."index", r.attempt, s.step'
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a slow policy and a game of two seats."""
    place = tmp_path_factory.mktemp("resume")
    (place / "slow.py").write_text(SLOW)
    blocks = re.findall(r"^```python\n# sticks.py\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (place / "sticks.py").write_text("\n".join(blocks))
    return place


@pytest.fixture(scope="module")
def undisturbed(folder):
    """What an undisturbed run of each job shows; each is played when first used."""
    known = {}

    def play(job):
        if job not in known:
            with started(folder, *JOBS[job], "--out", f"{job}-undisturbed") as process:
                _, told = process.communicate(timeout=120)
            assert process.returncode == 0, told
            known[job] = shown(folder / f"{job}-undisturbed")
        return known[job]

    return play


@contextlib.contextmanager
def started(folder, *words, **variables):
    """`rolltrace run` in its own process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rolltrace", "run", *words],
        cwd=folder, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def shown(path):
    """The tables of a run, without ids, times and sessions."""
    with open_run(path) as run:
        return {table: [str(rounded(row)) for row in run.sql(sql)] for table, sql in COMPARED.items()}


def rounded(value):
    """A row rounded so that sums in another order are equal."""
    if isinstance(value, tuple | list):
        return [rounded(item) for item in value]
    return round(value, 9) + 0.0 if isinstance(value, float) else value


def interrupt(folder, words, rng, requests, number):
    """Starts the command and sends the signal after some requests; returns whether it was unfinished by then.

    The policy answers no more of them, so that the run cannot end first. A resume may need fewer and end.
    """
    held = folder / "held"
    held.unlink(missing_ok=True)
    after = rng.randrange(requests)
    deadline = time.monotonic() + 120
    with started(folder, *words, HOLD_AFTER=str(after), HOLD_FILE=str(held)) as process:
        while not held.exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.05)  # others are still being answered, graded and written
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert "Traceback" not in told
    assert process.returncode in ((1, 143, -number) if held.exists() else (0,)), told
    return held.exists()


def interrupt_and_resume(folder, undisturbed, job, seed, number=signal.SIGKILL):
    """Asserts that a run that is interrupted once or more and then resumed shows what an undisturbed one shows."""
    expected = undisturbed(job)
    requests = (len(expected["steps"]) + len(expected["calls"])) * 9 // 10
    rng = random.Random(f"{job} {seed}")
    name = f"{job}-{seed}-{number}"
    path = folder / name
    resume = ["--resume", name, "--force"]
    is_unfinished = interrupt(folder, [*JOBS[job], "--out", name], rng, requests, number)
    assert is_unfinished
    while is_unfinished and rng.random() < 0.5:  # resumes are interrupted, too
        is_unfinished = interrupt(folder, resume, rng, requests, number)
    with started(folder, *resume) as process:
        _, told = process.communicate(timeout=120)
    assert ("Nothing to do" in told) == (not is_unfinished)
    assert process.returncode == 0, told
    found = shown(path)
    for table, rows in expected.items():
        assert found[table] == rows, f"{table} of {name}"
    assert check_run(path, skip=["signal"]).ok  # most groups of one job have equal rewards
    with started(folder, *resume) as process:
        assert "Nothing to do" in process.communicate(timeout=60)[1]


@pytest.mark.parametrize("job", ["arithmetic", "preference", "game"])
def test_killed_runs_are_completed(folder, undisturbed, job):
    """After SIGKILL at any moment, also of a resume, a resumed run equals an undisturbed one."""
    interrupt_and_resume(folder, undisturbed, job, 0)


@pytest.mark.parametrize(
    ("job", "number"),
    [
        ("arithmetic", signal.SIGTERM),
        ("preference", signal.SIGINT),
        pytest.param("arithmetic", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("preference", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_interrupted_runs_are_completed(folder, undisturbed, job, number):
    """After SIGTERM or Ctrl-C at any moment, a resumed run equals an undisturbed one."""
    interrupt_and_resume(folder, undisturbed, job, 0, number)


def test_a_killed_session_that_another_continues_is_over(folder):
    """After SIGKILL and an immediate resume, no reader says that the run is running or has rollouts in flight."""
    interrupt(folder, [*JOBS["arithmetic"], "--out", "continued"], random.Random(0), 60, signal.SIGKILL)
    path = folder / "continued"
    [killed] = RunReader(path).ledgers().values()
    # The last ledger before a kill may be a second old: this one has rollouts in flight, as of now.
    lines = len(list(RunReader(path).rollouts()))
    late = replace(killed, written_at=utc_now(), dispatched=lines + 5, recorded=lines, in_flight=5)
    with (path / "ledger" / f"{killed.session}.jsonl").open("ab") as file:
        file.write(encode_ledger(late))
    assert list_runs(path).runs[0].maybe_lost == 5
    assert states(path) == "running"
    with started(folder, "--resume", "continued", "--force") as process:
        _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert states(path) == "complete"
    [listed], summary = list_runs(path).runs, summarize(path)
    assert (listed.lost, listed.maybe_lost, summary.lost, summary.maybe_lost) == (0, 0, 0, 0)
    with open_run(path) as run:
        assert run.sql("select sum(lost), sum(maybe_lost), sum(in_flight) > 0 from ledger").fetchall() == [(0, 0, True)]
    library = OpenRuns(path)
    try:
        [card] = RunList(library).list().runs
        with library.open(card.key) as opened:
            ledger = run_overview(opened, card).ledger
    finally:
        library.close()
    assert (card.live, card.lost, card.maybe_lost, ledger.in_flight, ledger.maybe_lost) == (False, 0, 0, 0, 0)
    run = CliRunner()
    for command in ("ls", "summary"):
        assert "in flight" not in run.invoke(cli, [command, str(path)]).stdout
    shown = run.invoke(cli, ["show", str(path)]).stdout
    assert "continued by a later session" in " ".join(shown.split())
    assert "being played" not in shown
    [result] = check_run(path, only=["open_sessions"]).results
    assert [finding.message.partition(";")[0] for finding in result.findings] == ["continued by a later session"]
    with started(folder, "--resume", "continued") as process:  # no --force: nothing is running
        assert "Nothing to do" in process.communicate(timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("job", JOBS)
def test_runs_killed_at_fifty_moments_are_completed(folder, undisturbed, job, seed):
    """The same at fifty random moments."""
    interrupt_and_resume(folder, undisturbed, job, seed)
