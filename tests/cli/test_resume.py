"""`rolltrace run --resume`: its options, refusals and output."""

import json

import pytest

from rolltrace.secret_redaction import PLACEHOLDER
from rolltrace.store.reader import RunReader
from segments import edit_run_info


@pytest.fixture
def interrupted(rolltrace, tmp_path):
    """A run of three groups without its last lines."""
    words = ["--groups", 3, "--arg", "difficulty=2", "--sampling", "temperature=0.5", "--max-turns", 3]
    assert rolltrace("run", "arithmetic", *words, "--out", "here").exit_code == 0
    [segment] = tmp_path.glob("here/rollouts/*")
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:6]))
    return tmp_path / "here"


def change_config(path, **changes):
    """Edits the config in `run.json`."""
    info = json.loads((path / "run.json").read_text())
    edit_run_info(path, config=info["config"] | changes)


def test_resume_plays_the_rest(rolltrace, interrupted):
    """The summary covers what was played now; another resume has nothing to do."""
    shown = rolltrace("run", "--resume", "here", "--json")
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["groups"] == 2
    assert "2/2 groups" in shown.stderr
    samplings = {rollout.sampling for rollout in RunReader(interrupted).rollouts()}
    assert [[one.temperature for one in sampling] for sampling in samplings] == [[0.5]]
    again = rolltrace("run", "--resume", "here")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "Nothing to do: every group of here is finished." in again.stderr


def test_policy_and_concurrency_may_be_given(rolltrace, interrupted):
    """The remaining groups are played by another policy."""
    shown = rolltrace("run", "--resume", "here", "--policy", "scripted:noisy,name=other", "--concurrency", 2)
    assert shown.exit_code == 0, shown.stderr
    assert {rollout.policy for rollout in RunReader(interrupted).rollouts()} == {"scripted:noisy", "other"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--groups", 3], "--groups"),
        (["--seed", 0, "--out", "there"], "--seed, --out"),
        (["arithmetic"], "ENV"),
        (["--max-turns", 4, "--trace", "full"], "--trace, --max-turns"),
        (["--strategy", "fail-fast", "--retries", 1, "--split", "test"], "--strategy, --retries, --split"),
        (["--sampling", "temperature=1"], "--sampling"),
    ],
)
def test_other_options_are_refused_by_name(rolltrace, interrupted, words, named):
    """A run is completed as planned; an option that would change the plan is wrong usage."""
    shown = rolltrace("run", "--resume", "here", *words)
    assert shown.exit_code == 2
    assert f"Expected no {named} with --resume" in shown.stderr
    assert len(RunReader(interrupted).ledgers()) == 1


def test_something_to_play_is_needed(rolltrace):
    """Neither an environment nor a run, and --force without a run, are wrong usage."""
    assert "Missing argument 'ENV'" in rolltrace("run").stderr
    shown = rolltrace("run", "arithmetic", "--force")
    assert (shown.exit_code, "only with --resume" in shown.stderr) == (2, True)
    assert rolltrace("run", "--resume", "nowhere").exit_code == 2


def test_arguments_are_those_of_the_run(rolltrace, interrupted):
    """A recorded argument cannot be given again; a secret must be."""
    shown = rolltrace("run", "--resume", "here", "--arg", "difficulty=3")
    assert (shown.exit_code, "got difficulty" in shown.stderr) == (2, True)
    change_config(interrupted, args={"difficulty": PLACEHOLDER})
    shown = rolltrace("run", "--resume", "here")
    assert shown.exit_code == 2
    assert "difficulty of here are secrets, which are not recorded: pass --arg difficulty=VALUE" in shown.stderr
    assert rolltrace("run", "--resume", "here", "--arg", "difficulty=2").exit_code == 0


def test_a_policy_with_a_secret_is_given_again(rolltrace, interrupted):
    """The policy's spec in the config lacks its secret, so it must be given again."""
    change_config(interrupted, policy=f"openai:m@http://localhost,key={PLACEHOLDER}")
    shown = rolltrace("run", "--resume", "here")
    assert (shown.exit_code, "pass --policy SPEC again" in shown.stderr) == (2, True)
    assert rolltrace("run", "--resume", "here", "--policy", "scripted:noisy").exit_code == 0


def test_changed_code_is_reported(rolltrace, interrupted, monkeypatch):
    """Another revision gives a warning on standard error."""
    edit_run_info(interrupted, code_revision="1" * 40)
    monkeypatch.setattr("rolltrace.jobs.resume.code_revision", lambda: "2" * 40)
    shown = rolltrace("run", "--resume", "here")
    assert shown.exit_code == 0
    assert f"Warning: The code has changed since here was made, from revision {'1' * 40} to {'2' * 40}" in shown.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere:Env"],
        ["arithmetic", "--arg", "difficulty=99"],
        ["arithmetic", "--arg", "level=1"],
        ["arithmetic", "--policy", "scripted:nosy"],
        ["arithmetic", "--policy", "grader=replay:nowhere"],
        ["arithmetic", "--strategy", "keep-viable:2"],
        ["arithmetic", "--max-turns", "none", "--max-parse-retries", "2"],
        ["arithmetic", "--sampling", "top_p=-1"],
        ["broken:NoBuilder"],
        ["broken:NoTasks"],
    ],
)
def test_a_refused_run_leaves_no_directory(rolltrace, tmp_path, monkeypatch, words):
    """A refused run leaves the path free for the corrected command."""
    (tmp_path / "broken.py").write_text(
        "from rolltrace import Tasks\n"
        "class NoBuilder(Tasks):\n    env = 'none'\n    def builder(self, number, *, episodes, seed):\n"
        "        raise LookupError('no such level')\n"
        "class NoTasks(NoBuilder):\n    count = 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shown = rolltrace("run", *words, "--out", "runs/here")
    assert shown.exit_code in (1, 2)
    assert "Error: " in shown.stderr
    assert not (tmp_path / "runs").exists()
