"""Conversations with tools: each way a turn can go."""

import asyncio
import itertools
from types import SimpleNamespace

import msgspec
import pytest

from rolltrace.envs.env import Observation, StepResult
from rolltrace.envs.tool_env import MAX_PARALLEL_CALLS, ToolEnv
from rolltrace.envs.tools import Tool, ToolResult
from rolltrace.errors import EnvError, InputError
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message, ToolCall

QUESTION = Message("user", "What now?")


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def fail() -> str:
    """Fail."""
    raise ValueError("broken")


def submit(value: str) -> ToolResult:
    """Hand in the answer."""
    return ToolResult(f"got {value}", stop=True)


async def wait() -> str:
    """Wait without end."""
    await asyncio.Event().wait()
    return "never"


TOOLS = [Tool(add, in_thread=False), Tool(fail, in_thread=False), Tool(submit, in_thread=False), wait]


def say(text="", *calls):
    return Completion(message=Message("assistant", text, tool_calls=calls))


def adding(first, second=1, call_id="a"):
    return ToolCall("add", f'{{"first": {first}, "second": {second}}}', call_id)


async def start(**settings):
    env = ToolEnv([QUESTION], TOOLS, **settings)
    await env.initial_observation()
    return env


def contents(result):
    return [message.content for message in result.observation.messages]


async def test_the_first_observation_offers_the_tools():
    """The policy is shown the frozen messages, and each tool's spec."""
    env = ToolEnv([{"role": "system", "content": "Help."}, QUESTION], TOOLS)
    observation = await env.initial_observation()
    assert observation.messages == (Message("system", "Help."), QUESTION)
    assert [spec.name for spec in observation.tools] == ["add", "fail", "submit", "wait"]
    assert not observation.replaces_history


async def test_a_turn_with_tools_goes_on(monkeypatch):
    """Each call is answered in its own message, with the call's id and name; the numbers are recorded."""
    readings = itertools.count()  # each call of a tool reads the clock twice
    monkeypatch.setattr("rolltrace.envs.tools.time", SimpleNamespace(perf_counter=lambda: float(next(readings))))
    env = await start()
    result = await env.step(say("Let me see.", adding(1, call_id="x"), adding(2, call_id="y")))
    assert (result.reward, result.done, result.stop_reason) == (0.0, False, None)
    assert result.observation.messages == (
        Message("tool", "2", tool_call_id="x", name="add"),
        Message("tool", "3", tool_call_id="y", name="add"),
    )
    assert [spec.name for spec in result.observation.tools] == ["add", "fail", "submit", "wait"]
    records = result.extra["tool_calls"]
    assert [(r["id"], r["name"], r["error"]) for r in records] == [("x", "add", None), ("y", "add", None)]
    assert [record["seconds"] for record in records] == [1.0, 1.0]
    assert all(set(record) == {"id", "name", "error", "seconds"} for record in records)
    assert result.metrics == {"tool_calls": 2, "tool_errors": 0}
    assert result.env_state == {"turns": 1, "tool_calls": 2}
    assert result.logs == {}


async def test_a_turn_without_tools_is_the_final_answer():
    """The final answer ends the episode, scored by the check."""
    env = ToolEnv([QUESTION], TOOLS, check=lambda text: 0.25 if text == "four" else 0.0)
    await env.initial_observation()
    await env.step(say("", adding(3)))
    result = await env.step(say("four"))
    assert (result.reward, result.done, result.stop_reason, result.observation) == (0.25, True, None, None)
    assert result.env_state == {"turns": 2, "tool_calls": 1}
    assert result.metrics == {"tool_calls": 0, "tool_errors": 0}


