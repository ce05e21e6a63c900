"""Environments and graders that ask other roles, as the check plays them."""

import asyncio
import contextlib
from dataclasses import dataclass

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Grade, Observation, SingleUse, StepResult
from rolltrace.errors import GraderError, InputError, PolicyError
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.policies.roles import ask
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message

ASKED = []


def question(text):
    return [Message("user", text)]


class Asking(Env):
    """Asks a referee about each of two turns."""

    last = 2

    def __init__(self):
        self.life = SingleUse()
        self.turns = 0

    async def initial_observation(self):
        self.life.start()
        return Observation(question("Your move?"))

    async def step(self, completion):
        self.life.require_active()
        self.turns += 1
        reward = await self.judged(completion.message.content)
        if self.turns == self.last:
            self.life.end()
        return StepResult(reward, self.turns == self.last, Observation(question(f"Move {self.turns}.")))

    async def judged(self, move):
        reply = await ask("referee", question(f"What is {self.turns} + 1?"))
        return float(len(reply.message.content))


@dataclass
class Group(EnvGroupBuilder):
    kind: type = Asking
    grader: Grader | None = None
    group_grader: GroupGrader | None = None
    env: str = "asking"
    task: str = "one"
    episodes: int = 3

    async def make_episode(self, number):
        return [self.kind()]


class InParallel(Asking):
    async def judged(self, move):
        replies = await asyncio.gather(*[ask("referee", question(f"What is {n} + 1?")) for n in range(3)])
        return float(sum(len(reply.message.content) for reply in replies))


class AwaitsLater(Asking):
    """Asks in the first turn, in a task, and awaits the answer in the second."""

    async def judged(self, move):
        if self.turns == 1:
            self.opinion = asyncio.create_task(ask("referee", question("What is 1 + 1?")))
            return 0.0
        return float(len((await self.opinion).message.content))

    async def close(self):
        if hasattr(self, "opinion"):
            self.opinion.cancel()
            await asyncio.wait([self.opinion])


class ForgetsFirstAnswer(Asking):
    """Asks in the first turn, in a task that it never awaits."""

    last = 6

    async def judged(self, move):
        if self.turns == 1:
            self.opinion = asyncio.create_task(ask("referee", question("What is 1 + 1?")))
        return 0.0


class Swallows(Asking):
    """Treats a cancellation as a missing answer."""

    async def judged(self, move):
        try:
            await ask("referee", question("Good?"))
        except asyncio.CancelledError:
            return 0.0
        return 1.0


class Marks(Grader):
    """Asks for a mark, and accepts only a digit."""

    async def grade(self, rollout):
        reply = await ask("grader", question("A mark from 0 to 9?"))
        ASKED.append((rollout.id, reply.message.content))
        if not reply.message.content.isdigit():
            raise GraderError(f"Expected a digit, got {reply.message.content!r}.")
        return Grade(float(reply.message.content))


class CarelessMarks(Grader):
    async def grade(self, rollout):
        return Grade(float((await ask("grader", question("A mark?"))).message.content))


class MarksAll(GroupGrader):
    async def grade_group(self, rollouts):
        marks = await asyncio.gather(*[ask("grader", question("A mark?")) for _ in rollouts])
        return {one.id: Grade(float(mark.message.content)) for one, mark in zip(rollouts, marks, strict=True)}


class ForgetsTheAnswer(Grader):
    async def grade(self, rollout):
        self.__class__.task = asyncio.create_task(ask("grader", question("A mark?")))
        return Grade(1.0)


def only(builder, **arguments):
    """The only violation, asserted to be one."""
    found = check_env(builder, **arguments)
    assert len(found) == 1, "\n".join(map(str, found)) or "nothing was found"
    return found[0]


@pytest.fixture(autouse=True)
def asked():
    ASKED.clear()


class SwallowsAfterQuestions(Asking):
    """Asks often, and then treats a cancellation as the end of a wait."""

    async def judged(self, move):
        for number in range(12):
            await ask("referee", question(f"What is {number} + 1?"))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return 1.0


def test_a_question_is_one_place_to_be_cancelled_at():
    """Few awaits of a play are tried, and many questions before an await do not hide it."""
    assert only(Group(SwallowsAfterQuestions)).rule == "cancellation"


@pytest.mark.parametrize("kind", [Asking, InParallel, AwaitsLater])
def test_environments_may_ask_in_a_check(kind):
    """A scripted policy answers every role from the prompt alone, so that two plays are the same."""
    assert [str(found) for found in check_env(Group(kind))] == []


def test_the_callers_policies_play_their_roles():
    """A policy that the caller gives for a role is used."""
    roles = {"grader": ScriptedReplies(lambda request: "7")}
    assert check_env(Group(grader=Marks()), roles=roles) == []
    assert {mark for _, mark in ASKED} == {"7"}
    assert check_env(Group(group_grader=MarksAll()), roles=roles) == []


def test_a_grader_that_is_called_twice_gets_the_same_answers():
    """A policy that draws its answers from the request's seed does not make a grader look random."""
    roles = {"grader": ScriptedReplies(lambda request: str(request.seed % 10))}
    assert check_env(Group(grader=Marks()), roles=roles) == []
    assert ASKED


def test_an_unreadable_answer_is_not_the_graders_fault():
    """A grader that clearly rejects an answer is right; the check asks for another policy."""
    violation = only(Group(grader=Marks()), roles={"grader": ScriptedReplies(lambda request: "splendid")})
    assert violation.rule == "answers"
    assert violation.message == (
        "`Marks.grade` could not use what the role 'grader' answered: "
        "GraderError(\"Expected a digit, got 'splendid'.\")"
    )
    assert violation.fix == "pass `roles={'grader': …}` to the check, a policy that answers as `Marks` expects"


def test_a_grader_that_fails_on_an_answer_is_at_fault():
    """The grader must raise an error that says what is wrong with the answer."""
    violation = only(Group(grader=CarelessMarks()), roles={"grader": ScriptedReplies(lambda request: "splendid")})
    assert violation.rule == "grader"
    assert violation.message.startswith("`CarelessMarks.grade` raised ValueError(")


def test_an_answerer_that_fails_is_reported_as_such():
    """A role that cannot be played is not a fault of the environment."""
    violation = only(Group(), roles={"referee": ScriptedReplies(lambda request: PolicyError("the server is gone"))})
    assert violation.rule == "answers"
    assert "`Asking.step` could not use what the role 'referee' answered: RoleError(" in violation.message
    assert "the server is gone" in violation.message


def test_an_env_that_asks_can_be_cancelled_while_waiting():
    """A cancellation that comes while an answer is awaited must propagate."""
    assert only(Group(Swallows)).rule == "cancellation"


def test_an_env_must_await_what_it_asks_in_an_earlier_turn():
    """An answer that no method awaits is reported, even if other turns follow the question."""
    assert only(Group(ForgetsFirstAnswer)).rule == "roles"


def test_a_grader_must_await_what_it_asks():
    """An answer that comes after the grade would not be recorded."""
    violation = only(Group(grader=ForgetsTheAnswer()))
    assert violation.rule == "roles"
    assert violation.message == ("`ForgetsTheAnswer` asked the role 'grader', and ended before the answer came")


@pytest.mark.parametrize("roles", [{"policy": ScriptedReplies(["a"])}, {"grader": "scripted:noisy"}])
def test_invalid_roles_are_the_callers_mistake(roles):
    """The role `policy` cannot be given, and a name is not a policy."""
    with pytest.raises((InputError, PolicyError), match="Expected"):
        check_env(Group(), roles=roles)
