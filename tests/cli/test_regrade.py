"""`rolltrace regrade`: its output, and what is left when it is killed or interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.store.create import create_run
from waiting import until

LOGGED = """
import os, pathlib, time
from rolltrace import Grade, GroupGrader
HERE = pathlib.Path(__file__).parent

def note(text):
    with open(HERE / "graded.txt", "a") as file:
        file.write(text + "\\n")
    if "HOLD_AFTER" in os.environ and len((HERE / "graded.txt").read_text().split()) > int(os.environ["HOLD_AFTER"]):
        time.sleep(600)

def one(rollout):
    note(rollout.id)
    return float(rollout.index % 3 == 0)
one.version = 1

class Whole(GroupGrader):
    version = 1
    async def grade_group(self, rollouts):
        for rollout in rollouts:
            note(rollout.id)
        return {rollout.id: Grade(float(rollout.index)) for rollout in rollouts}
"""
"""Graders that write down what they grade; after HOLD_AFTER rollouts they do not return."""
SMALL_BATCHES = "from rolltrace.jobs import regrading; regrading._BATCH = 5; from rolltrace.cli.app import main; main()"


@pytest.fixture
def run(tmp_path):
    """A run of 30 groups of 4, in a folder with graders."""
    with create_run(tmp_path / "run") as writer:
        for number in range(120):
            names = {"env": "sums", "task": f"t{number // 4}", "group": str(number // 4), "index": number % 4}
            with writer.rollout(**names, task_data={"answer": str(number)}) as rollout:
                rollout.step(prompt="How many?", response=f"Answer: {number + number % 2}", reward=1.0)
    (tmp_path / "logged.py").write_text(LOGGED)
    return tmp_path / "run"


def scores(run):
    """How many scores each rollout has."""
    return Counter(rollout for (rollout,) in open_run(run).sql("select rollout from scores where rollout is not null"))


def start(run, *words, **variables):
    command = [sys.executable, "-c", SMALL_BATCHES, "regrade", str(run), *words]
    return subprocess.Popen(
        command, cwd=run.parent, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def lines(run):
    """How many scores are on disk."""
    return sum(path.read_bytes().count(b"\n") for path in (run / "scores").iterdir())


@pytest.mark.parametrize(
    ("grader", "enough"),
    [("logged:one", 30), ("exact", 1), pytest.param("logged:Whole", 40, marks=pytest.mark.slow)],
)
def test_a_killed_regrade_is_continued(run, grader, enough):
    """After SIGKILL the same command grades the rest: each rollout has one score, and none is redone."""
    words = ("--grader", grader, "--concurrency", "4")
    process = start(run, *words, HOLD_AFTER="40")
    until(lambda: lines(run) >= enough)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stored = scores(run)
    assert stored
    log = run.parent / "graded.txt"
    before = log.read_text().split() if log.exists() else []
    printed, told = start(run, *words, "--json").communicate(timeout=120)
    summary = json.loads(printed)
    assert (summary["graded"], summary["graded_before"]) == (120 - len(stored), len(stored)), told
    assert (summary["report"]["scores"], summary["report"]["failed"]) == (120, 0)
    assert summary["report"]["new_mean"] == {"logged:one": 0.5, "logged:Whole": 1.5, "exact": 0.5}[grader]
    assert set(scores(run).values()) == {1}
    if log.exists():
        again = log.read_text().split()[len(before) :]
        assert len(again) == summary["graded"]
        assert stored.keys().isdisjoint(again)
    assert [run.state for run in list_runs(run.parent).runs] == ["complete"]
    about_rewards = ["constant_reward", "groups_without_signal", "small_effective_batch"]  # which are all 1 here
    assert check_run(run, skip=about_rewards).ok


def test_ctrl_c_keeps_what_is_graded(run):
    """Ctrl-C ends with exit code 1 and says how to continue; the scores so far are on disk, and the run is closed."""
    process = start(run, "--grader", "logged:one", "--concurrency", "4", HOLD_AFTER="40")
    until(lambda: lines(run) >= 30)
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=60)
    assert (process.returncode, printed) == (1, b"")
    text = f"Interrupted. The scores so far are in {run}. The same command grades the rest.\n"
    assert told.decode().endswith(text)
    done = scores(run)
    assert 0 < len(done) <= 41
    assert [ledger.closed for ledger in open_run(run).ledgers().values()] == [True, True]
    assert len(list_runs(run.parent).runs) == 1


def test_what_it_prints(rolltrace, run):
    """The output has the numbers, the tasks and rollouts that changed, and next steps; errors have exit code 2."""
    result = rolltrace("regrade", run, "--grader", "exact")
    assert result.exit_code == 0
    shown = [line.rstrip() for line in result.stdout.splitlines()]
    assert shown[0] == f"{run}: regrade/exact@1"
    assert shown[1].startswith("120 rollouts graded in ")
    assert shown[3:9] == [
        "mean             1 → 0.5 (n = 120)",
        "moved            60 of 120: 0 up, 60 down",
        "flips at 0.5     0 solved now, 60 no longer",
        "correlation      Pearson –, Spearman –",
        "order in groups  0 of 30 groups reordered, 0 with another best member; of 0 pairs 0 reversed, 0 now equal",
        "signal           lost in 0 groups, gained in 30",
    ]
    assert [line.split() for line in shown[10:12]] == [
        ["task", "n", "old", "new", "change"], ["sums", "t0", "4", "1", "0.5", "-0.5"],
    ]  # fmt: skip
    assert "--as-reward" in result.stderr
    assert "rolltrace show" in result.stderr
    for words, expected in (
        (["--grader", "exat"], "Did you mean 'exact'? Known: auto, exact, math, number, preference, rubric."),
        (["--grader", "exact", "--where", "reward > 1"], "got none of 120"),
        (["--grader", "exact", "--where", "nonsense = 1"], "nonsense"),
        (["--grader", "rubric"], "pass --policy grader=SPEC"),
        (["--grader", "exact", "--arg", "extract=last"], "Known: answer, boxed, tagged, whole."),
    ):
        result = rolltrace("regrade", run, *words)
        assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr
    nothing = rolltrace("regrade", run, "--grader", "exact", "--arg", "reference=gold")
    assert nothing.exit_code == 1
    assert "not graded: 120 × it has no reference answer (gold in task_data)" in nothing.stdout
