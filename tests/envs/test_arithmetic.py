import math
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.arithmetic import DIFFICULTIES, MAX_EXAMPLES, ArithmeticTasks, make_question_expression
from rolltrace.errors import InputError
from rolltrace.expressions import evaluate
from rolltrace.graders.answer_check import extract_answer


@given(st.sampled_from(sorted(DIFFICULTIES)), st.integers(0, 2**32))
def test_the_answer_is_the_value_of_the_text(difficulty, seed):
    """The answer computed while the expression grows equals the value of its text, with parentheses."""
    level = DIFFICULTIES[difficulty]
    expression = make_question_expression(random.Random(seed), level)
    assert evaluate(expression.text) == expression.value
    assert sum(expression.text.count(f" {sign} ") for sign in "+-*/") == level.operator_count


def test_tasks_depend_on_difficulty_seed_and_number_only():
    """Equal difficulty, seed and number give the same task, and any others give another."""
    first, again = (ArithmeticTasks(3).builder(5, episodes=2, seed=1) for _ in range(2))
    assert first == again
    others = [
        ArithmeticTasks(4).builder(5, episodes=2, seed=1),
        ArithmeticTasks(3).builder(6, episodes=2, seed=1),
        ArithmeticTasks(3).builder(5, episodes=2, seed=2),
    ]
    assert len({builder.task for builder in (first, *others)}) == 4
    assert len({builder.question for builder in (first, *others)}) == 4
    assert first.task == "difficulty3-seed1-5"


def test_the_generated_tasks_stay_as_they_are():
    """A task's name means the same question in every version, because recorded runs refer to it."""
    builder = ArithmeticTasks(2).builder(1, episodes=1, seed=0)
    assert builder.question.splitlines()[0] == "What is (4 + 18) * 12?"
    assert builder.reference == "264"


def test_the_builder_tells_the_record_what_it_was_made_with():
    """The builder has its arguments, task and seed, and it pickles."""
    builder = ArithmeticTasks(2, format_coef=0.5).builder(0, episodes=4, seed=0)
    assert pickle.loads(pickle.dumps(builder)) == builder
    assert builder.env_args == {"difficulty": 2, "format_coef": 0.5, "examples": 0, "system": None}
    assert builder.task_data["answer"] == builder.reference
    assert (builder.env, builder.episodes) == ("arithmetic", 4)
    assert isinstance(builder.seed, int)


def test_examples_are_worked_and_right():
    """Examples come in pairs of question and well-formed answer, and are not the question itself."""
    builder = ArithmeticTasks(1, examples=2).builder(0, episodes=1, seed=0)
    assert [message.role for message in builder.examples] == ["user", "assistant", "user", "assistant"]
    for question, reply in zip(builder.examples[::2], builder.examples[1::2], strict=True):
        text = question.content.removeprefix("What is ").partition("?")[0]
        assert extract_answer(reply.content) == str(evaluate(text))


def test_no_example_gives_the_answer_away():
    """The question is never among the examples, although at difficulty 1 there are few questions."""
    tasks = ArithmeticTasks(1, examples=MAX_EXAMPLES)
    for number in range(100):
        builder = tasks.builder(number, episodes=1, seed=0)
        asked = [message.content for message in builder.examples if message.role == "user"]
        assert len(asked) == 64
        assert builder.question not in asked


@pytest.mark.parametrize(
    "options",
    [
        {"difficulty": 0},
        {"difficulty": 6},
        {"examples": -1},
        {"examples": 65},
        {"examples": 1_000_000},
        {"format_coef": math.nan},
    ],
)
def test_arguments_out_of_range_are_refused(options):
    """An unknown difficulty is an error that lists the known ones."""
    with pytest.raises(
        InputError, match=r"Expected (difficulty from 1 to 5|examples from 0 to 64|format_coef to be a finite)"
    ):
        ArithmeticTasks(**options)
