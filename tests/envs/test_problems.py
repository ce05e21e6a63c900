import json
import pickle

import pytest

from rolltrace.envs.problems import ProblemsTasks
from rolltrace.errors import DataError, InputError, UnknownNameError
from rolltrace.graders.answer_check import exact_score, extract_answer, is_number, number_score


def write(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def builders(tasks):
    return [tasks.builder(number, episodes=1, seed=0) for number in range(tasks.count)]


def test_the_shipped_problems_are_varied():
    """The shipped problems are many, most with numbers and some with words, and each answer passes its own check."""
    shipped = builders(ProblemsTasks())
    assert len(shipped) >= 24
    assert len({builder.task for builder in shipped}) == len(shipped)
    assert len({builder.question for builder in shipped}) == len(shipped)
    assert {is_number(builder.reference) for builder in shipped} == {True, False}
    assert all(builder.check(builder.reference, builder.reference) == 1.0 for builder in shipped)


def test_a_file_of_ones_own(tmp_path):
    """Ids and answers may be numbers; other keys go to the task's data."""
    path = write(tmp_path, {"id": 7, "question": "2 + 2?", "answer": 4, "source": "me"})
    [builder] = builders(ProblemsTasks(data=path, format_coef=0.2, system="Hi", instruction=""))
    assert (builder.task, builder.reference, builder.question, builder.system) == ("7", "4", "2 + 2?", "Hi")
    assert builder.task_data == {"source": "me", "question": "2 + 2?", "answer": 4, "check": "number"}
    assert builder.env_args["data"] == path
    assert pickle.loads(pickle.dumps(builder)) == builder


def test_the_check_follows_the_answer_or_the_argument(tmp_path):
    """By default, numbers are compared as numbers and words as words."""
    path = write(tmp_path, {"id": "a", "question": "q", "answer": "4.0"}, {"id": "b", "question": "q", "answer": "x"})
    assert [builder.check for builder in builders(ProblemsTasks(data=path))] == [number_score, exact_score]
    assert [builder.check for builder in builders(ProblemsTasks(data=path, check="exact"))] == [exact_score] * 2
    with pytest.raises(DataError, match=r"own.jsonl:2: expected a number as `answer`, got 'x'"):
        ProblemsTasks(data=path, check="number")


def test_an_unknown_check_suggests_the_nearest():
    """A misspelled check is refused with a suggestion."""
    with pytest.raises(UnknownNameError, match=r"no check 'nummber'\. Did you mean 'number'\?"):
        ProblemsTasks(check="nummber")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b", "question": "", "answer": "1"}, "expected `str` of length >= 1 - at `question`"),
        ({"id": "b", "question": "q", "answer": []}, "expected `array` of length >= 1 - at `answer`"),
        (
            {"id": "b", "question": "q", "answer": True},
            "expected `int | float | str | array | null`, got `bool` - at `answer`",
        ),
        (
            {"id": "b", "question": "q", "target": 1},
            "expected a column `answer` or `solution`, got the columns `id`, `question`, `target`: say which one it is",
        ),
        (
            {"id": "b", "question": "q", "answer": "a\nb"},
            "expected an answer of one line, `#### ANSWER` as the last line, or",
        ),
        ({"id": "a", "question": "q", "answer": "1"}, "expected a new `id`, got 'a', which line 1 has"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    """The error names file and line of a row that is no problem."""
    path = write(tmp_path, {"id": "a", "question": "q", "answer": "1"}, row)
    with pytest.raises(DataError) as caught:
        ProblemsTasks(data=path)
    assert f"own.jsonl:2: {message}" in str(caught.value)


def asked_in(builder):
    return [message.content.splitlines()[0] for message in builder.examples if message.role == "user"]


def test_examples_are_other_rows_with_their_solutions(tmp_path):
    """Examples show their rows' solutions and the asked answer format, and never hold the question."""
    rows = [
        {"id": 1, "question": "1 + 1?", "answer": 2, "solution": "Two ones are two."},
        {"id": 2, "question": "2 + 2?", "answer": 4},
        {"id": 3, "question": "1 + 1?", "answer": "2"},
    ]
    tasks = ProblemsTasks(data=write(tmp_path, *rows), examples=1, instruction="Say it.")
    first, second, third = builders(tasks)
    assert [(message.role, message.content) for message in first.examples] == [
        ("user", "2 + 2?\nSay it."),
        ("assistant", "Answer: 4"),
    ]
    assert third.examples == first.examples
    question, reply = second.examples
    assert question.content == "1 + 1?\nSay it."
    assert reply.content in ("Two ones are two.\nAnswer: 2", "Answer: 2")
    [_, worked] = ProblemsTasks(data=write(tmp_path, *rows[:2]), examples=1).builder(1, episodes=1, seed=0).examples
    assert worked.content == "Two ones are two.\nAnswer: 2"
    assert first.task_data["solution"] == "Two ones are two."
    assert "solution" not in second.task_data
    assert first.env_args["examples"] == 1


def test_examples_are_drawn_from_the_seed():
    """Equal seed and row give the same examples, others give others; none repeats in a prompt."""
    tasks = ProblemsTasks(examples=4)
    first, again = (tasks.builder(3, episodes=1, seed=1) for _ in range(2))
    assert first == again
    others = [tasks.builder(3, episodes=1, seed=2), tasks.builder(4, episodes=1, seed=1)]
    assert len({tuple(asked_in(builder)) for builder in (first, *others)}) == 3
    for number in range(tasks.count):
        builder = tasks.builder(number, episodes=1, seed=0)
        asked = [*asked_in(builder), builder.task_data["question"]]
        assert len(set(asked)) == 5
    assert isinstance(first.seed, int)
    assert ProblemsTasks().builder(3, episodes=1, seed=1).seed is None


def test_shipped_solutions_lead_to_the_answers():
    """Each shipped problem has a solution, and an example made of it ends with the right answer."""
    tasks = ProblemsTasks(examples=1)
    assert len(tasks.problems) > 10
    for problem in tasks.problems:
        assert problem.solution
        assert extract_answer(problem.solution) is None
        assert str(problem.answer).rstrip("%") in problem.solution


@pytest.mark.parametrize("examples", [-1, 2])
def test_too_many_examples_are_refused(tmp_path, examples):
    """There are at most as many examples as other questions."""
    rows = [{"id": number, "question": question, "answer": 1} for number, question in enumerate("aab")]
    with pytest.raises(InputError, match=f"Expected examples from 0 to 1, the other rows of problems, got {examples}"):
        ProblemsTasks(data=write(tmp_path, *rows), examples=examples)


def test_a_coefficient_that_is_no_number_is_refused():
    """It is refused when the tasks are made, not when one is played."""
    with pytest.raises(InputError, match="format_coef to be a finite number, got nan"):
        ProblemsTasks(format_coef=float("nan"))
