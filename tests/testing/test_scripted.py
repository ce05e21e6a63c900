import asyncio
import pickle

import pytest

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolCall, ToolSpec
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.tokens import Usage


def ask(text="hello there", step=0, **fields):
    return Request(messages=(Message("user", text),), step=step, **fields)


def echo(request):
    return f"you said: {request.messages[-1].content}"


async def test_replies_come_by_step_whatever_the_order():
    """A rollout's step picks the reply, so concurrent rollouts cannot take each other's."""
    policy = ScriptedReplies(["one", "two"])
    replies = await asyncio.gather(*(policy.complete(ask(step=step)) for step in (1, 0, 1, 0)))
    assert [reply.message.content for reply in replies] == ["two", "one", "two", "one"]


async def test_a_function_replies_to_the_request():
    """The function sees the request, and may be async."""

    async def later(request):
        return "later"

    assert (await ScriptedReplies(echo).complete(ask())).message.content == "you said: hello there"
    assert (await ScriptedReplies(later).complete(ask())).message.content == "later"


async def test_every_kind_of_reply():
    """Text and messages become complete completions; a completion stays as it is; an exception is raised."""
    call = Message("assistant", "", tool_calls=(ToolCall("t", '{"a": 1}'),))
    cut = Completion(message=Message("assistant", "a b"), termination=Termination.LENGTH, usage=Usage(7, 8))
    policy = ScriptedReplies(["text", Message("assistant", "m"), call, cut, KeyError("gone")])
    replies = [await policy.complete(ask(step=step)) for step in range(4)]
    assert [reply.message.content for reply in replies] == ["text", "m", "", "a b"]
    assert [reply.termination for reply in replies] == ["eos", "eos", "tool_calls", "length"]
    assert replies[3] is cut
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            await policy.complete(ask(step=4))


async def test_one_text_is_one_reply():
    """A text is one reply, not a sequence of letters."""
    assert (await ScriptedReplies("hello").complete(ask())).message.content == "hello"


async def test_running_out_of_replies_is_a_clear_error():
    """A turn that was not scripted is a failure of the policy, and says so."""
    with pytest.raises(PolicyError, match=r"at most 1 turns.*request for turn 2"):
        await ScriptedReplies(["one"]).complete(ask(step=1))


async def test_a_reply_of_another_type_is_refused():
    """The error names the type of an invalid reply."""
    with pytest.raises(InputError, match="got int"):
        await ScriptedReplies(lambda request: 7).complete(ask())


async def test_tokens_are_counted_by_simple_rules():
    """A message costs its words and four, a tool call its name and words, a tool its words and four."""
    policy = ScriptedReplies(["one two three"])
    assert policy.count_tokens(ask("hello there")) == 6
    call = Message("assistant", "x", tool_calls=(ToolCall("t", "a b"),), reasoning="y z")
    tool = ToolSpec("t", "adds two numbers", FrozenMap.of({}))
    request = Request(messages=(Message("user", ""), call), tools=(tool,))
    assert policy.count_tokens(request) == 4 + (4 + 1 + 2 + 3) + (4 + 3 + 1)
    assert (await policy.complete(ask())).usage == Usage(prompt_tokens=6, completion_tokens=3)


def test_it_is_a_policy_with_settable_identity():
    """Name, version and context length are the caller's, and survive pickling."""
    policy = pickle.loads(pickle.dumps(ScriptedReplies(echo, name="mine", version=3, context_length=50)))
    assert isinstance(policy, Policy)
    assert (policy.name, policy.version, policy.context_length) == ("mine", 3, 50)
    assert ScriptedReplies(["x"]).context_length is None