async def test_without_a_check_the_final_answer_is_worth_nothing():
    """Without a check the reward is 0, and scoring is left to a grader."""
    env = await start()
    assert (await env.step(say("four"))).reward == 0.0


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("call", "error", "content"),
    [
        (ToolCall("ad", "{}", "b"), "unknown_tool", "Error: There is no tool 'ad'. Did you mean 'add'? Known: add, "),
        (ToolCall("add", '{"first": 1}', "b"), "bad_arguments", "Error: the arguments do not fit add: "),
        (ToolCall("fail", "{}", "b"), "raised", "Error: ValueError: broken"),
        (ToolCall("wait", "{}", "b"), "timed_out", "Error: wait took longer than 0.01 seconds"),
        (ToolCall("add", "{oops", "b"), "unparsable", "Error: this call could not be read. Expected the arguments"),
        (ToolCall("", "<raw>", "b", error="no tag"), "unparsable", "Error: this call could not be read. no tag"),
    ],
)
async def test_a_failed_call_is_answered_and_play_goes_on(call, error, content, parallel):
    """Whatever is wrong with one call, its answer says so, the other calls run, and the reward is unchanged."""
    env = await start(parallel=parallel, tool_seconds=0.01)
    result = await env.step(say("", adding(1), call, adding(2, call_id="c")))
    assert (result.reward, result.done, result.stop_reason) == (0.0, False, None)
    assert [message.tool_call_id for message in result.observation.messages] == ["a", "b", "c"]
    first, second, third = contents(result)
    assert (first, third) == ("2", "3")
    assert second.startswith(content)
    assert [record["error"] for record in result.extra["tool_calls"]] == [None, error, None]
    assert result.metrics == {"tool_calls": 3, "tool_errors": 1}
    assert result.env_state["tool_calls"] == (2 if error == "unparsable" else 3)


@pytest.mark.parametrize("arguments", ["", "null", " ", "\n null "])
async def test_a_call_without_arguments_is_run(arguments):
    """Empty, blank and null mean no arguments; a tool that needs some says which."""
    env = await start()
    result = await env.step(say("", ToolCall("fail", arguments, "a"), ToolCall("add", arguments, "b")))
    assert [call["error"] for call in result.extra["tool_calls"]] == ["raised", "bad_arguments"]
    assert "missing required field `first`" in contents(result)[1]


async def test_the_traceback_is_logged():
    """The traceback of a tool is logged for debugging."""
    env = await start()
    result = await env.step(say("", ToolCall("fail", "{}", "f")))
    (entry,) = result.logs["tools"]
    assert (entry["id"], entry["name"]) == ("f", "fail")
    assert "ValueError: broken" in entry["log"]


async def test_calls_without_an_id_are_answered_in_place():
    """A call without an id is answered without one, in its place."""
    env = await start()
    result = await env.step(say("", ToolCall("add", '{"first": 1, "second": 1}'), ToolCall("", "x", error="bad")))
    first, second = result.observation.messages
    assert first == Message("tool", "2", name="add")
    assert (second.tool_call_id, second.name) == (None, None)


async def test_the_turn_cap_runs_the_last_tools():
    """The last allowed turn still runs its tools, then the episode ends."""
    env = await start(max_turns=2)
    assert not (await env.step(say("", adding(1)))).done
    result = await env.step(say("", adding(2)))
    assert (result.done, result.stop_reason, contents(result)) == (True, "max_turns", ["3"])


async def test_a_final_answer_in_the_last_turn_is_complete():
    """A final answer in the last turn completes the episode; it does not end by the cap."""
    env = await start(max_turns=1)
    result = await env.step(say("four"))
    assert (result.done, result.stop_reason) == (True, None)


@pytest.mark.parametrize("parallel", [True, False])
async def test_the_tool_call_cap_runs_the_allowed_prefix(parallel):
    """Calls up to the cap run; the rest is dropped, logged and ends the episode."""
    env = await start(max_tool_calls=3, parallel=parallel)
    assert not (await env.step(say("", adding(1), adding(2)))).done
    result = await env.step(say("", adding(3, call_id="c"), adding(4, call_id="d"), ToolCall("fail", "{}", "e")))
    assert (result.done, result.stop_reason, contents(result)) == (True, "max_tool_calls", ["4"])
    assert result.logs["dropped_tool_calls"] == [{"id": "d", "name": "add"}, {"id": "e", "name": "fail"}]
    assert [record["id"] for record in result.extra["tool_calls"]] == ["c"]
    assert result.env_state["tool_calls"] == 3


