"""The built-in family `verifiers:NAME`: tasksets that are played in this process."""

import contextlib
import inspect
import json
import os
import pickle
import sys
from types import ModuleType

import pytest

import rolltrace
from rolltrace.envs.registry import list_members, load_env
from rolltrace.envs.verifiers import VerifiersTasks
from rolltrace.errors import InputError
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from seeded_runs import play_clean
from unexplained_findings import assert_explained

pytest.importorskip("verifiers.v1")

import verifiers.v1 as vf

import vf_shop
import vf_sums

pytestmark = [pytest.mark.core, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what verifiers uses


def put(call_id="c1", name="shop_put", **arguments):
    return ToolCall(name, json.dumps(arguments), id=call_id)


def calling(*calls):
    return Message("assistant", "", tool_calls=calls)


async def played(spec, replies, *, number=0, episodes=1, **args):
    builder = load_env(spec, args).builder(number, episodes=episodes, seed=0)
    runner = rolltrace.Runner(ScriptedReplies(replies), sink=(sink := rolltrace.MemorySink("run")))
    async with contextlib.aclosing(runner.play([builder])) as results:
        async for _ in results:
            pass
    return sorted(sink.rollouts, key=lambda rollout: rollout.index)


async def test_tools_state_and_runtime():
    """Tools run in this process on the task's state, hooks have a working directory, and rewards are weighted."""
    replies = [calling(put("c0", "now"), put(thing="apples", count=2), put("c2", thing="pears")), "Done."]
    [rollout] = await played("verifiers:vf-shop", replies)
    first, second = rollout.steps
    assert [tool.name for tool in rollout.tools[first.tools]] == ["now", "shop_put"]
    assert rollout.tools[0][1].parameters.to_dict()["required"] == ["thing"]
    assert [(m.role, m.content, m.tool_call_id) for m in second.trace.prompt[-3:]] == [
        ("tool", "noon", "c0"),
        ("tool", "2 in the basket, for apples", "c1"),
        ("tool", "3 in the basket, for apples", "c2"),
    ]
    assert first.env_state["basket"] == ["apples", "apples", "pears"]
    assert (rollout.reward, second.reward_data) == (5.0, {"bought": 2.0, "on_list": 1.0})
    assert second.extra["reward_weights"] == {"bought": 2.0, "on_list": 1.0}
    assert second.metrics["things"] == 3.0
    assert (rollout.task, rollout.task_data["wanted"], rollout.status) == ("buy-apples", "apples", Status.OK)
    assert second.extra["info"] == {"files": ["list.txt"]}


async def test_calls_that_fail():
    """A failing tool, an unknown tool and unreadable arguments are answered to the policy."""
    calls = (put("a", thing="stone"), put("b", "shop_steal"), ToolCall("shop_put", "{", id="c"), put("d", thing=[1]))
    [rollout] = await played("verifiers:vf-shop", [calling(*calls), "Done."])
    texts = [message.content for message in rollout.steps[1].trace.prompt[-4:]]
    assert all(text.startswith("Error:") for text in texts)
    assert "no stones here" in texts[0]
    assert "Did you mean 'shop_put'?" in texts[1]
    assert (rollout.status, rollout.reward) == (Status.OK, 1.0)


async def test_the_last_turn_is_scored():
    """At `max_turns` the tools' results are recorded, and the trace is scored."""
    [rollout] = await played("verifiers:vf-shop", [calling(put(thing="pears"))] * 9, number=1, max_turns=2)
    assert (rollout.stop_reason, len(rollout.steps), rollout.reward) == ("max_turns", 2, 5.0)
    assert rollout.conversation[-1].role == "tool"


async def test_a_truncated_answer_is_scored():
    """As in verifiers, a truncated answer is scored; its calls are not run."""
    cut = rolltrace.Completion(message=calling(put(thing="apples")), termination=Termination.LENGTH)
    [rollout] = await played("verifiers:vf-shop", [cut])
    assert (rollout.stop_reason, rollout.reward, len(rollout.steps)) == ("max_tokens", 1.0, 1)


async def test_a_stop_of_the_task():
    """A `@stop` of the task ends the rollout with its name as the stop reason."""
    [rollout] = await played("verifiers:vf-sums", ["I give up."])
    assert rollout.stop_reason == "gave_up"


async def test_a_score_that_fails():
    """A failing score is a failure of the env, which scores itself."""
    [rollout] = await played("verifiers:vf-sums", ["4"], task={"scoring_fails": True})
    assert (rollout.status, rollout.error.layer) == (Status.ERROR, Layer.ENV)
    assert "no score" in rollout.error.message


async def test_episodes_do_not_share_a_state():
    """Each episode has its own state and working directory."""
    replies = [calling(put(thing="apples")), "Done."]
    rollouts = await played("verifiers:vf-shop", replies, episodes=3)
    assert [rollout.reward for rollout in rollouts] == [3.0] * 3
    workdirs = vf_shop.WORKDIRS[-3:]
    assert len(set(workdirs)) == 3
    assert not any(map(os.path.exists, workdirs))


@pytest.mark.parametrize("name", ["verifiers:vf-shop", "verifiers:vf-sums"])
def test_tasksets_keep_the_contract(name):
    """The adapter passes `check_env`, also with cancellation at each await."""
    assert check_env(name) == []


def test_arguments_are_those_of_the_taskset():
    """Arguments may be JSON text, and the builder pickles with them."""
    tasks = load_env("verifiers:vf-shop", {"wanted": '["figs"]', "max_turns": "3"})
    builder = pickle.loads(pickle.dumps(tasks.builder(0, episodes=1, seed=0)))
    assert (tasks.count, builder.task, builder.env_args) == (1, "buy-figs", {"wanted": ["figs"], "max_turns": 3})


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("vf-nothing", {}, "There is no taskset 'vf-nothing': install the package that has it"),
        ("vf-shop", {"image": "python:3"}, "verifiers:vf-shop needs a container, which is not supported: play it with"),
        ("vf-shop", {"prompt": "null"}, "without a prompt"),
        ("vf-shop", {"skills": "true"}, "has skills"),
        ("vf-shop", {"wantd": "x"}, "could not be loaded: ValidationError"),
        ("vf-shop", {"wanted": "[]"}, "has 0 tasks"),
        ("vf-shop", {"max_turns": "0"}, "max_turns of at least 1"),
        ("openenv", {}, "has an environment of its own, OpenEnvEnv"),
    ],
)
def test_what_cannot_be_played_is_refused(name, args, message):
    """One sentence says why, when the environment is loaded."""
    with pytest.raises(InputError) as caught:
        load_env(f"verifiers:{name}", args)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_taskset_needs_is_named(tmp_path, monkeypatch):
    """A taskset that imports a missing package is told apart from a missing taskset."""
    (tmp_path / "vf_needy.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        InputError, match="verifiers:vf-needy needs the package no_such_package, which is not installed"
    ):
        load_env("verifiers:vf-needy")


