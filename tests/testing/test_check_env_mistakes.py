"""Common mistakes, each with the sentence of `check_env` about it."""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Grade, Observation, StepResult
from rolltrace.errors import EnvError
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.policies.roles import ask
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message


class Sound(Env):
    """An env of two turns without faults; each mistake below changes one thing."""

    def __init__(self):
        self.turns = None

    async def initial_observation(self):
        self.turns = 0
        return Observation([Message("user", "Your move?")])

    async def step(self, completion):
        if self.turns is None or self.turns == 2:
            raise EnvError("not now: make a new environment, and start it")
        self.turns += 1
        return await self.move(completion)

    async def move(self, completion):
        return self.result(0.5)

    def result(self, reward, **data):
        return StepResult(reward, self.turns == 2, Observation([Message("user", f"Move {self.turns}.")]), **data)


@dataclass
class Group(EnvGroupBuilder):
    kind: type
    grader: Grader | None = None
    group_grader: GroupGrader | None = None
    env: str = "mistaken"
    task: str = "one"
    episodes: int = 3

    async def make_episode(self, number):
        return [self.kind()]


class TextAsReward(Sound):
    async def move(self, completion):
        return self.result("good")


class NoAnswerMatched(Sound):
    async def move(self, completion):
        return self.result(float("nan"))


class ReferenceInRewardData(Sound):
    async def move(self, completion):
        return self.result(1.0, reward_data={"reference": "42"})


class TextAsPrompt(Sound):
    async def initial_observation(self):
        self.turns = 0
        return "Your move?"


class GymTuple(Sound):
    async def move(self, completion):
        return "Your move?", 1.0, True, False, {}


class NothingToShow(Sound):
    async def move(self, completion):
        return StepResult(0.0, False)


class NotAsync(Sound):
    def initial_observation(self):
        self.turns = 0
        return Observation([Message("user", "Your move?")])


class WholeHistory(Sound):
    async def initial_observation(self):
        self.turns = 0
        self.history = [Message("user", "Your move?")]
        return Observation(list(self.history))

    async def move(self, completion):
        self.history += [completion.message, Message("user", "And now?")]
        return StepResult(0.0, self.turns == 2, Observation(list(self.history)))


class LiveBoard(Sound):
    def __init__(self):
        super().__init__()
        self.board = []

    async def move(self, completion):
        self.board.append(self.turns)
        return self.result(0.0, env_state={"board": self.board})


class Unseeded(Sound):
    async def initial_observation(self):
        self.turns = 0
        return Observation([Message("user", f"Say {random.random()}.")])


class UnseededState(Sound):
    async def move(self, completion):
        return self.result(0.0, env_state={"dice": {"first": random.random()}})


class TrustsThePolicy(Sound):
    async def move(self, completion):
        return self.result(float(int(completion.message.content)))


class NeverOver(Sound):
    async def step(self, completion):
        if self.turns is None:
            raise EnvError("not started")
        self.turns += 1
        return StepResult(0.0, self.turns >= 2, Observation([Message("user", f"Move {self.turns}.")]))


class Swallows(Sound):
    async def move(self, completion):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await super().move(completion)


class Forgets(Sound):
    async def initial_observation(self):
        self.pulse = asyncio.create_task(asyncio.Event().wait())
        return await super().initial_observation()


class AsksAndGoes(Sound):
    async def move(self, completion):
        self.opinion = asyncio.create_task(ask("judge", [Message("user", "Was it good?")]))
        return self.result(0.0)


class AsksWhenMade(Group):
    async def make_episode(self, number):
        await ask("author", [Message("user", "Think of a task.")])
        return [Sound()]


class HoldsFile(Group):
    def __init__(self):
        super().__init__(Sound)
        self.file = Path(__file__).open()  # noqa: SIM115 - that is the mistake

    def __del__(self):
        self.file.close()


class NumberAsGrade(Grader):
    async def grade(self, rollout):
        return 1.0


class DividesByNothing(Grader):
    async def grade(self, rollout):
        return Grade(float("inf"))


class MoodyGrader(Grader):
    async def grade(self, rollout):
        return Grade(random.random())


class Scribbles(Grader):
    async def grade(self, rollout):
        rollout.steps[0].env_state["seen"] = True
        return Grade(1.0)


class ByPlace(GroupGrader):
    async def grade_group(self, rollouts):
        return {str(place): Grade(1.0) for place, _ in enumerate(rollouts)}


