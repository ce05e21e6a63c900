"""A late fact about a rollout or a group, such as the reward from the group's grader."""

from collections.abc import Sequence

import msgspec

from rolltrace.trace.call import Call
from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import FORMAT_VERSION, FreeForm, Numbers, Omittable, Timestamp
from rolltrace.trace.json_numbers import Float, as_float, as_number


class GroupKey(msgspec.Struct, frozen=True):
    """Which group of a run."""

    split: str
    iteration: int
    env: str
    group: str

    @property
    def address(self) -> str:
        """The name of the group for people: SPLIT/ENV/ITERATION/GROUP."""
        return f"{self.split}/{self.env}/{self.iteration}/{self.group}"


class Grade(msgspec.Struct, frozen=True):
    """The grade that a grader gives a rollout."""

    reward: Float
    reward_data: Numbers = {}
    """The numbers behind the reward."""
    extra: FreeForm = {}
    """Values that are not numbers: reference answers, matchups, criteria."""
    reward_weights: Omittable[Numbers] = {}
    """By the names of `reward_data`, the weight of each number in the reward; empty if not stated."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `scores/`, a late fact: name, value, data, producer and time. It names one rollout, or one group."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere."""
    run: str
    session: str = ""
    rollout: str | None = None
    """The id of the rollout it is about."""
    group: GroupKey | None = None
    """The group it is about."""
    name: str
    """`reward` is the rollout's total, and the latest one counts."""
    value: Float | None
    """None if it could not be computed; `error` then says why."""
    data: FreeForm = {}
    producer: str = ""
    """The program or grader that computed it."""
    created_at: Timestamp
    error: Failure | None = None
    calls: Omittable[tuple[Call, ...]] = ()
    """Model calls that were made to compute it."""


def latest_reward(scores: Sequence[Score]) -> Score | None:
    """The score that gives a rollout its reward, of its scores in order."""
    return next((score for score in reversed(scores) if score.name == "reward"), None)


def group_grade(score: Score) -> Grade | None:
    """The grade of the group's grader in a score named `reward`; None for a score that only states a total."""
    reward = as_float(score.data.get("group_grade"))
    if score.value is None or reward is None:
        return None
    numbers, extra = score.data.get("reward_data"), score.data.get("extra")
    numbers = numbers if isinstance(numbers, dict) else {}
    return Grade(
        reward,
        {str(name): value for name, given in numbers.items() if (value := as_number(given)) is not None},
        extra if isinstance(extra, dict) else {},
    )
