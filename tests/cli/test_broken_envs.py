"""A user's broken environment, run from the shell: a clear error, a recorded failure, and the right exit code."""

import subprocess
import sys

import pytest

from rolltrace.store.reader import RunReader

OWN = """
from rolltrace import Env, Message, Observation, StepResult

class Good(Env):
    async def initial_observation(self):
        return Observation([Message("user", "What is 1 + 1?")])

    async def step(self, completion):
        return StepResult(1.0, done=True)

class WrongType(Good):
    async def step(self, completion):
        return 1.0, True

class NotAsync(Good):
    def step(self, completion):
        return StepResult(1.0, done=True)

class BadInit(Good):
    def __init__(self):
        raise ValueError("no data set")

class BadStep(Good):
    async def step(self, completion):
        raise KeyError("board")

class BadClose(Good):
    async def close(self):
        raise OSError("stuck")

class MissingMethod(Env):
    async def initial_observation(self):
        return Observation([])
"""


def run_own(folder, name):
    """`rolltrace run` of an environment in the current directory."""
    (folder / "own_envs.py").write_text(OWN)
    command = [sys.executable, "-m", "rolltrace", "run", f"own_envs:{name}", "--group-size", "2", "--out", "run"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("WrongType", "EnvError", "Expected WrongType.step to return a StepResult, got tuple"),
        ("NotAsync", "TypeError", "declare it `async def`"),
        ("BadInit", "ValueError", "no data set"),
        ("BadStep", "KeyError", "board"),
    ],
)
def test_a_broken_env_is_reported_and_recorded(tmp_path, name, kind, words):
    """The failure is on standard error and in the record of each rollout, and the exit code is 1."""
    ended = run_own(tmp_path, name)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    rollouts = list(RunReader(tmp_path / "run").rollouts())
    assert [rollout.index for rollout in rollouts] == [0, 1]
    for rollout in rollouts:
        assert (rollout.status, rollout.error.layer, rollout.error.type) == ("error", "env", kind)
        assert words in rollout.error.message
        assert rollout.reward is None


def test_a_close_that_fails_takes_no_reward_away(tmp_path):
    """An exception in `close` is a note, and the job succeeds."""
    assert run_own(tmp_path, "BadClose").returncode == 0
    for rollout in RunReader(tmp_path / "run").rollouts():
        assert rollout.reward == 1.0
        assert [note.message for note in rollout.notes] == ["close of BadClose raised OSError: stuck"]


def test_a_missing_method_is_wrong_usage(tmp_path):
    """An environment that cannot be made is refused before a run is created, and the error names the method."""
    ended = run_own(tmp_path, "MissingMethod")
    assert ended.returncode == 2
    assert "lacks step" in ended.stderr
    assert not (tmp_path / "run").exists()
