import json
import pickle

import pytest

from rolltrace.envs.problems import ProblemsTasks
from rolltrace.errors import DataError, UnknownNameError
from rolltrace.graders.answers import exact_score, is_number, number_score


def write(tmp_path, *rows):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def builders(tasks):
    return [tasks.builder(number, episodes=1, seed=0) for number in range(tasks.count)]


def test_the_shipped_problems_are_varied():
    """Without a file there are enough problems, most with numbers and some with words, each right by its own check."""
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
    """Unless told otherwise, numbers are compared as numbers and words as words."""
    path = write(tmp_path, {"id": "a", "question": "q", "answer": "4.0"}, {"id": "b", "question": "q", "answer": "x"})
    assert [builder.check for builder in builders(ProblemsTasks(data=path))] == [number_score, exact_score]
    assert [builder.check for builder in builders(ProblemsTasks(data=path, check="exact"))] == [exact_score] * 2
    with pytest.raises(DataError, match=r"own.jsonl:2: expected a number as `answer`, got 'x'"):
        ProblemsTasks(data=path, check="number")


def test_an_unknown_check_suggests_the_nearest():
    """A misspelt check is answered with the right one."""
    with pytest.raises(UnknownNameError, match=r"no check 'nummber'\. Did you mean 'number'\?"):
        ProblemsTasks(check="nummber")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "b", "question": "", "answer": "1"}, "expected `str` of length >= 1 - at `question`"),
        ({"id": "b", "question": "q", "answer": [1]}, "expected `int | float | str`, got `array` - at `answer`"),
        ({"id": "b", "question": "q"}, "expected the keys `id`, `question`, `answer`, got an object without `answer`"),
        ({"id": "a", "question": "q", "answer": "1"}, "expected a new `id`, got 'a', which line 1 has"),
    ],
)
def test_bad_rows_are_named(tmp_path, row, message):
    """A row that is no problem is named by file and line."""
    path = write(tmp_path, {"id": "a", "question": "q", "answer": "1"}, row)
    with pytest.raises(DataError) as caught:
        ProblemsTasks(data=path)
    assert f"own.jsonl:2: {message}" in str(caught.value)