def test_intercepting_tasks_are_refused(monkeypatch):
    """Hooks on requests and responses belong to verifiers' own server."""

    class Intercepting(vf_sums.SumsTask):
        @vf.intercept
        async def rewrite(self, request: vf.Request) -> None:
            return None

    class Taskset(vf.Taskset[Intercepting, vf_sums.SumsConfig]):
        def load(self):
            yield Intercepting(vf_sums.SumsData(prompt="?"), self.config.task)

    module = ModuleType("vf_intercepting")
    module.__all__, module.Taskset = ["Taskset"], Taskset
    monkeypatch.setitem(sys.modules, "vf_intercepting", module)
    module.__spec__ = sys.modules["vf_sums"].__spec__
    with pytest.raises(InputError, match="intercepts requests or responses"):
        load_env("verifiers:vf-intercepting")


async def test_tools_elsewhere_are_refused():
    """A tool server that runs elsewhere is not started: the rollout fails with one sentence."""
    [rollout] = await played("verifiers:vf-shop", ["Done."], task={"tools": {"url": "http://127.0.0.1:9/mcp"}})
    assert "has tools that run in a container or on a server" in rollout.error.message


def test_there_is_no_list():
    """Tasksets are packages of any name, so they are not listed."""
    assert list_members("verifiers") == VerifiersTasks.names() == []


def test_what_is_used_of_tool_servers():
    """The private parts of verifiers' tool servers that the adapter replaces are as in version 0.4."""
    tools = vf_shop.ShopTools(vf_shop.ShopToolsConfig())
    assert list(inspect.signature(tools._pull_state).parameters) == []
    assert list(inspect.signature(tools._push_state).parameters) == ["before"]
    assert isinstance(tools._exit_stack, contextlib.AsyncExitStack)
    assert tools.server_name == "shop"


def test_no_audit_finds_anything_in_a_run(tmp_path):
    """With tools, whose results answer their calls; there are few tasks, so groups are many tries of the same."""

    def reply(request):
        if request.step:
            return "Done."
        return calling(put(thing=("apples", "pears")[(request.seed or 0) % 2], count=1 + (request.seed or 0) % 3))

    assert_explained(play_clean(tmp_path / "run", {"verifiers:vf-shop": {}}, ScriptedReplies(reply), groups=2))