async def test_the_tool_call_cap_alone_does_not_end_the_episode():
    """A policy that has used up its calls may still answer; another call ends the episode."""
    env = await start(max_tool_calls=1)
    assert not (await env.step(say("", adding(1)))).done
    result = await env.step(say("four"))
    assert (result.done, result.stop_reason) == (True, None)

    env = await start(max_tool_calls=0)
    result = await env.step(say("", adding(1)))
    assert (result.done, result.stop_reason, contents(result)) == (True, "max_tool_calls", [])


async def test_unreadable_calls_use_up_nothing():
    """Calls that cannot be parsed do not count against the cap."""
    env = await start(max_tool_calls=1)
    result = await env.step(say("", ToolCall("add", "{", "x"), adding(1)))
    assert (result.done, len(contents(result)), result.env_state["tool_calls"]) == (False, 2, 1)


async def test_a_tool_stops_the_episode():
    """A tool that says stop ends the episode, before any cap is named."""
    env = await start(max_turns=1)
    result = await env.step(say("", ToolCall("submit", '{"value": "42"}', "s"), adding(1)))
    assert (result.done, result.stop_reason, contents(result)) == (True, "tool_stopped", ["got 42", "2"])


async def test_in_order_nothing_runs_after_a_stop():
    """In sequential mode, the calls after the one that ended the episode are dropped and logged."""
    env = await start(parallel=False)
    result = await env.step(say("", ToolCall("submit", '{"value": "42"}', "s"), adding(1)))
    assert (result.stop_reason, contents(result)) == ("tool_stopped", ["got 42"])
    assert result.logs["dropped_tool_calls"] == [{"id": "a", "name": "add"}]
    assert result.env_state["tool_calls"] == 1


def _meeting():
    """Two tools that end only when both have started."""
    gate = asyncio.Event()
    order = []

    async def first() -> str:
        """Wait for the other."""
        order.append("first")
        await gate.wait()
        return "one"

    async def second() -> str:
        """Let the other go."""
        order.append("second")
        gate.set()
        return "two"

    return first, second, order


async def test_parallel_calls_run_together_and_answer_in_order():
    """A call may wait for a later one; the answers still come in the order of the calls."""
    first, second, _ = _meeting()
    env = ToolEnv([QUESTION], [first, second])
    await env.initial_observation()
    assert contents(await env.step(say("", ToolCall("first"), ToolCall("second")))) == ["one", "two"]


async def test_calls_in_order_wait_for_each_other():
    """In sequential mode, a call starts when the one before has ended."""
    first, second, order = _meeting()
    env = ToolEnv([QUESTION], [first, second], parallel=False, tool_seconds=0.01)
    await env.initial_observation()
    result = await env.step(say("", ToolCall("first"), ToolCall("second")))
    assert [record["error"] for record in result.extra["tool_calls"]] == ["timed_out", None]
    assert order == ["first", "second"]


async def test_parallel_calls_are_bounded():
    """However many calls a policy makes in one turn, only a bounded number runs at once."""
    running = peak = 0

    async def count() -> str:
        """Count."""
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return "ok"

    env = ToolEnv([QUESTION], [count])
    await env.initial_observation()
    result = await env.step(say("", *[ToolCall("count")] * 200))
    assert contents(result) == ["ok"] * 200
    assert peak == MAX_PARALLEL_CALLS