class FirstIsBest(GroupGrader):
    async def grade_group(self, rollouts):
        return {rollout.id: Grade(float(place == 0)) for place, rollout in enumerate(rollouts)}


class LastWords(GroupGrader):
    async def grade_group(self, rollouts):
        done = [rollout for rollout in rollouts if rollout.status == "ok"]
        return {rollout.id: Grade(rollout.steps[-1].reward) for rollout in done}


class GivesUp(GroupGrader):
    async def grade_group(self, rollouts):
        return {rollout.id: ValueError("no idea") for rollout in rollouts}


MISTAKES = {
    "a text as reward": (
        Group(TextAsReward),
        "numbers",
        "step 0 of `TextAsReward` (style: text) gave the str 'good' as `reward`",
        "make `reward` a number, and put what is not one into `extra`",
    ),
    "a reward that is NaN": (
        Group(NoAnswerMatched),
        "numbers",
        "step 0 of `NoAnswerMatched` (style: text) gave the float nan as `reward`",
        "make `reward` a finite number: one that is not spoils the mean and the advantages of its whole group",
    ),
    "the reference among the numbers": (
        Group(ReferenceInRewardData),
        "numbers",
        "step 0 of `ReferenceInRewardData` (style: text) gave the str '42' as `reward_data['reference']`",
        "make `reward_data` a flat map from name to number, and put what is not a number into `extra`",
    ),
    "a text as prompt": (
        Group(TextAsPrompt),
        "types",
        ("initial_observation of `TextAsPrompt` (style: text) gave the str 'Your move?' where an observation belongs"),
        "return an `Observation`",
    ),
    "a tuple, as other libraries have it": (
        Group(GymTuple),
        "types",
        "step 0 of `GymTuple` (style: text) gave the tuple ('Your move?', 1.0, True, False, {})",
        "return a `StepResult` from `step`",
    ),
    "not done, and nothing to see": (
        Group(NothingToShow),
        "types",
        "step 0 of `NothingToShow` (style: text) is not done but gave no observation",
        "return an `Observation` with every `StepResult` whose `done` is False",
    ),
    "no async": (
        Group(NotAsync),
        "types",
        "`NotAsync.initial_observation` is not `async def`: it returned its Observation at once",
        "write `async def initial_observation`",
    ),
    "the whole history": (
        Group(WholeHistory),
        "new-messages",
        "the observation of step 0 of `WholeHistory` (style: text) contains the policy's own message again",
        "return only what is new, or the whole prompt with `replaces_history=True`",
    ),
    "state that goes on changing": (
        Group(LiveBoard),
        "unchanging",
        (
            "`env_state` of step 0 of `LiveBoard` changed after it was returned, from {'board': [1]} to {'board': "
            "[1, 2]}"
        ),
        "return copies, such as `list(self.history)` or `dict(self.state)`, of whatever is changed later",
    ),
    "an answer that is not a number": (
        Group(TrustsThePolicy),
        "plays",
        (
            'step of `TrustsThePolicy` (style: text) raised ValueError("invalid literal for int() with base 10: '
            "'Turn 1: I am not sure yet.'\")"
        ),
        "let `step` accept whatever the policy says, and penalize it in the reward",
    ),
    "a cancellation that is swallowed": (
        Group(Swallows),
        "cancellation",
        "step of `Swallows` (style: text) went on when it was cancelled at an await",
        (
            "let `CancelledError` through: clean up in `finally`, raise it again where it is caught, and bound waits "
            "with `asyncio.timeout`, because `asyncio.wait_for` can swallow it before Python 3.12"
        ),
    ),
    "a task that is never ended": (
        Group(Forgets),
        "nothing-running",
        "after `close` after a play 1 task(s) were still running: Event.wait",
        "cancel and await, in `finally` or in `close`, every task that the environment started",
    ),
    "a question whose answer is not awaited": (
        Group(AsksAndGoes),
        "roles",
        "`AsksAndGoes` asked the role 'judge', and ended before the answer came",
        "await every `ask` before `step`, `close` or the grade returns: no record holds a later answer",
    ),
    "a question before there is a rollout": (
        AsksWhenMade(Sound),
        "makes-envs",
        (
            "`AsksWhenMade.make_episode(0)` raised PolicyError(\"No policy plays the role 'author' here: ask() works "
            'while a Runner plays, or inside `with with_roles(policy):`.")'
        ),
        "let `make_episode` make its environments without raising",
    ),
    "an open file in the builder": (
        HoldsFile(),
        "pickles",
        "`HoldsFile` cannot be pickled: TypeError(\"cannot pickle '_io.TextIOWrapper' object\")",
        (
            "define the builder's class at the top of a module, hold only what pickles, and make the rest in "
            "`make_episode`"
        ),
    ),
    "a bare number as grade": (
        Group(Sound, NumberAsGrade()),
        "grader",
        "`NumberAsGrade.grade` gave 1.0 where a grade belongs",
        "return `Grade(reward=…)` for one rollout, and a dict from rollout id to a `Grade` for a group",
    ),
    "a grade without bounds": (
        Group(Sound, DividesByNothing()),
        "grader",
        "`DividesByNothing.grade` gave a grade whose `reward` is inf",
        "make a grade's `reward` a finite number, and raise `GraderError` if there is no grade",
    ),
    "a grader that writes into the record": (
        Group(Sound, Scribbles()),
        "grader",
        "`Scribbles.grade` changed the rollout that it was given",
        "let `grade` copy what it wants to change, such as `dict(rollout.task_data)`: a record is for reading",
    ),
    "a group graded by what comes first": (
        Group(Sound, group_grader=FirstIsBest()),
        "grade-group",
        "`FirstIsBest.grade_group` gave a rollout 1, and 0 when the same rollouts came in another order",
        (
            "grade by what is in a rollout, never by its place in a list: build the grades in one pass over "
            "`rollout.id`, sort by `rollout.index` where a fixed order is needed, and leave failed members out "
            "before anything is lined up"
        ),
    ),
    "a member that has no steps": (
        Group(Sound, group_grader=LastWords()),
        "grade-group",
        "`LastWords.grade_group` raised IndexError('tuple index out of range')",
        "let `grade_group` take any rollouts, also failed ones without a reward and those without steps",
    ),
    "a group whose grader gives up": (
        Group(Sound, group_grader=GivesUp()),
        "grade-group",
        (
            "`GivesUp.grade_group` gave ValueError('no idea') in place of a grade, for a rollout that was played to "
            "an end"
        ),
        (
            "grade every rollout whose status is `ok`; where the grade depends on what others answer, pass `roles` "
            "to the check that answer as the grader expects"
        ),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_one_helpful_sentence(mistake):
    """The sentence names the method, what was seen, and how to do it right; there is no other finding."""
    builder, rule, message, fix = MISTAKES[mistake]
    assert [str(found) for found in check_env(builder)] == [f"{rule}: {message}; {fix}."]


CHANCES = {
    Unseeded: ("two plays with the same answers differ in the first observation: `messages` are", "Say 0."),
    UnseededState: ("two plays with the same answers differ in step 0: `env_state['dice']['first']` is 0.", "then 0."),
    NeverOver: ("`NeverOver.step` after `done` answered StepResult(", "observation=Observation("),
    MoodyGrader: ("`MoodyGrader.grade` graded one rollout in two ways: `reward` is 0.", "then 0."),
    ByPlace: ("`ByPlace.grade_group` graded ['0', '1', '2'], of ['", ""),
}
SEEDED = "take all randomness from the builder's seed and the episode's number, with a separate `random.Random`"
FIXES = {
    Unseeded: SEEDED,
    UnseededState: SEEDED,
    NeverOver: (
        "call `require_active()` of a `SingleUse` at the start of `step`, or raise an `EnvError` there, saying that "
        "the environment is already done"
    ),
    MoodyGrader: "let `grade` depend on the rollout and on what others answer, and on nothing else",
    ByPlace: "use `rollout.id` as the key, and grade every rollout whose status is `ok`",
}


@pytest.mark.parametrize("mistake", CHANCES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_that_differs_each_time_is_reported_with_the_difference(mistake):
    """If the values differ each time, the sentence shows those of this time."""
    if issubclass(mistake, Env):
        builder = Group(mistake)
    elif issubclass(mistake, Grader):
        builder = Group(Sound, mistake())
    else:
        builder = Group(Sound, group_grader=mistake())
    [found] = check_env(builder)
    begins, contains = CHANCES[mistake]
    assert found.message.startswith(begins)
    assert contains in found.message
    assert found.fix == FIXES[mistake]


def test_what_the_mistakes_are_made_of_is_sound():
    """Without its mistake, each of them passes."""
    assert check_env(Group(Sound)) == []
