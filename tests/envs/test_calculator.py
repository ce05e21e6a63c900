"""The built-in `calculator`."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.calculator import MAX_DIFFICULTY, CalculatorEnv, CalculatorTasks, calculator, calculator_tool
from rolltrace.envs.tasks import iterate_groups
from rolltrace.errors import InputError, ToolError
from rolltrace.expressions import evaluate
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message, ToolCall
from stage import fields_of


def say(text="", *calls):
    return Completion(message=Message("assistant", text, tool_calls=calls))


def make(number=3, seed=0, **settings):
    return CalculatorTasks(**settings).builder(number, episodes=2, seed=seed)


async def first_observation(builder):
    (env,) = await builder.make_episode(0)
    return await env.initial_observation()


async def start(max_turns=6):
    env = CalculatorEnv("87 - (378 + 162)", "-453", max_turns)
    await env.initial_observation()
    return env


@given(st.integers(1, MAX_DIFFICULTY), st.integers(0, 10**6), st.integers(0, 2**63))
def test_the_answer_is_the_value_of_the_expression(difficulty, number, seed):
    """Each question has as many operations as its difficulty, and an integer answer."""
    data = make(number, seed, difficulty=difficulty).task_data
    assert sum(data["expression"].count(f" {sign} ") for sign in "+-*") == difficulty
    assert str(evaluate(data["expression"])) == data["answer"]
    assert int(data["answer"]) == eval(data["expression"])


def test_tasks_are_the_same_everywhere():
    """A task depends on seed, number and difficulty only."""
    builder = make(3, 0)
    assert builder.task == "difficulty2-seed0-3"
    assert builder.task_data == {"expression": "426 - (96 * 86)", "answer": "-7830"}
    assert builder.env_args == {"difficulty": 2, "max_turns": 6}
    assert (builder.env, builder.episodes, builder.seats) == ("calculator", 2, 1)
    assert builder.seed == make(3, 0).seed
    others = [make(4, 0), make(3, 1), make(3, 0, difficulty=3)]
    assert len({builder.seed, *(other.seed for other in others)}) == 4
    assert len({builder.task, *(other.task for other in others)}) == 4


def test_a_run_walks_different_tasks():
    """Generated tasks do not repeat."""
    tasks = CalculatorTasks()
    names = [
        group.task
        for iteration in range(3)
        for group in iterate_groups(tasks, iteration=iteration, groups=4, episodes=1, seed=7)
    ]
    assert len(set(names)) == 12


async def test_builders_pickle():
    """A pickled builder makes the same episodes."""
    builder = make()
    copy = pickle.loads(pickle.dumps(builder))
    assert fields_of(copy) == fields_of(builder)
    assert await first_observation(copy) == await first_observation(builder)


async def test_the_prompt_asks_and_does_not_tell():
    """The policy sees the question, the tool and the answer format, never the answer."""
    builder = make()
    observation = await first_observation(builder)
    (message,) = observation.messages
    assert message.content.startswith(f"What is {builder.task_data['expression']}?")
    assert "calculator(expression: str)" in message.content
    assert message.content.endswith("Answer: NUMBER")
    assert builder.task_data["answer"] not in message.content
    assert [spec.name for spec in observation.tools] == ["calculator"]


async def test_a_right_play():
    """The tool gives the value; the answer line that repeats it earns 1."""
    env = await start()
    call = ToolCall("calculator", '{"expression": "87 - (378 + 162)"}', "c")
    used = await env.step(say("", call))
    assert used.observation.messages == (Message("tool", "-453", tool_call_id="c", name="calculator"),)
    assert (used.reward, used.done, used.reward_data) == (0.0, False, {})
    result = await env.step(say("That was easy.\nAnswer: -453"))
    assert (result.reward, result.done, result.reward_data) == (1.0, True, {"correct": 1.0})
    assert result.extra == {"reference": "-453", "answer": "-453"}


@pytest.mark.parametrize(
    ("text", "answer", "correct"),
    [
        ("Answer: −453.0", "−453.0", 1.0),
        ("Answer: -453\nAnswer: 2", "2", 0.0),
        ("Answer: 453", "453", 0.0),
        ("-453", None, 0.0),
        ("", None, 0.0),
        ("Answer: 9**9**9", "9**9**9", 0.0),
    ],
)
async def test_answers_are_compared_as_numbers(text, answer, correct):
    """The last answer line counts, however the number is written; no answer is wrong."""
    env = await start()
    result = await env.step(say(text))
    assert (result.reward, result.done) == (correct, True)
    assert result.reward_data == {"correct": correct}
    assert result.extra == {"reference": "-453", "answer": answer}


async def test_running_out_of_turns_is_wrong():
    """An episode that ends without an answer has the same numbers as one with a wrong answer."""
    env = await start(max_turns=1)
    result = await env.step(say("", ToolCall("calculator", '{"expression": "1"}')))
    assert (result.reward, result.done, result.stop_reason) == (0.0, True, "max_turns")
    assert result.reward_data == {"correct": 0.0}
    assert result.extra["reference"] == "-453"
    assert result.extra["answer"] is None


async def test_a_bad_expression_is_answered():
    """The error of the evaluator reaches the policy in a message made for it."""
    outcome = await calculator_tool().call('{"expression": "9**9**9"}')
    assert outcome.content == "Error: Expected numbers of at most 1000 digits, got more at character 2."
    with pytest.raises(ToolError):
        calculator("import os")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"difficulty": 0}, "difficulty from 1 to 10"),
        ({"difficulty": 11}, "difficulty from 1 to 10"),
        ({"max_turns": 0}, "max_turns of at least 1"),
    ],
)
def test_wrong_settings(settings, message):
    """The error names a wrong setting before anything is played."""
    with pytest.raises(InputError, match=message):
        CalculatorTasks(**settings)
