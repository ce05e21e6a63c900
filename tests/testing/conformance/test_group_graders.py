"""Group graders, as the check asks them."""

from dataclasses import dataclass

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Grade, Observation, SingleUse, StepResult
from rolltrace.errors import GraderError
from rolltrace.graders.grader import Grader, GroupGrade, GroupGrader
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message

SEEN = []


class Says(Env):
    takes_any_completion = True

    def __init__(self):
        self.life = SingleUse()

    async def initial_observation(self):
        self.life.start()
        return Observation([Message("user", "Say something.")])

    async def step(self, completion):
        self.life.require_active()
        self.life.end()
        return StepResult(0.0, True, stop_reason="said")


@dataclass
class Group(EnvGroupBuilder):
    grader: object = None
    group_grader: object = None
    env: str = "says"
    task: str = "one"
    episodes: int = 4

    async def make_episode(self, number):
        return [Says()]


def finished(rollouts):
    return [rollout for rollout in rollouts if rollout.status == "ok"]


class ByLength(GroupGrader):
    """Grades by the length of the response, and returns data about the group."""

    async def grade_group(self, rollouts):
        SEEN.append(rollouts)
        grades = {rollout.id: Grade(float(len(str(rollout.conversation)))) for rollout in finished(rollouts)}
        return GroupGrade(grades, reward_data={"members": len(grades)}, extra={"order": [*grades]})


class ExcusesFailures(GroupGrader):
    async def grade_group(self, rollouts):
        return {
            rollout.id: Grade(1.0) if rollout.status == "ok" else GraderError("it failed before")
            for rollout in rollouts
        }


class Averages(GroupGrader):
    """Sums in the given order, so that the last digit may differ."""

    async def grade_group(self, rollouts):
        numbers = [(rollout.index + 1) / 10 for rollout in rollouts]
        return {rollout.id: Grade(sum(numbers)) for rollout in finished(rollouts)}


class TextAboutTheGroup(GroupGrader):
    async def grade_group(self, rollouts):
        return GroupGrade({rollout.id: Grade(1.0) for rollout in rollouts}, reward_data={"winner": "first"})


class NotANumber(GroupGrader):
    async def grade_group(self, rollouts):
        return {rollout.id: Grade(float("nan")) for rollout in rollouts}


class SkipsOne(GroupGrader):
    async def grade_group(self, rollouts):
        return {rollout.id: Grade(1.0) for rollout in finished(rollouts)[1:]}


class Misaligned(GroupGrader):
    """Scores the members that ended well, and assigns the scores to all by position."""

    async def grade_group(self, rollouts):
        scores = [float(rollout.steps != ()) for rollout in finished(rollouts)]
        return {rollout.id: Grade(score) for rollout, score in zip(rollouts, scores, strict=False)}


class ListOfGrades(GroupGrader):
    async def grade_group(self, rollouts):
        return [Grade(1.0) for _ in rollouts]


class NotAsync(GroupGrader):
    def grade_group(self, rollouts):
        return {rollout.id: Grade(1.0) for rollout in rollouts}


class Scribbles(GroupGrader):
    async def grade_group(self, rollouts):
        for place, rollout in enumerate(rollouts):
            rollout.task_data["place"] = place
        return {rollout.id: Grade(1.0) for rollout in rollouts}


class Lambda(GroupGrader):
    def __init__(self):
        self.score = lambda rollout: 1.0

    async def grade_group(self, rollouts):
        return {rollout.id: Grade(self.score(rollout)) for rollout in rollouts}


class TextInGrade(Grader):
    async def grade(self, rollout):
        return Grade(1.0, reward_data={"verdict": "good"})


class ListInGrade(Grader):
    async def grade(self, rollout):
        return Grade(1.0, extra=["good"])


class WellFormedOnly(Grader):
    """Fails on truncated responses, which a one-prompt environment is graded on too."""

    async def grade(self, rollout):
        assert rollout.stop_reason == "said"
        return Grade({"eos": 1.0}[rollout.steps[-1].termination])


@pytest.mark.parametrize("kind", [ByLength, ExcusesFailures, Averages])
def test_group_graders_that_grade_by_id_pass(kind):
    """Grades with or without data about the group, and an exception for a failed member, are accepted."""
    assert [str(found) for found in check_env(Group(group_grader=kind()))] == []


