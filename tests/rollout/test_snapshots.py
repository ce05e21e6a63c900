"""Recorded prompts are what the policy was sent, whatever the env does to its history, and records grow linearly."""

import asyncio
import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from rolltrace.envs.message_env import MessageEnv, MessageStepResult
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.convert import to_openai
from stage import Meddling, Remembering, Stage, said

TEXTS = st.sampled_from(["", "a", "b", "ok", "ok", "é", "\U0001f600", "Turn."])
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS})
WITH_CALLS = st.builds(
    lambda text, arguments, number: {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": arguments}}],
    },
    TEXTS,
    TEXTS,
    st.integers(0, 3),
)
PLACES = st.integers(0, 30)
MUTATIONS = st.one_of(
    st.tuples(st.just("append"), st.one_of(MESSAGES, WITH_CALLS)),
    st.tuples(st.just("insert"), PLACES, MESSAGES),
    st.tuples(st.just("edit"), PLACES, TEXTS),
    st.tuples(st.just("edit_call"), PLACES, TEXTS),
    st.tuples(st.just("add_call"), PLACES, TEXTS),
    st.tuples(st.just("flag"), PLACES, st.sampled_from([0, 1, True, False, 1.0, None])),
    st.tuples(st.just("drop_call"), PLACES),
    st.tuples(st.just("delete"), PLACES),
    st.tuples(st.just("truncate"), PLACES, PLACES),
    st.tuples(st.just("swap"), PLACES, PLACES),
    st.tuples(st.just("repeat"), PLACES),
    st.tuples(st.just("replace"), st.lists(MESSAGES, max_size=4)),
    st.tuples(st.just("copy")),
)
SEVERAL = st.lists(MUTATIONS, max_size=3)


def mutate(history, mutation):
    """Changes a history in place."""
    kind, *details = mutation
    if kind == "append":
        history.append(copy.deepcopy(details[0]))
    elif kind == "replace":
        history[:] = copy.deepcopy(details[0])
    elif kind == "copy":
        history[:] = copy.deepcopy(history)
    elif not history:
        return
    elif kind == "insert":
        history.insert(details[0] % len(history), copy.deepcopy(details[1]))
    elif kind == "truncate":
        first, last = sorted(place % (len(history) + 1) for place in details)
        del history[first:last]
    elif kind == "swap":
        one, other = (place % len(history) for place in details)
        history[one], history[other] = history[other], history[one]
    else:
        mutate_one(history, kind, details[0] % len(history), details[1:])


def mutate_one(history, kind, place, details):
    """Changes one message of a history in place."""
    message = history[place]
    calls = message.get("tool_calls")
    if kind == "edit":
        message["content"] = details[0]
    elif kind == "edit_call" and calls:
        calls[0]["function"]["arguments"] = details[0]
    elif kind == "add_call" and calls:
        calls.append({"id": "new", "type": "function", "function": {"name": "peek", "arguments": details[0]}})
    elif kind == "drop_call" and calls:
        calls.pop()
        if not calls:
            del message["tool_calls"]
    elif kind == "flag":
        message["flag"] = details[0]
        if details[0] is None:
            del message["flag"]
    elif kind == "delete":
        del history[place]
    elif kind == "repeat":  # the very same dict at two places
        history.insert(place, message)


class MutatingEnv(MessageEnv):
    """Mutates its history by a script, and takes an independent deep copy before each step."""

    def __init__(self, script):
        self.script = script
        self.turn = 0
        self.history = [{"role": "system", "content": "Begin."}, {"role": "user", "content": "ok"}]
        self.copies = []

    async def initial_observation(self):
        self.copies.append(copy.deepcopy(self.history))
        return self.history

    async def step(self, message):
        keeps_response, before, after = self.script[self.turn]
        self.turn += 1
        if keeps_response:
            self.history.append(message)
        self.meddle(before)
        self.copies.append(copy.deepcopy(self.history))
        asyncio.get_running_loop().call_soon(self.meddle, after)  # behind the runner's back, while the policy thinks
        return MessageStepResult(0.0, episode_done=self.turn == len(self.script), next_messages=self.history)

    def meddle(self, mutations):
        for mutation in mutations:
            mutate(self.history, mutation)


