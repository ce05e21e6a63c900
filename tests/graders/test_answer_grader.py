"""The answer check as a grader: which answer and reference it compares, and the reward."""

import asyncio

import pytest

from rolltrace.errors import GraderError, NotGradableError
from rolltrace.graders.answer_grader import AnswerGrader, AnswerInput

pytestmark = pytest.mark.core


def given(response, reference="7", well_formed=True, **fields):
    made = {"extra": {}, "task_data": {"answer": reference}, "env_args": {}, **fields}
    return AnswerInput(response, well_formed, **made)


@pytest.mark.parametrize(
    ("extract", "response", "correct"),
    [
        ("answer", "So.\nAnswer: 7", 1.0),
        ("answer", r"It is \boxed{7}", 1.0),
        ("boxed", "Answer: 7", 0.0),
        ("tagged", "<answer>7</answer>", 1.0),
        ("whole", " 7 \n", 1.0),
        ("whole", "It is 7", 0.0),
    ],
)
def test_where_the_answer_is(extract, response, correct):
    """The answer is extracted as configured; a response without one has the wrong format and is not correct."""
    grade = AnswerGrader(check="number", extract=extract).grade_quickly(given(response))
    assert (grade.reward, grade.reward_data["correct"]) == (correct, correct)


def test_what_the_format_costs():
    """The format penalty is the argument, else the env's, else 0; a truncated response pays it."""
    cut = given("Answer: 7", well_formed=False)
    assert AnswerGrader().grade_quickly(cut).reward == 1.0
    assert AnswerGrader().grade_quickly(cut._replace(env_args={"format_coef": 0.25})).reward == 0.75
    assert AnswerGrader(format_coef=0.5).grade_quickly(cut._replace(env_args={"format_coef": 0.25})).reward == 0.5
    assert AnswerGrader().grade_quickly(cut._replace(env_args={"format_coef": "much"})).reward == 1.0
    assert AnswerGrader(format_coef=0.5).grade_quickly(given("I do not know.")).reward == -0.5


def test_which_reference_counts():
    """`reference` of the step wins over the task's data; of several accepted answers the best counts."""
    both = given("Answer: 8", extra={"reference": ["8", "9"], "answer": "1"})
    assert AnswerGrader().grade_quickly(both).reward == 1.0
    assert AnswerGrader(reference="gold").grade_quickly(given("Answer: 8", task_data={"gold": 8})).reward == 1.0
    for lacking in ({}, {"answer": None}, {"answer": []}, {"answer": "hashed:5:0123456789abcdef"}):
        with pytest.raises(NotGradableError):
            AnswerGrader().grade_quickly(given("Answer: 8", task_data=lacking))


def test_an_answer_that_cannot_be_judged_is_wrong(monkeypatch):
    """A check that raises `GraderError` or returns no finite number scores 0, with the reason; others propagate."""

    def grade(check):
        monkeypatch.setattr(AnswerInput, "of_rollout", classmethod(lambda cls, rollout: given("Answer: 7")))
        return asyncio.run(AnswerGrader(check=check).grade(None))

    def refuses(answer, reference):
        raise GraderError("too long")

    async def agrees(answer, reference):
        return answer == reference

    assert (grade(refuses).reward, grade(refuses).extra["unjudged"]) == (0.0, "too long")
    assert grade(lambda answer, reference: float("nan")).extra["unjudged"] == "The check returned nan."
    assert grade(agrees).reward == 1.0
    with pytest.raises(ZeroDivisionError):
        grade(lambda answer, reference: 1 / 0)


def test_math_is_compared_by_value(monkeypatch):
    """The check `math` is math-verify in a worker process."""
    pytest.importorskip("math_verify")
    monkeypatch.setattr(AnswerInput, "of_rollout", classmethod(lambda cls, rollout: given(r"\boxed{\frac{14}{2}}")))
    assert asyncio.run(AnswerGrader(check="math").grade(None)).reward == 1.0
