"""The built-in family `openenv:URL`, with a server of OpenEnv on loopback."""

import contextlib
import json
import socket
import threading
import time

import pytest

import rolltrace
from rolltrace.envs.openenv import _Session, parse_action
from rolltrace.envs.registry import list_members, load_env
from rolltrace.errors import InputError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.stop_reasons import Layer, Status
from seeded_runs import play_clean
from unexplained_findings import assert_explained

pytest.importorskip("openenv")

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

pytestmark = pytest.mark.core


class Guess(Action):
    """A guess."""

    number: int


class Hint(Observation):
    """An observation of the environment."""

    text: str


class Remembered(State):
    """The game."""

    target: int = 0
    guesses: list[int] = Field(default_factory=list)


class Game(Environment):
    """Guess the number; 13 raises."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, high=9, **kwargs):
        self.game = Remembered(target=(seed or 0) % high, guesses=[])
        return Hint(text=f"A number below {high}.", done=False)

    def step(self, action, timeout_s=None, **kwargs):
        if action.number == 13:
            raise ValueError("unlucky")
        self.game.guesses.append(action.number)
        right = action.number == self.game.target
        return Hint(text="right" if right else "wrong", done=right, reward=1.0 if right else -0.25,
                    metadata={"luck": "yes"} if right else {})  # fmt: skip

    @property
    def state(self):
        return self.game


@contextlib.contextmanager
def serving(sessions, **classes):
    app = create_fastapi_app(Game, classes.get("action", Guess), Hint, max_concurrent_envs=sessions)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio"))
    sock = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)  # uvicorn has no event to wait for
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def url():
    """A server with two sessions."""
    with serving(2) as address:
        yield address


async def played(spec, replies, *, episodes=1, limits=None, **args):
    builder = load_env(spec, args).builder(0, episodes=episodes, seed=0)
    runner = rolltrace.Runner(
        ScriptedReplies(replies), sink=(sink := rolltrace.MemorySink("run")), limits=limits or Limits()
    )
    async with contextlib.aclosing(runner.play([builder])) as results:
        async for _ in results:
            pass
    return builder, sorted(sink.rollouts, key=lambda rollout: rollout.index)


async def test_an_episode(url):
    """Actions, observations, rewards and the state are the server's; the seed is the task's."""
    replies = [json.dumps({"number": number}) for number in range(9)]
    builder, [rollout] = await played(f"openenv:{url}", replies)
    target = builder.seed % 9
    assert [step.reward for step in rollout.steps] == [-0.25] * target + [1.0]
    assert rollout.steps[-1].env_state["guesses"] == list(range(target + 1))
    assert rollout.steps[-1].env_state["target"] == target
    assert rollout.steps[-1].extra["action"] == {"number": target}
    prompt = rollout.steps[0].trace.prompt[0].content
    assert "A number below 9." in prompt
    assert '"number"' in prompt
    assert rollout.conversation[-1].content == "right"
    assert rollout.steps[-1].extra["metadata"] == {"luck": "yes"}
    assert (rollout.status, rollout.stop_reason, rollout.env) == (Status.OK, "completed", f"openenv:{url}")


async def test_mistakes_of_the_policy(url):
    """Text that is no action, and an action that violates the schema, cost a turn, and the policy gets an error."""
    replies = ["[1, 2]", '{"number": "many"}', '```json\n{"number": 100}\n```']
    _, [rollout] = await played(f"openenv:{url}", replies, max_turns=3)
    assert [step.metrics["unreadable"] for step in rollout.steps] == [1.0, 1.0, 0.0]
    assert [step.reward for step in rollout.steps] == [0.0, 0.0, -0.25]
    assert "does not fit" in rollout.steps[2].trace.prompt[-1].content
    assert rollout.stop_reason == "max_turns"


async def test_failures_of_the_environment(url):
    """An exception on the server is a failure of the env; the next episode has its own session."""
    _, [failed] = await played(f"openenv:{url}", ['{"number": 13}'])
    assert (failed.status, failed.error.layer) == (Status.ERROR, Layer.ENV)
    assert "unlucky" in failed.error.message
    _, [rollout] = await played(f"openenv:{url}", ["5"] * 2, max_turns=2)
    assert rollout.status is Status.OK


async def test_more_episodes_than_sessions(url, monkeypatch):
    """Episodes wait for a free session: no more are open than configured."""
    connect, close = _Session._connect_and_reset, _Session.close
    sessions, most = set(), []

    async def counted_connect(session, reset):
        sessions.add(session)
        most.append(len(sessions))
        return await connect(session, reset)

    async def counted_close(session):
        sessions.discard(session)
        await close(session)

    monkeypatch.setattr(_Session, "_connect_and_reset", counted_connect)
    monkeypatch.setattr(_Session, "close", counted_close)
    _, rollouts = await played(f"openenv:{url}", ["100"] * 9, episodes=6, sessions=2, max_turns=3)
    assert [rollout.status for rollout in rollouts] == [Status.OK] * 6
    assert max(most) == 2


async def test_a_full_server(monkeypatch):
    """With more sessions than the server has, the error names both numbers."""
    monkeypatch.setattr("rolltrace.envs.openenv._CAPACITY_WAITS", (0.0,))
    with serving(1) as address:
        holder = load_env(f"openenv:{address}").builder(0, episodes=1, seed=0)
        [env] = await holder.make_episode(0)
        await env.initial_observation()
        _, [rollout] = await played(f"openenv:{address}", ["1"], sessions=3)
        await env.close()
    assert "has no free session: let sessions=3 be at most what it serves (1)" in rollout.error.message


def test_environments_keep_the_contract(url):
    """The adapter passes `check_env`, also with cancellation at each await."""
    assert check_env(f"openenv:{url}", args={"sessions": 2}) == []


@pytest.mark.parametrize("spec", ["openenv:ftp://x", "openenv:http://user:secret@127.0.0.1", "openenv:"])
def test_wrong_addresses(spec):
    """A URL that is not a server's address is refused, as is one with a password, which would be recorded."""
    with pytest.raises(InputError, match="Expected openenv:URL"):
        load_env(spec)


def test_no_server_and_no_actions():
    """The error says that there is no server, or that its tools are not actions."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(InputError, match=f"There is no OpenEnv server at http://127.0.0.1:{port}: start it"):
        load_env(f"openenv:127.0.0.1:{port}")
    with serving(1, action=Action) as address, pytest.raises(InputError, match="has tools of MCP"):
        load_env(f"openenv:{address}")
    assert list_members("openenv") == []


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ("4", {"number": 4}),
        ("left", {"number": "left"}),
        ("", None),
    ],
)
def test_actions(text, action):
    """An action is a JSON object, with or without a code fence, or the value of the only field."""
    assert parse_action(text, {"required": ["number"]}) == action
    assert parse_action(text, {"required": []}) == (action if "{" in text else None)


def test_no_audit_finds_anything_in_a_run(tmp_path, url):
    """In a game that scripted guesses win in the end."""
    policy = ScriptedReplies(lambda request: str((request.seed or 0) % 9))
    assert_explained(play_clean(tmp_path / "run", {f"openenv:{url}": {"sessions": 2}}, policy, iterations=2))
