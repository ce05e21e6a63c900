"""The server gives the same reward for a rollout as for the same rollout as a member of its group."""

import json
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from answers import score, write
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.score import Grade
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

GRADE = Grade(0.25, {"quality": 0.25}, {})
NOW = utc_now()
LATER = NOW + timedelta(seconds=1)

Ask = Callable[..., Any]


def graded(writer: RunWriter, index: int, **fields: Any) -> str:
    """A rollout whose only step gave 1.0 and whose grader 0.25."""
    return write(writer, index=index, **{"grade": GRADE, "reward": 1.25, "reward_so_far": 1.25, **fields})


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ask, list[str]]]:
    """A group with rewards of all kinds, with the API's `ask` function and the ids of its members."""
    folder: Path = tmp_path_factory.mktemp("rewards")
    with create_run(folder / "run") as writer:
        ids = [
            graded(writer, 0),
            graded(writer, 1, reward=1.0, unclamped_reward=1.25),
            graded(writer, 2, reward=None),
            graded(writer, 3),
            graded(writer, 4, reward=7.0),
            graded(writer, 5, reward=math.nan),
            graded(writer, 6, reward=None),
            graded(writer, 7),
        ]
        score(writer, ids[2], 1.0, created_at=NOW, data={"group_grade": 0.5, "unclamped_reward": 1.75})
        score(writer, ids[3], -1.0, created_at=NOW)
        score(writer, ids[3], 3.0, created_at=LATER)
        score(writer, ids[6], None, created_at=NOW)
        for value in (0.0, 5.0, 2.0):
            score(writer, ids[7], value, created_at=NOW)
        for number in range(520):
            score(writer, ids[2], 0.0, name=f"other{number}", created_at=LATER + timedelta(microseconds=number))
    library = OpenRuns(folder)
    questions = Api(library)

    def ask(question: str, **parameters: str) -> Any:
        return json.loads(questions.handlers[question](RequestParameters([("run", "run"), *parameters.items()])))

    yield ask, ids
    library.close()


TERMS = [
    {"steps": 1.0, "grade": 0.25},
    {"steps": 1.0, "grade": 0.25, "clamp": -0.25},
    {"steps": 1.0, "grade": 0.25, "group grade": 0.5, "clamp": -0.75},
    {"score": 3.0},
    {"steps": 1.0, "grade": 0.25, "unexplained": 5.75},
    {"steps": 1.0, "grade": 0.25},
    {"steps": 1.0, "grade": 0.25},
    {"score": 2.0},
]


def test_a_rollout_and_its_group_have_the_same_terms(asked: tuple[Ask, list[str]]):
    """Terms equal hand-computed ones and those of the group: clamp, graders, late scores, a rest, and null rewards."""
    ask, ids = asked
    group = ask("group", split="train", iteration="0", env="sums", group="g")["group"]
    members = {member["id"]: member for member in group["members"]}
    for rollout, terms in zip(ids, TERMS, strict=True):
        answer = ask("rollout", id=rollout)
        assert {term["name"]: term["value"] for term in answer["terms"]} == pytest.approx(terms)
        assert answer["terms"] == members[rollout]["terms"]
        assert answer["reward"] == members[rollout]["reward"]
        values = [term["value"] for term in answer["terms"]]
        if isinstance(answer["reward"], float):
            assert math.fsum(values) == pytest.approx(answer["reward"])


def test_the_score_that_sets_the_reward_is_named(asked: tuple[Ask, list[str]]):
    """`reward_score` is the latest score that sets the reward, or None if the line does."""
    ask, ids = asked
    for rollout in ids:
        answer = ask("rollout", id=rollout)
        named = [score for score in answer["scores"] if score["id"] == answer["reward_score"]]
        if rollout in (ids[2], ids[3], ids[6], ids[7]):
            assert [(score["name"], score["value"]) for score in named] == [("reward", answer["reward"])]
        else:
            assert answer["reward_score"] is None


def test_of_very_many_scores_the_newest_are_told(asked: tuple[Ask, list[str]]):
    """The score that counts is always among them, however many came after it."""
    ask, ids = asked
    scores = ask("rollout", id=ids[2])["scores"]
    assert [score["name"] for score in scores] == ["reward", *(f"other{number}" for number in range(21, 520))]


def test_answers_are_strict_json_with_exact_integers(tmp_path: Path):
    """Numbers that are not finite, and integers that a browser would round, are text."""
    long = 2**53 + 1
    task_data = {"nan": math.nan, "bytes": b"x", "long": long, "text": f'"{long}" is a text'}
    with create_run(tmp_path / "run") as writer:
        fields = {"env_state": {"long": -long, "exact": 2**53}, "reward_data": {"a": math.nan}}
        first = write(writer, index=0, seed=2**63 - 1, task_data=task_data, reward=math.inf, step=fields)
        write(writer, index=1)
        score(writer, first, 1.0, name="other", data={"long": [long]})
    library = OpenRuns(tmp_path)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    def ask(question: str, **parameters: str) -> Any:
        sent = Api(library).handlers[question](RequestParameters([("run", "run"), *parameters.items()]))
        return json.loads(sent, parse_constant=refuse)

    try:
        group = ask("group", split="train", iteration="0", env="sums", group="g")["group"]
        found = ask("rollout", id=first)
    finally:
        library.close()
    sent_task = {
        "nan": {"$float": "NaN"},
        "bytes": {"$bytes": "eA=="},
        "long": str(long),
        "text": f'"{long}" is a text',
    }
    assert group["task_data"] == found["rollout"]["task_data"] == sent_task
    assert group["mean"] == "NaN"
    assert group["members"][0]["reward"] == found["reward"] == "Infinity"
    assert group["members"][0]["reward_data"] == {"a": "NaN"}
    assert found["rollout"]["seed"] == str(2**63 - 1)
    assert found["rollout"]["steps"][0]["env_state"] == {"long": str(-long), "exact": 2**53}
    assert found["scores"][0]["data"] == {"long": [str(long)]}
