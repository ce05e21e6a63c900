"""`rolltrace check-env`: what it prints, and its exit codes."""

import json
import textwrap

OWN = """
from rolltrace import Env, EnvError, Message, Observation, SingleUse, StepResult

class Careful(Env):
    def __init__(self, greeting: str = "hello"):
        self.greeting = greeting
        self.life = SingleUse()

    async def initial_observation(self):
        self.life.start()
        print("a line of the env's own")
        return Observation([Message("user", f"Say {self.greeting}.")])

    async def step(self, completion):
        self.life.require_active()
        self.life.end()
        return StepResult(float(self.greeting in completion.message.content), done=True)

class Careless(Careful):
    async def step(self, completion):
        return StepResult("much \\x1b[31m", done=True)
"""


def own(tmp_path, monkeypatch, name):
    """Writes the environments as a module that can be imported once."""
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)


def test_a_sound_environment_passes(rolltrace):
    """A valid environment prints one line, and the exit code is 0."""
    shown = rolltrace("check-env", "arithmetic", "--arg", "difficulty=2", "--task", 3, "--seed", 4)
    assert shown.exit_code == 0
    assert shown.stdout == "✓ arithmetic keeps all 22 rules.\n"


def test_each_broken_rule_is_one_sentence(rolltrace, tmp_path, monkeypatch):
    """The exit code is 1; what the environment prints, and terminal control characters, are not in the output."""
    own(tmp_path, monkeypatch, "check_env_text")
    shown = rolltrace("check-env", "check_env_text:Careless")
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["numbers", "step-after-done", "step-before-start"]
    assert all(line.endswith(".") for line in lines)
    assert "\x1b" not in shown.stdout
    assert "a line of the env's own" in shown.stderr


def test_json_is_one_object(rolltrace, tmp_path, monkeypatch):
    """The JSON has rule, message and fix of each violation, with the same exit code."""
    own(tmp_path, monkeypatch, "check_env_json")
    shown = rolltrace("check-env", "check_env_json:Careless", "--json")
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    assert (found["env"], found["ok"]) == ("check_env_json:Careless", False)
    assert [violation["rule"] for violation in found["violations"]] == [
        "numbers", "step-after-done", "step-before-start",
    ]  # fmt: skip
    assert all(violation["message"] and violation["fix"] for violation in found["violations"])
    sound = rolltrace("check-env", "check_env_json:Careful", "--arg", "greeting=hi", "--json")
    assert (sound.exit_code, json.loads(sound.stdout)["violations"]) == (0, [])


def test_wrong_usage(rolltrace):
    """An unknown name, argument or task ends with exit code 2 and one message."""
    for words in (["nope"], ["arithmetic", "--arg", "x=1"], ["arithmetic", "--arg", "x"], ["problems", "--task", 9999]):
        shown = rolltrace("check-env", *words)
        assert shown.exit_code == 2
        assert "Traceback" not in shown.stderr
        assert shown.stdout == ""
