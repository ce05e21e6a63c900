"""A rollout's late scores, and which of them are written."""

import copy
import json
import math
import pickle

import pytest

from rollout_builders import ENDED, one_step, outcome
from rolltrace.trace.codec import decode_rollout, encode_rollout, encode_with_scores, verify_checksum
from rolltrace.trace.score import Grade, Score

GRADED = {
    "reward_so_far": 1.0, "grade": None, "group_grade": 0.5, "unclamped_reward": None,
    "reward_data": {"wins": 2, "odd": "no number"}, "extra": {"met": ["a", "b"]},
}  # fmt: skip


def late(name, value, **fields):
    """A score about the rollout of these tests."""
    return Score(id=f"{name}-{value}", run="run", rollout="rollout", name=name, value=value, created_at=ENDED, **fields)


def line(reward=1.0):
    """A rollout that was read from its line."""
    return decode_rollout(one_step().encode(outcome(reward=reward)).data)


@pytest.mark.parametrize(
    ("scores", "reward"),
    [
        ([], 1.0),
        ([late("advantage", 9.0)], 1.0),
        ([late("reward", 2.0), late("reward", 3.0), late("advantage", 9.0)], 3.0),
        ([late("reward", 2.0), late("reward", None)], None),
    ],
)
def test_the_latest_score_named_reward_is_the_reward(scores, reward):
    """`reward` is the last score of that name, also if null, else the line's; `line_reward` is always the line's."""
    rollout = line().with_scores(scores)
    assert (rollout.reward, rollout.line_reward) == (reward, 1.0)
    assert rollout.scores == tuple(scores)


def test_a_group_grade_is_read_from_the_score_that_gives_the_reward():
    """`group_grade` has the grade, its data and its extra; a plain score, a null one and the line have none."""
    graded = line(None).with_scores([late("reward", 1.5, data=GRADED)])
    assert graded.group_grade == Grade(0.5, {"wins": 2}, {"met": ["a", "b"]})
    assert line().group_grade is None
    assert line(None).with_scores([late("reward", 1.5, data={"rank": 2})]).group_grade is None
    assert graded.with_scores([*graded.scores, late("reward", None, data=GRADED)]).group_grade is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_its_scores(copied):
    """A rollout that is copied or pickled has the same reward."""
    rollout = line(None).with_scores([late("reward", 1.5, data=GRADED)])
    again = copied(rollout)
    assert (again, again.reward, again.scores) == (rollout, 1.5, rollout.scores)
    assert again.steps[0].trace == rollout.steps[0].trace


def test_late_scores_are_never_written_onto_the_line():
    """A rollout that is encoded again is the line that it was read from, whatever its scores are."""
    data = one_step().encode(outcome(reward=None)).data
    read = decode_rollout(data).with_scores([late("reward", 1.5, data=GRADED)])
    assert json.loads(encode_rollout(read)) == json.loads(data)


def test_json_for_readers_has_the_reward_and_what_it_is_made_of():
    """JSON for readers has the current reward, `line_reward`, `group_grade` and `scores`, and no checksum."""
    rollout = line(None).with_scores([late("reward", math.nan, data=GRADED), late("advantage", 0.5)])
    sent = json.loads(encode_with_scores(rollout))
    assert (sent["reward"], sent["line_reward"]) == ("NaN", None)
    assert sent["group_grade"] == {"reward": 0.5, "reward_data": {"wins": 2}, "extra": {"met": ["a", "b"]}}
    assert [score["name"] for score in sent["scores"]] == ["reward", "advantage"]
    written = json.loads(verify_checksum(encode_rollout(rollout)))
    assert set(sent) - set(written) == {"line_reward", "group_grade", "scores"}
    assert set(written) - set(sent) == {"crc"}
    assert "scores" not in json.loads(encode_with_scores(rollout, all_scores=False))