def test_a_group_is_shown_in_all_its_forms():
    """The grader gets the group whole, reversed, with a failed member, and with one without steps."""
    SEEN.clear()
    assert check_env(Group(group_grader=ByLength())) == []
    whole, turned, with_failure, failed_last, with_overflow = SEEN
    assert [one.id for one in turned] == [one.id for one in whole][::-1]
    assert [len(one.steps) for one in whole] == [1, 1, 1, 1]
    assert [one.index for one in whole] == [0, 1, 2, 3]
    assert {one.stop_reason for one in whole} == {"said"}
    assert {str(one.steps[-1].termination) for one in whole} == {"eos", "length"}
    assert [str(one.status) for one in with_failure] == ["error", "ok", "ok", "ok"]
    assert [str(one.status) for one in failed_last] == ["ok", "ok", "ok", "error"]
    assert [one.index for one in failed_last] == [0, 1, 2, 3]
    first = with_overflow[0]
    assert (first.status, first.steps, first.stop_reason, first.reward_so_far) == ("ok", (), "context_overflow", -0.1)
    assert first.conversation[0].content == "Say something."


BROKEN = {
    TextAboutTheGroup: ("numbers", "`TextAboutTheGroup.grade_group` gave the str 'first' as `reward_data['winner']`"),
    NotANumber: ("grade-group", "`NotANumber.grade_group` gave a grade whose `reward` is nan"),
    SkipsOne: ("grade-group", "`SkipsOne.grade_group` graded ["),
    Misaligned: ("grade-group", "`Misaligned.grade_group` graded ["),
    ListOfGrades: ("grade-group", "`ListOfGrades.grade_group` gave [Grade("),
    NotAsync: ("types", "`NotAsync.grade_group` is not `async def`"),
    Scribbles: ("grade-group", "`Scribbles.grade_group` changed the rollout that it was given"),
    Lambda: ("grader", "`Lambda` cannot be pickled"),
    TextInGrade: ("numbers", "`TextInGrade.grade` gave the str 'good' as `reward_data['verdict']`"),
    ListInGrade: ("grader", "`ListInGrade.grade` gave ['good'] as `extra`"),
    WellFormedOnly: ("grader", "`WellFormedOnly.grade` raised KeyError(<Termination.LENGTH: 'length'>)"),
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_grader_is_named(kind):
    """The violation has its rule, its method and what it did."""
    builder = Group(grader=kind()) if issubclass(kind, Grader) else Group(group_grader=kind())
    rule, seen = BROKEN[kind]
    found = [one for one in check_env(builder) if (kind, one.rule) != (Lambda, "pickles")]
    assert [one.rule for one in found] == [rule]
    assert found[0].message.startswith(seen)


@pytest.mark.parametrize("field", ["grader", "group_grader"])
def test_a_grader_of_the_wrong_kind_is_named(field):
    """A grader of rollouts in place of a group grader is reported, and the other way round."""
    wrong = ByLength() if field == "grader" else TextInGrade()
    [found] = [one for one in check_env(Group(**{field: wrong})) if one.rule == "grader"]
    assert found.message.startswith(f"`{field}` of `Group` is <")
    assert found.fix.startswith(f"set the builder's `{field}` to an instance of a `G")


class NoRoles(Group):
    def role_of(self, seat):
        return None


def test_every_seat_has_a_role():
    """A builder that names the roles of its seats must name all of them."""
    [found] = check_env(NoRoles())
    assert str(found) == (
        "builder: `NoRoles.role_of(0)` gave None; "
        "let `role_of` name a role for every seat, such as `policy` or `opponent`."
    )


class GraderInProperty(Group):
    @property
    def group_grader(self):
        raise KeyError("group_grader")

    @group_grader.setter
    def group_grader(self, grader):
        """Ignore what the base class sets."""


def test_a_group_grader_that_cannot_be_read_does_not_end_the_check():
    """A builder whose property raises is reported, and the check continues."""
    [found] = check_env(GraderInProperty())
    assert found.message == "`group_grader` of `GraderInProperty` cannot be read"


def test_grades_that_shift_when_a_member_fails_are_found():
    """Matching finished members with the values of all members is right only until one fails."""

    class Shifting(GroupGrader):
        async def grade_group(self, rollouts):
            ordered = sorted(rollouts, key=lambda rollout: rollout.index)
            finished = [rollout for rollout in ordered if rollout.status == "ok"]
            values = [len(rollout.conversation[-1].content) if rollout.steps else 0 for rollout in ordered]
            return {rollout.id: Grade(float(value)) for rollout, value in zip(finished, values, strict=False)}

    found = [violation.message for violation in check_env(Group(group_grader=Shifting()))]
    assert any("when a failed member had the last index instead of the first" in message for message in found)
