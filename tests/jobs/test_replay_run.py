"""`replay_run`: the recorded responses of a run in fresh envs, and the regression test that is made of them."""

import asyncio
import os
import random
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolltrace.check.audit import Severity
from rolltrace.check.check_run import check_run
from rolltrace.cli.app import cli
from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.errors import InputError, PolicyError
from rolltrace.jobs.demo_run import demo_envs
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import Plan, groups_of_iteration, make_runner
from rolltrace.jobs.play import play
from rolltrace.jobs.regression_test import write_regression_test
from rolltrace.jobs.replay_run import replay_run
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.pattern_redaction import redact_pattern

DICE = '''
import random

from rolltrace import Env, Message, Observation, StepResult


class Dice(Env):
    """Throws a die three times; the reward is the number of words of each answer."""

    def __init__(self, seed: int, episode: int):
        self.rng = random.Random(f"{seed} {episode}")
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("user", f"You threw {self.rng.randint(1, 6)}.")])

    async def step(self, completion):
        self.turn += 1
        reward = float(len(completion.message.content.split()))
        seen = Observation([Message("user", f"You threw {self.rng.randint(1, 6)}.")])
        return StepResult(reward, self.turn == 3, seen, reward_data={"words": reward})
'''


@pytest.mark.parametrize("env", demo_envs())
def test_every_deterministic_env_replays_exactly(tmp_path, env):
    """The recorded responses give the recorded prompts, rewards, states and ends, graders included."""
    play(env, "scripted:noisy", out=tmp_path / "run", groups=2, group_size=3)
    report = replay_run(tmp_path / "run", also=("env_state", "metrics", "task_data"))
    [counts] = report.envs
    assert report.is_equal, str(report)
    assert counts.rollouts == counts.equal >= 6
    assert counts.steps >= 6
    assert (counts.not_replayed, counts.ends_left_out) == ({}, {})