@settings(max_examples=examples(300))
@given(script=st.lists(st.tuples(st.booleans(), SEVERAL, SEVERAL), min_size=1, max_size=6))
async def test_any_mutation_sequence(script):
    """Under any sequence of mutations, each recorded prompt equals a deep copy taken before the step."""
    env = MutatingEnv(script)
    policy = Remembering(*(said(text) for text in ("one", "ok", "two", "ok")))
    sink = MemorySink()
    runner = Runner(policy, sink=sink)
    async for _ in runner.play([Stage(lambda _: env)]):
        pass
    [rollout] = sink.rollouts
    assert rollout.error is None
    for step, sent in zip(rollout.steps, env.copies, strict=False):
        assert _chat(step.trace.prompt) == _spelling(sent)
    assert _chat(rollout.conversation) == _spelling(env.copies[-1])
    assert [to_openai(step.trace.policy_response) for step in rollout.steps] == policy.said[rollout.id]
    responses = [step.response for step in rollout.steps]
    following = [*(step.trace.prompt for step in rollout.steps[1:]), rollout.conversation]
    for response, step, prompt in zip(responses, rollout.steps, following, strict=True):
        if not isinstance(response, int):
            assert prompt.count(step.trace.policy_response) <= step.trace.prompt.count(step.trace.policy_response)


def _chat(messages):
    return _spelling([to_openai(message) for message in messages])


def _spelling(messages):
    """Messages as text that tells `1`, `1.0` and `True` apart and ignores the order of keys."""
    return [json.dumps(message, sort_keys=True) for message in messages]


class Growing(MessageEnv):
    """A long conversation in which both sides keep repeating themselves."""

    def __init__(self, turns):
        self.turns = turns
        self.history = [{"role": "user", "content": "Go on."}]

    async def initial_observation(self):
        return self.history

    async def step(self, message):
        self.history += [message, {"role": "user", "content": self.urge()}]
        self.turns -= 1
        return MessageStepResult(0.0, episode_done=self.turns == 0, next_messages=self.history)

    def urge(self):
        return "Go on."


async def line_of(env):
    """The line that playing an env writes, and its rollout."""
    sink = MemorySink()
    async for _ in Runner(Remembering(said("I go on.")), sink=sink).play([Stage(lambda _: env)]):
        pass
    [line], [rollout] = sink.lines, sink.rollouts
    return line.data, rollout


async def test_a_growing_conversation_is_linear():
    """With 500 turns of equal messages, a prompt is one range, each message is stored once, and bytes grow linearly."""
    sizes = {}
    for turns in (125, 250, 500):
        data, rollout = await line_of(Growing(turns))
        assert len(rollout.steps) == turns
        assert [step.prompt for step in rollout.steps] == [((0, 2 * number + 1),) for number in range(turns)]
        assert [step.response for step in rollout.steps] == list(range(1, 2 * turns, 2))
        assert len(rollout.messages) == 2 * turns + 1
        assert rollout.final == ((0, 2 * turns + 1),)
        sizes[turns] = len(data)
    # Each turn adds the same number of bytes, except for the digits of the indexes.
    assert (sizes[500] - sizes[250]) / 250 <= 1.02 * (sizes[250] - sizes[125]) / 125


class Rewriting(Growing):
    """Rewrites its first message every turn, as envs with a turn counter do."""

    async def step(self, message):
        result = await super().step(message)
        self.history[0]["content"] = f"{self.turns} turns are left."
        return result


async def test_an_old_message_rewritten_every_turn_is_linear():
    """One old message that changes every turn adds one range to each prompt, not one per turn."""
    sizes = {}
    for turns in (125, 250, 500):
        data, rollout = await line_of(Rewriting(turns))
        assert max(len(step.prompt) for step in rollout.steps) == 2
        assert all(isinstance(step.response, int) for step in rollout.steps)
        sizes[turns] = len(data)
    assert (sizes[500] - sizes[250]) / 250 <= 1.05 * (sizes[250] - sizes[125]) / 125


class Sliding(Growing):
    """Shows only its first and its last four messages."""

    async def step(self, message):
        result = await super().step(message)
        del self.history[1:-4]
        return result

    def urge(self):
        return f"Go on, {self.turns} times."


async def test_a_sliding_window_is_linear():
    """A window over the history costs two ranges per prompt, and stores nothing twice."""
    _, rollout = await line_of(Sliding(200))
    assert max(len(step.prompt) for step in rollout.steps) == 2
    assert len(rollout.messages) == 401


@pytest.mark.parametrize("meddling", ["append", "edit_response"])
async def test_env_state_is_a_snapshot(meddling):
    """The env's state is recorded as it was when it was returned."""
    env = Meddling(meddling)
    sink = MemorySink()
    async for _ in Runner(Remembering(said("x")), sink=sink).play([Stage(lambda _: env)]):
        pass
    [rollout] = sink.rollouts
    env.state["seen"].clear()
    assert [step.env_state["seen"][-1] for step in rollout.steps] == ["turn 1", "turn 2", "turn 3"]