@pytest.mark.parametrize("parallel", [True, False])
async def test_cancellation_leaves_nothing_running(parallel):
    """A cancelled step raises, and all of its tools have ended by then."""
    started, ended = [], []
    both = asyncio.Event()

    async def hold(name: str) -> str:
        """Hold."""
        started.append(name)
        if len(started) == (2 if parallel else 1):
            both.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)
        return "never"

    env = ToolEnv([QUESTION], [hold], parallel=parallel)
    await env.initial_observation()
    calls = [ToolCall("hold", '{"name": "x"}'), ToolCall("hold", '{"name": "y"}')]
    task = asyncio.create_task(env.step(say("", *calls)))
    await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == sorted(started)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_interrupt_in_a_tool_ends_its_siblings():
    """A BaseException propagates, and no other call is left running."""

    class Interruption(BaseException):
        pass

    async def interrupt() -> str:
        """Interrupt."""
        raise Interruption

    env = ToolEnv([QUESTION], [interrupt, Tool(add, in_thread=False)])
    await env.initial_observation()
    with pytest.raises(BaseExceptionGroup):
        await env.step(say("", adding(1), ToolCall("interrupt")))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_observe_counts_the_policys_own_messages():
    """Injected messages come back with the tools; the policy's own use up turns, others do not."""
    env = await start(max_turns=3)
    hint = Message("user", "Call a tool.")
    broken = Message("assistant", "", tool_calls=(ToolCall("", "<", error="no tag"),))
    assert (await env.observe([hint])).messages == (hint,)
    observation = await env.observe([broken, hint])
    assert observation.messages == (broken, hint)
    assert [spec.name for spec in observation.tools] == ["add", "fail", "submit", "wait"]
    result = await env.step(say("", adding(1)))
    assert result.env_state == {"turns": 2, "tool_calls": 1}
    assert await env.observe([broken, hint]) is None
    result = await env.step(say("", adding(1)))
    assert (result.done, result.stop_reason) == (True, "max_turns")


async def test_observe_without_a_cap_always_goes_on():
    """Without a turn cap there is always a turn left."""
    env = await start()
    for _ in range(50):
        assert await env.observe([Message("assistant", "hm")]) is not None


async def test_misuse_is_an_env_error():
    """An env is single use and has an order of calls; misuse is an EnvError."""
    env = ToolEnv([QUESTION], TOOLS)
    with pytest.raises(EnvError, match=r"step\(\) was called before initial_observation"):
        await env.step(say("four"))
    with pytest.raises(EnvError, match=r"observe\(\) was called before initial_observation"):
        await env.observe([QUESTION])
    await env.initial_observation()
    with pytest.raises(EnvError, match="called twice"):
        await env.initial_observation()
    assert (await env.step(say("four"))).done
    with pytest.raises(EnvError, match=r"step\(\) was called after the episode was done"):
        await env.step(say("five"))
    with pytest.raises(EnvError, match=r"observe\(\) was called after"):
        await env.observe([QUESTION])
    await env.close()
    await env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"messages": []}, "at least one message"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_tool_calls": -1}, "max_tool_calls"),
        ({"tool_seconds": 0}, "tool_seconds"),
        ({"tool_seconds": float("nan")}, "tool_seconds"),
        ({"tools": [add, add]}, "two named 'add'"),
    ],
)
def test_wrong_settings(settings, message):
    """The error names a wrong setting when the env is made."""
    with pytest.raises(InputError, match=message):
        ToolEnv(**{"messages": [QUESTION], "tools": TOOLS, **settings})


