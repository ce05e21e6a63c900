import asyncio
import pickle

import msgspec
import pytest

from rolltrace.errors import ContextOverflowError, InputError, PolicyError, UnknownNameError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.testing.faults import DEEP, FAULT_KINDS, HUGE, FaultyPolicy, UnprintableError
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.rollout import Identity
from rolltrace.trace.stop_reasons import Termination

TOOL = ToolSpec("calculator", "calculates", FrozenMap.of({"type": "object", "properties": {"expression": {}}}))


def ask(step=0, seed=0, tools=(), attempt=None):
    identity = None if attempt is None else Identity("i", "r", "s", "train", 0, "e", "t", "g", 0, attempt)
    return Request(messages=(Message("user", "What is 1 + 2?"),), step=step, seed=seed, tools=tools, identity=identity)


def is_json(text):
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


async def test_length_cuts_the_answer():
    """A truncated reply is the beginning of the proper one."""
    reply = await FaultyPolicy("length").complete(ask())
    proper = await NoisyPolicy().complete(ask())
    assert reply.termination is Termination.LENGTH
    assert proper.message.content.startswith(reply.message.content)
    assert len(reply.message.content) < len(proper.message.content)


async def test_malformed_says_so():
    """Broken framing has a termination, a parse error and the raw text."""
    reply = await FaultyPolicy("malformed").complete(ask())
    assert reply.termination is Termination.MALFORMED
    assert reply.parse_error
    assert reply.raw


@pytest.mark.parametrize(
    ("kind", "error"),
    [("raise", PolicyError), ("overflow", ContextOverflowError), ("raise_unprintable", UnprintableError)],
)
async def test_errors_are_raised(kind, error):
    """Three kinds of error, one of which cannot be printed."""
    with pytest.raises(error) as caught:
        await FaultyPolicy(kind).complete(ask())
    if kind == "raise_unprintable":
        with pytest.raises(RuntimeError):
            str(caught.value)
    else:
        assert str(caught.value)


async def test_hang_waits_until_it_is_cancelled():
    """A policy that never answers can be cancelled, and leaves nothing running."""
    task = asyncio.create_task(FaultyPolicy("hang").complete(ask()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("tools", [(), (TOOL,)])
async def test_tool_calls_that_cannot_be_parsed(tools):
    """Alone or beside a valid one, the broken call is marked as broken and keeps its text."""
    [broken] = (await FaultyPolicy("bad_tool_json").complete(ask(tools=tools))).message.tool_calls
    assert broken.error
    assert not is_json(broken.arguments)
    reply = await FaultyPolicy("mixed_tool_calls").complete(ask(tools=tools))
    valid, broken = reply.message.tool_calls
    assert (valid.error, valid.name, is_json(valid.arguments)) == (None, "calculator", True)
    assert broken.error
    assert valid.id != broken.id
    assert reply.parse_error
    assert reply.termination is Termination.TOOL_CALLS


async def test_tool_calls_that_cannot_be_run():
    """Unknown tools and wrong arguments are well-formed calls; deeply nested ones are JSON that may be refused."""
    [unknown] = (await FaultyPolicy("unknown_tool").complete(ask(tools=(TOOL,)))).message.tool_calls
    [misfit] = (await FaultyPolicy("bad_arguments").complete(ask(tools=(TOOL,)))).message.tool_calls
    [deep] = (await FaultyPolicy("deep_arguments").complete(ask(tools=(TOOL,)))).message.tool_calls
    assert unknown.name != TOOL.name
    assert (misfit.name, "expression" in msgspec.json.decode(misfit.arguments)) == (TOOL.name, False)
    assert deep.arguments.count("[") == DEEP
    assert unknown.error is misfit.error is deep.error is None


async def test_hostile_text():
    """Empty text, huge text, half a character, and characters that harm terminals and pages."""
    texts = {
        kind: (await FaultyPolicy(kind).complete(ask())).message.content
        for kind in ("empty", "huge", "surrogate", "nonsense")
    }
    assert texts["empty"] == ""
    assert len(texts["huge"]) == HUGE
    with pytest.raises(UnicodeEncodeError):
        texts["surrogate"].encode()
    assert not texts["nonsense"].isprintable()


async def test_not_a_completion():
    """A policy may return anything at all."""
    assert not isinstance(await FaultyPolicy("not_a_completion").complete(ask()), Completion)
    assert isinstance(await FaultyPolicy("not_a_completion", at=1).complete(ask()), Completion)


@pytest.mark.parametrize("kind", FAULT_KINDS)
async def test_every_kind_strikes_only_at_its_turn(kind):
    """Before, after, and in later attempts, the policy plays like the noisy one; it is a policy, and pickles."""
    policy = pickle.loads(pickle.dumps(FaultyPolicy(kind, at=2, times=2, attempts=1)))
    assert isinstance(policy, Policy)
    assert [step for step in range(6) if policy.is_due(ask(step))] == [2, 3]
    assert [attempt for attempt in range(3) if policy.is_due(ask(2, attempt=attempt))] == [0]
    proper = NoisyPolicy()
    for request in (ask(0), ask(1), ask(4), ask(2, attempt=1)):
        assert await policy.complete(request) == await proper.complete(request)


def test_a_fraction_is_drawn_from_the_seed():
    """The same rollouts fail in every run, about as many as asked for."""
    policy = FaultyPolicy("empty", fraction=0.3)
    struck = [seed for seed in range(1000) if policy.is_due(ask(seed=seed))]
    assert 250 < len(struck) < 350
    assert struck == [seed for seed in range(1000) if FaultyPolicy("raise", fraction=0.3).is_due(ask(seed=seed))]
    assert not any(FaultyPolicy("empty", fraction=0).is_due(ask(seed=seed)) for seed in range(100))


def test_wrong_settings_are_refused():
    """An unknown kind is refused with the nearest, and a fraction outside 0 to 1 is refused."""
    with pytest.raises(UnknownNameError, match=r"no kind of fault 'lenght'\. Did you mean 'length'\?"):
        FaultyPolicy("lenght")
    with pytest.raises(InputError, match="fraction from 0 to 1"):
        FaultyPolicy("empty", fraction=2)