@pytest.fixture
def dice(tmp_path, monkeypatch):
    """A run of an env of the user's, in a module that can be changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "dice.py").write_text(DICE)
    play("dice:Dice", "scripted:noisy", out=tmp_path / "run", groups=2, group_size=2, iterations=2)
    yield tmp_path / "run"
    sys.modules.pop("dice", None)


def change(old, new):
    """Change the module of the env, as an editor does."""
    assert old in DICE
    Path("dice.py").write_text(DICE.replace(old, new))
    sys.modules.pop("dice", None)


def test_a_change_of_the_code_is_shown(dice):
    """A changed formula, a changed prompt and a hidden random call are found at their first step, with both values."""
    assert replay_run(dice).is_equal
    change("return StepResult(reward,", "return StepResult(reward * self.turn,")
    report = replay_run(dice, most=1)
    [rollout] = report.differing
    assert report.differing_count == 8
    assert (rollout.differences[0].step, rollout.differences[0].field) == (1, "reward")
    assert rollout.differences[0].replayed == 2 * rollout.differences[0].recorded
    assert rollout.address == "train/dice:Dice/0/seed0-0/0"
    change('seen = Observation([Message("user", f"You threw', 'seen = Observation([Message("user", f"Now you threw')
    prompt = replay_run(dice).differing[0].differences[0]
    assert (prompt.step, prompt.field) == (1, "prompt[2].content")
    assert prompt.replayed == f"Now y{prompt.recorded[1:]}"
    change("self.turn += 1\n", "self.turn += 1 + 0 * int(random.random())\n        self.rng = random\n")
    assert not replay_run(dice).is_equal


def test_the_text_shows_old_and_new(dice):
    """A person sees what moved, where, and by how much; long texts as a diff of the lines that differ."""
    lines = "\\n".join(f"Rule {number}: be kind." for number in range(30))
    new = f'Observation([Message("user", "{lines}\\nYou" f" threw'
    change('return Observation([Message("user", f"You threw', f"return {new}")
    text = str(replay_run(dice, limit=1))
    assert "1 rollout replayed" in text
    assert "dice:Dice: 1 rollout, 1 differ\n  differ in: prompt 1\n" in text
    assert "✗ train/dice:Dice/0/seed0-0/0\n" in text
    change("self.turn += 1\n", "raise ValueError\n")
    assert "step 0  env_failure: nothing → 'raised'\n" in str(replay_run(dice, limit=1))
    assert "  step 0  prompt[0].content:\n    + Rule 0: be kind.\n    + Rule 1: be kind.\n" in text
    assert "    … 19 lines more\n" in text
    assert text.endswith("✗ 1 of 1 rollout differ")
    assert len(text.splitlines()) < 30


def test_rollouts_are_selected(dice):
    """`where` and `limit` choose rollouts, in the order of iterations and groups; groups are played whole."""
    assert replay_run(dice, where='iteration = 1 and "index" = 0 -- the first').compared == 2
    assert replay_run(dice, limit=5, where="iteration < 7").compared == 5
    with pytest.raises(InputError, match="got none: none fits iteration = 7"):
        replay_run(dice, where="iteration = 7")
    with pytest.raises(InputError, match="nonsense"):
        replay_run(dice, where="nonsense > 1")
    seen = []
    replay_run(dice, on_progress=lambda done, expected: seen.append((done, expected)))
    assert seen == [(4, 8), (8, 8)]


def test_the_env_may_be_elsewhere(dice, tmp_path):
    """A copy of the env in another module is the same env, under the name that was recorded."""
    shutil.move("dice.py", "moved.py")
    sys.modules.pop("dice", None)
    with pytest.raises(InputError, match="There is no module 'dice'"):
        replay_run(dice)
    assert replay_run(dice, env="moved:Dice").is_equal


def test_tasks_that_are_gone_differ(tmp_path):
    """A group that the env does not draw any more is a difference, not a silent gap."""
    data = tmp_path / "problems.jsonl"
    rows = [f'{{"question": "What is {n} + 1?", "answer": "{n + 1}", "id": "sum{n}"}}' for n in range(4)]
    data.write_text("\n".join(rows))
    play("problems", "scripted:noisy", out=tmp_path / "run", groups=4, group_size=1, args={"data": str(data)})
    assert replay_run(tmp_path / "run").is_equal
    data.write_text("\n".join([*rows[:3], rows[3].replace("sum3", "sum9")]))
    report = replay_run(tmp_path / "run")
    [gone] = [rollout for rollout in report.differing if rollout.differences[0].field == "group"]
    assert (gone.differences[0].recorded, gone.differences[0].replayed) == ("sum3", None)


def test_what_has_no_text_is_not_replayed(tmp_path):
    """Groups that were recorded as numbers are counted with their reason; if there are no others, it is no success."""
    trace = Recording(level="full", fraction=0.5)
    play("arithmetic", "scripted:noisy", out=tmp_path / "some", groups=6, group_size=1, trace=trace)
    report = replay_run(tmp_path / "some")
    [counts] = report.envs
    assert report.is_equal
    assert counts.equal + counts.not_replayed["recorded as numbers, without text"] == 6 > counts.equal > 0
    play("arithmetic", "scripted:noisy", out=tmp_path / "none", group_size=2, trace="numbers")
    report = replay_run(tmp_path / "none")
    assert (report.is_equal, report.compared, report.differing_count) == (False, 0, 0)
    assert str(report).endswith("✗ no rollout could be replayed")


def test_rollouts_of_other_programs_are_counted(tmp_path):
    """A run that another program wrote into is replayed without what that program recorded."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "run", group_size=2)
    with create_run(tmp_path / "run", join=True) as run, run.rollout(env="own", task="t", group="g", index=0) as r:
        r.step(prompt=[{"role": "user", "content": "Hi"}], response="Hello", reward=1.0)
    report = replay_run(tmp_path / "run")
    assert report.is_equal
    assert report.envs[1].not_replayed == {"recorded by another program than `rolltrace run`": 1}


def test_of_rollouts_that_two_sessions_recorded_the_last_is_replayed(tmp_path):
    """The others are counted, so that the numbers add up to those that were selected."""
    plan, tasks = Plan(group_size=2), ArithmeticTasks()
    play(tasks, "scripted:noisy", out=tmp_path / "run", group_size=2)

    async def play_again():
        with create_run(tmp_path / "run", join=True, continues=()) as writer:
            runner = make_runner(plan, open_policy("scripted:noisy"), {}, writer)
            return [group async for group in runner.play(groups_of_iteration(tasks, plan, 0).builders)]

    asyncio.run(play_again())
    [counts] = replay_run(tmp_path / "run", env=tasks).envs
    assert (counts.rollouts, counts.equal) == (4, 2)
    assert counts.not_replayed == {"another session recorded the same rollout": 2}


def test_what_cannot_be_replayed_says_why(tmp_path):
    """A run of another program, an env, arguments or a redaction that were Python objects, and several runs at once."""
    with create_run(tmp_path / "runs" / "own") as run, run.rollout(env="own", task="t", group="g", index=0) as r:
        r.step(prompt=[{"role": "user", "content": "Hi"}], response="Hello", reward=1.0)
    with pytest.raises(InputError, match=r"made by|cannot be replayed"):
        replay_run(tmp_path / "runs" / "own")
    play(ArithmeticTasks(), "scripted:noisy", out=tmp_path / "runs" / "object", group_size=1)
    with pytest.raises(InputError, match="was a Python object: name it with --env"):
        replay_run(tmp_path / "runs" / "object")
    assert replay_run(tmp_path / "runs" / "object", env=ArithmeticTasks()).is_equal
    assert replay_run(tmp_path / "runs" / "object", env="arithmetic").is_equal
    with pytest.raises(InputError, match="name one of them"):
        replay_run(tmp_path / "runs")
    with pytest.raises(InputError, match="also"):
        replay_run(tmp_path / "runs" / "object", also=["seconds"])


