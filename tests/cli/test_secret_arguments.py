"""Secrets among the arguments of a command reach the environment and the policy, but not the run."""

import json

from rolltrace.secret_redaction import PLACEHOLDER
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader

OWN = """
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.testing.scripted import ScriptedReplies

class Asks(Env):
    def __init__(self, api_key: str, base: str = "", level: int = 1):
        self.right = api_key == "hunter2hunter2" and "p4ssw0rd" in base

    async def initial_observation(self):
        return Observation([{"role": "user", "content": "Go."}])

    async def step(self, completion):
        return StepResult(float(self.right and "right" in completion.message.content), done=True)

def make(password: str, n: int = 1):
    return ScriptedReplies(["right" if password == "correct horse" else "wrong"])
"""


def test_secrets_are_used_and_not_recorded(rolltrace, tmp_path, monkeypatch):
    """Arguments that look like secrets reach the env and the policy, and are in no file of the run."""
    (tmp_path / "asking_env.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = rolltrace(
        "run", "asking_env:Asks", "--policy", "asking_env:make,password=correct horse,n=2", "--out", "here",
        "--arg", "api_key=hunter2hunter2", "--arg", "base=http://me:p4ssw0rd@host/v1", "--arg", "level=3",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    config = json.loads((tmp_path / "here" / "run.json").read_bytes())["config"]
    assert config["args"] == {"api_key": PLACEHOLDER, "base": f"http://{PLACEHOLDER}@host/v1", "level": "3"}
    assert config["policy"].startswith(f"asking_env:make,password={PLACEHOLDER}")
    for rollout in RunReader(tmp_path / "here").rollouts():
        assert rollout.reward == 1.0
        assert rollout.env_args == {"api_key": PLACEHOLDER, "base": f"http://{PLACEHOLDER}@host/v1", "level": 3}
    stored = b"".join(path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file())
    for secret in (b"hunter2", b"p4ssw0rd", b"correct horse", b"horse"):
        assert secret not in stored
    assert all(secret not in shown.output for secret in ("hunter2", "p4ssw0rd", "horse"))


def test_secrets_inside_json_arguments_are_not_recorded(rolltrace, tmp_path, monkeypatch):
    """An argument given as JSON text is stored without the secrets in it, whatever their type."""
    (tmp_path / "asking_env.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    headers = '{"Authorization":"Basic QQSECRETQQ","cookie":["QQSECRETQQ"],"keys":{"openai":"QQSECRETQQ"},"page":2}'
    shown = rolltrace(
        "run", "asking_env:Asks", "--policy", "asking_env:make,password=x", "--out", "here",
        "--arg", "api_key=x", "--arg", f"base={headers}",
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    stored = {"Authorization": PLACEHOLDER, "cookie": [PLACEHOLDER], "keys": {"openai": PLACEHOLDER}, "page": 2}
    config = json.loads((tmp_path / "here" / "run.json").read_bytes())["config"]
    assert json.loads(config["args"]["base"]) == stored
    assert not [path for path in (tmp_path / "here").rglob("*") if path.is_file() and b"QQSECRET" in path.read_bytes()]


def test_a_loops_own_config_and_arguments_are_redacted_too(tmp_path):
    """Arguments of `create_run` and `run.rollout` are redacted too, at any depth and of any type."""
    config = {"optimizer": {"lr": 0.1}, "wandb": {"api_key": "abc"}, "tokens": 5, "eos_token": "</s>"}
    with create_run(tmp_path / "run", config) as run:
        args = {"token": "abc", "nested": ({"password": "abc"},), "seed": 3}
        with run.rollout(env="sums", task="t", group="t", index=0, env_args=args) as rollout:
            rollout.step(prompt="?", response="!", reward=1.0)
    reader = RunReader(tmp_path / "run")
    assert reader.info.config == config | {"wandb": {"api_key": PLACEHOLDER}}
    [recorded] = reader.rollouts()
    assert recorded.env_args == {"token": PLACEHOLDER, "nested": [{"password": PLACEHOLDER}], "seed": 3}