async def test_nothing_it_was_given_or_gave_can_change_it():
    """Changes of the caller's lists and dicts affect neither the prompt nor the tools."""
    chat = {"role": "user", "content": "before", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    messages, tools = [chat], list(TOOLS)
    env = ToolEnv(messages, tools)
    chat["content"] = "after"
    chat["tool_calls"][0]["function"]["arguments"]["a"] = 2
    messages.append(chat)
    tools.clear()
    observation = await env.initial_observation()
    (message,) = observation.messages
    assert (message.content, message.tool_calls[0].arguments) == ("before", '{"a":1}')
    put_in = [QUESTION]
    observed = await env.observe(put_in)
    put_in.clear()
    assert observed.messages == (QUESTION,)
    observation.tools[0].parameters.to_dict()["properties"].clear()
    assert "first" in (await env.step(say("", adding(1)))).observation.tools[0].parameters["properties"]


async def test_what_the_messages_lost_is_logged_once():
    """A message that cannot be recorded as it is leaves a note in the first step's logs."""
    env = ToolEnv([{"role": "user", "content": "half a pair: \ud800"}], TOOLS)
    await env.initial_observation()
    (note,) = (await env.step(say("", adding(1)))).logs["notes"]
    assert note.startswith("messages[0]")
    assert "notes" not in (await env.step(say("four"))).logs


class Guess(ToolEnv):
    """Continues until the answer is right; half a point for a turn that used a tool without error."""

    async def final(self, completion):
        if completion.message.content == "four":
            return StepResult(1.0, done=True, extra={"answer": "four"}, env_state={"solved": True})
        return StepResult(-0.5, done=False, observation=Observation([Message("user", "No.")]))

    async def after_tools(self, completion, outcomes, stop_reason):
        used = sum(outcome.error is None for outcome in outcomes)
        enough = used > 1
        return StepResult(
            used / 2,
            done=enough,
            stop_reason="enough" if enough else None,
            reward_data={"used": used},
            extra={"stop": stop_reason},
            metrics={"own": 1},
            logs={"own": "log"},
        )


async def test_subclasses_score_and_go_on():
    """A hook's reward, data and text are kept beside the env's own, and a rejected answer continues play."""
    env = Guess([QUESTION], TOOLS, max_turns=4)
    await env.initial_observation()
    refused = await env.step(say("five"))
    assert (refused.reward, refused.done, contents(refused)) == (-0.5, False, ["No."])
    assert [spec.name for spec in refused.observation.tools] == ["add", "fail", "submit", "wait"]
    used = await env.step(say("", adding(1)))
    assert (used.reward, used.reward_data, used.metrics["own"], used.logs) == (0.5, {"used": 1}, 1, {"own": "log"})
    assert used.extra["stop"] is None
    assert used.extra["tool_calls"][0]["name"] == "add"
    right = await env.step(say("four"))
    assert (right.reward, right.done, right.extra) == (1.0, True, {"answer": "four"})
    assert right.env_state == {"turns": 3, "tool_calls": 1, "solved": True}


async def test_subclasses_may_end_the_episode_after_tools():
    """A hook can end the episode with its own reason; the env's own reason takes precedence."""
    env = Guess([QUESTION], TOOLS)
    await env.initial_observation()
    result = await env.step(say("", adding(1), adding(2)))
    assert (result.done, result.stop_reason) == (True, "enough")

    env = Guess([QUESTION], TOOLS, max_turns=1)
    await env.initial_observation()
    result = await env.step(say("", adding(1), adding(2)))
    assert (result.done, result.stop_reason, result.extra["stop"]) == (True, "max_turns", "max_turns")


async def test_a_refused_answer_in_the_last_turn_ends_the_episode():
    """The turn cap also holds for answers that a hook rejects."""
    env = Guess([QUESTION], TOOLS, max_turns=1)
    await env.initial_observation()
    result = await env.step(say("five"))
    assert (result.reward, result.done, result.stop_reason) == (-0.5, True, "max_turns")


async def test_a_hook_that_goes_on_without_an_observation_is_an_error():
    """The error names a subclass that breaks the contract."""

    class Broken(ToolEnv):
        async def final(self, completion):
            return StepResult(0.0, done=False)

    env = Broken([QUESTION], TOOLS)
    await env.initial_observation()
    with pytest.raises(EnvError, match=r"Broken\.final"):
        await env.step(say("five"))


async def test_a_huge_unknown_name_is_answered_shortly():
    """A hostile name costs neither time nor context."""
    env = await start()
    result = await env.step(say("", ToolCall("x" * 1_000_000)))
    assert len(contents(result)[0]) < 300


async def test_results_are_json():
    """Recorded results are plain JSON."""
    env = await start(max_tool_calls=2)
    result = await env.step(say("", adding(1), ToolCall("fail", "{}"), adding(2)))
    for values in (result.extra, result.env_state, result.metrics, result.logs):
        assert msgspec.json.decode(msgspec.json.encode(values)) == values