def test_a_redacted_run_is_compared_as_it_was_redacted(tmp_path):
    """The function is applied to the new prompts too, so that only real differences are left."""
    redact = redact_pattern(r"\d")
    play("prompts", "scripted:noisy", out=tmp_path / "run", group_size=2, trace=Recording(redact=redact))
    with pytest.raises(InputError, match="redaction function"):
        replay_run(tmp_path / "run")
    assert replay_run(tmp_path / "run", redact=redact).is_equal


def test_retries_are_replayed(tmp_path):
    """Each attempt is compared with its own record."""

    def unlucky(request):
        return PolicyError("busy") if request.identity.attempt < request.identity.index else "The answer is 7."

    policy = ScriptedReplies(unlucky)
    play("arithmetic", policy, out=tmp_path / "run", group_size=3, retries=2)
    report = replay_run(tmp_path / "run")
    assert report.is_equal
    assert report.envs[0].equal == 6


async def test_it_works_while_a_loop_is_running(dice):
    """As in a notebook."""
    assert replay_run(dice, limit=1).is_equal
    await asyncio.sleep(0)


# The regression test


def run_pytest(folder):
    """Run the written test in a process of its own."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(words, cwd=Path.cwd(), env=environment, capture_output=True, text=True, check=False)


def test_a_run_becomes_a_regression_test(dice, tmp_path):
    """The written test passes, is a sound run of few whole groups, and fails with the difference after a change."""
    test = write_regression_test(dice, tmp_path / "tests", limit=3)
    assert [path.name for path in sorted(test.parent.iterdir())] == ["recording_dice_dice", "test_replay_dice_dice.py"]
    audits = check_run(tmp_path / "tests" / "recording_dice_dice")
    assert [result.audit for result in audits.with_findings if result.severity is Severity.ERROR] == []
    shutil.rmtree(dice)  # it needs the recording alone
    passed = run_pytest(test.parent)
    assert passed.returncode == 0, passed.stdout
    assert "1 passed" in passed.stdout
    assert "# train/dice:Dice/0/seed0-1: " in test.read_text()
    change("reward = float(", "reward = 0.5 * float(")
    failed = run_pytest(test.parent)
    assert failed.returncode == 1
    assert "4 of 4 rollouts differ" in failed.stdout
    assert "step 0  reward: " in failed.stdout
    with pytest.raises(InputError, match="not to exist"):
        write_regression_test(test.parent / "recording_dice_dice", test.parent)


def test_a_regression_test_has_its_grades_and_data(tmp_path, monkeypatch):
    """Scores of group graders and small data files are copied, so that the test needs nothing else."""
    monkeypatch.chdir(tmp_path)
    play("preference", "scripted:noisy", out="graded", group_size=3)
    write_regression_test("graded", "tests")
    data = tmp_path / "mine.jsonl"
    data.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    play("problems", "scripted:noisy", out="data", group_size=2, args={"data": "mine.jsonl"})
    test = write_regression_test("data", "tests")
    data.unlink()
    assert "args={'data': str(RECORDING / 'data' / 'data.jsonl')}" in test.read_text()
    runpy.run_path("tests/test_replay_preference.py")["test_preference_is_as_recorded"]()
    runpy.run_path(str(test))["test_problems_is_as_recorded"]()


def test_a_test_that_would_fail_is_not_written(tmp_path):
    """An env that is not deterministic leaves nothing behind."""
    policy = ScriptedReplies(lambda request: f"The answer is {random.random()}.")
    play("arithmetic", policy, out=tmp_path / "run", group_size=2)
    with pytest.raises(InputError, match="got:\n"):
        write_regression_test(tmp_path / "run", tmp_path / "tests", args={"difficulty": 3})
    assert list((tmp_path / "tests").iterdir()) == []


# The guide


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    """Its commands succeed in their order, and find the change that it speaks of."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "replay.md").read_text(encoding="utf-8")
    env, code = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line)[1:] for line in re.findall(r"^\$ (rolltrace .*)$", guide, re.MULTILINE)]
    assert len(commands) == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("words.py").write_text(env)
    for command in commands:
        ran = CliRunner().invoke(cli, command)
        assert ran.exit_code == 0, ran.output
    exec(code, {})
    assert capsys.readouterr().out == "True 8\n"
    Path("words.py").write_text(env.replace("length / 10", "length / 5"))
    sys.modules.pop("words")
    failed = CliRunner().invoke(cli, commands[1])
    assert failed.exit_code == 1
    [shown] = re.findall(r"^```text\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert shown in failed.output
    sys.modules.pop("words")
