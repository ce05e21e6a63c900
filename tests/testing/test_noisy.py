import asyncio
import pickle
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import InputError
from rolltrace.policies.policy import Policy, Request
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolCall, ToolSpec

CALCULATOR = ToolSpec("calculator", "calculates", FrozenMap.of({"type": "object", "properties": {"formula": {}}}))
QUESTION = Message("user", "What is 12 + 7 * 3?\nFinish with a line `Answer: NUMBER`.")


def ask(seed=0, messages=(QUESTION,), tools=(), step=0):
    return Request(messages=messages, tools=tools, seed=seed, step=step)


def say(policy, request):
    return asyncio.run(policy.complete(request)).message


def test_it_answers_the_prompt_well_formed():
    """It shows some work and ends with an answer line; with correct=1 the answer is right."""
    for seed in range(20):
        text = say(NoisyPolicy(1.0), ask(seed)).content
        assert text.splitlines()[-1] == "Answer: 33"
        assert "12 + 7 * 3 = 33" in text


def test_wrong_answers_are_other_numbers():
    """With correct=0 every answer is a number, and none is right."""
    answers = {say(NoisyPolicy(0.0), ask(seed)).content.splitlines()[-1] for seed in range(50)}
    assert "Answer: 33" not in answers
    assert len(answers) > 3
    assert all(int(answer.removeprefix("Answer: ")) != 33 for answer in answers)


def test_the_fraction_of_right_answers_is_as_configured():
    """With correct=0.7, seven of ten answers are right; the seeds are fixed, so this cannot fail by chance."""
    right = sum(say(NoisyPolicy(0.7), ask(seed)).content.endswith("Answer: 33") for seed in range(1000))
    assert 650 < right < 750


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_same_seed_gives_the_same_reply_in_any_order(seeds, order):
    """The reply depends on the request only, whatever was asked before."""
    policy = NoisyPolicy()
    first = {seed: say(policy, ask(seed)) for seed in seeds}
    shuffled = list(seeds)
    order.shuffle(shuffled)
    assert all(say(policy, ask(seed)) == first[seed] for seed in shuffled)


def test_the_global_rng_is_neither_used_nor_changed():
    """The program's own random state is unchanged."""
    random.seed(5)
    before = random.getstate()
    say(NoisyPolicy(), ask(3))
    say(NoisyPolicy(), ask(None))
    assert random.getstate() == before


def test_without_a_seed_it_is_still_deterministic():
    """A request without a seed gets the same reply every time."""
    assert say(NoisyPolicy(), ask(None)) == say(NoisyPolicy(), ask(None))


def test_it_calls_the_calculator_and_then_answers_with_its_result():
    """If a calculator is offered it is called first, with its argument's own name."""
    message = say(NoisyPolicy(1.0), ask(tools=(CALCULATOR,)))
    [call] = message.tool_calls
    assert call.name == "calculator"
    assert msgspec.json.decode(call.arguments) == {"formula": "12 + 7 * 3"}
    messages = (QUESTION, message, Message("tool", "99", tool_call_id=call.id))
    assert say(NoisyPolicy(1.0), ask(messages=messages, tools=(CALCULATOR,), step=1)).content.endswith("Answer: 99")


def test_a_tool_that_fails_does_not_stop_it():
    """After an error of the tool it answers by itself rather than call again and again."""
    call = Message("assistant", "", tool_calls=(ToolCall("calculator", "{}"),))
    messages = (QUESTION, call, Message("tool", "Error at character 5"))
    assert say(NoisyPolicy(1.0), ask(messages=messages, tools=(CALCULATOR,), step=1)).content.endswith("Answer: 33")


def test_a_question_without_numbers_is_answered_without_the_tool():
    """Without numbers there is nothing to calculate."""
    message = say(NoisyPolicy(1.0), ask(messages=(Message("user", "Who is it?"),), tools=(CALCULATOR,)))
    assert not message.tool_calls
    assert "Answer: " in message.content


def test_it_is_a_policy_that_pickles():
    """A copy gives the same replies."""
    policy = pickle.loads(pickle.dumps(NoisyPolicy(0.4, name="n", version=2, context_length=9)))
    assert isinstance(policy, Policy)
    assert (policy.name, policy.version, policy.context_length, policy.correct) == ("n", 2, 9, 0.4)
    assert say(policy, ask(8)) == say(NoisyPolicy(0.4), ask(8))


@pytest.mark.parametrize("correct", [-0.1, 1.1, float("nan")])
def test_a_probability_is_between_0_and_1(correct):
    """Numbers outside 0 to 1 are refused."""
    with pytest.raises(InputError, match="Expected correct from 0 to 1"):
        NoisyPolicy(correct)
