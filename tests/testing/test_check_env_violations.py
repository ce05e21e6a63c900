import asyncio
import contextlib
import itertools
import random
from dataclasses import dataclass

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Grade, Observation, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError
from rolltrace.graders.grader import Grader
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Message

COUNTER = itertools.count()
SHARED = []


class Sound(Env):
    """An env without faults; each broken env below breaks one thing."""

    takes_any_completion = False
    last = 3

    def __init__(self):
        self.turns = None

    async def initial_observation(self):
        self.turns = 0
        return Observation([Message("user", "Begin.")])

    async def step(self, completion):
        if self.turns is None:
            raise EnvError("not started")
        if self.turns >= self.last:
            raise EnvError("already done")
        self.turns += 1
        return await self.result(completion)

    async def result(self, completion):
        return StepResult(0.5, self.turns == self.last, self.shown())

    def shown(self):
        return Observation([Message("user", f"Turn {self.turns}.")])


@dataclass
class Group(EnvGroupBuilder):
    kind: type = Sound
    env: str = "broken"
    task: str = "one"
    tags: tuple = ()
    episodes: int = 2
    seats: int = 1

    async def make_episode(self, number):
        return [self.kind() for _ in range(self.seats)]


# Return values


class TextReward(Sound):
    async def result(self, completion):
        return StepResult("1.0", self.turns == self.last, self.shown())


class HugeReward(Sound):
    async def result(self, completion):
        return StepResult(10**400, self.turns == self.last, self.shown())


class TextInRewardData(Sound):
    async def result(self, completion):
        return StepResult(1.0, self.turns == self.last, self.shown(), reward_data={"correct": "yes"})


class NestedMetrics(Sound):
    async def result(self, completion):
        return StepResult(1.0, self.turns == self.last, self.shown(), metrics={"tools": {"calls": 1}})


class ListAsExtra(Sound):
    async def result(self, completion):
        return StepResult(1.0, self.turns == self.last, self.shown(), extra=["reference"])


class TupleResult(Sound):
    async def result(self, completion):
        return self.shown(), 1.0, False, False, {}


class TextObservation(Sound):
    async def initial_observation(self):
        self.turns = 0
        return "Begin."


class DoneAsText(Sound):
    async def result(self, completion):
        return StepResult(1.0, "no" if self.turns < self.last else "yes", self.shown())


class Speechless(Sound):
    async def result(self, completion):
        return StepResult(1.0, False)


class Promptless(Sound):
    async def initial_observation(self):
        self.turns = 0
        return Observation([])


class OneMessageUnlisted(Sound):
    async def initial_observation(self):
        self.turns = 0
        return Observation({"role": "user", "content": "Begin."})


class UnreadableMessage(Sound):
    async def initial_observation(self):
        self.turns = 0
        return Observation([{"role": "user", "content": 4}])


class StopAsText(Sound):
    def shown(self):
        return Observation([Message("user", f"Turn {self.turns}.")], stop="###")


class NamelessTool(Sound):
    def shown(self):
        return Observation([Message("user", f"Turn {self.turns}.")], tools=[{"description": "Adds."}])


class ToolsAsDict(Sound):
    def shown(self):
        return Observation([Message("user", f"Turn {self.turns}.")], tools={"add": "Adds."})


class ReplacesAsText(Sound):
    def shown(self):
        return Observation([Message("user", f"Turn {self.turns}.")], replaces_history="no")


class NumberAsStopReason(Sound):
    async def result(self, completion):
        return StepResult(0.5, self.turns == self.last, self.shown(), stop_reason=3)


class UnawaitedStep(Sound):
    def step(self, completion):
        if self.turns is None or self.turns >= self.last:
            raise EnvError("not now")
        self.turns += 1
        return StepResult(0.5, self.turns == self.last, self.shown())


# Observations


class WholeHistory(Sound):
    async def initial_observation(self):
        self.history = [Message("system", "Be brief."), Message("user", "Begin.")]
        self.turns = 0
        return Observation(tuple(self.history))

    async def result(self, completion):
        self.history += [completion.message, Message("user", f"Turn {self.turns}.")]
        return StepResult(0.5, self.turns == self.last, Observation(tuple(self.history)))


class HistoryOfItsOwn(WholeHistory):
    """Returns its own messages, without the policy's."""

    async def result(self, completion):
        self.history.append(Message("user", f"Turn {self.turns}."))
        return StepResult(0.5, self.turns == self.last, Observation(tuple(self.history)))


class SystemAgain(WholeHistory):
    async def result(self, completion):
        return StepResult(0.5, self.turns == self.last, Observation(tuple(self.history)))


class Echo(Sound):
    async def result(self, completion):
        own = {"role": "assistant", "content": completion.message.content}
        return StepResult(0.5, self.turns == self.last, Observation([own, {"role": "user", "content": "Hm."}]))


class LiveHistory(WholeHistory):
    """Declares that it replaces the history, but returns the list that it keeps changing."""

    async def initial_observation(self):
        await super().initial_observation()
        return Observation(self.history)

    async def result(self, completion):
        await super().result(completion)
        return StepResult(0.5, self.turns == self.last, Observation(self.history, replaces_history=True))


class LiveState(Sound):
    def __init__(self):
        super().__init__()
        self.state = {"moves": []}

    async def result(self, completion):
        self.state["moves"].append(self.turns)
        return StepResult(0.5, self.turns == self.last, self.shown(), env_state=self.state)


class ClearsOnClose(Sound):
    def __init__(self):
        super().__init__()
        self.numbers = {"right": 1.0}

    async def result(self, completion):
        return StepResult(0.5, self.turns == self.last, self.shown(), reward_data=self.numbers)

    async def close(self):
        self.numbers.clear()


class Unseeded(Sound):
    async def initial_observation(self):
        self.turns = 0
        return Observation([Message("user", f"Say {random.random()}.")])


class MovingReward(Sound):
    async def result(self, completion):
        return StepResult(float(next(COUNTER)), self.turns == self.last, self.shown())


class MovingEnd(Sound):
    def __init__(self):
        super().__init__()
        self.last = 3 + next(COUNTER) % 2


# What is raised, swallowed and left behind


class NeedsStart(Sound):
    async def step(self, completion):
        if self.turns is not None and self.turns >= self.last:
            raise EnvError("already done")
        self.turns += 1  # a TypeError if it was not started
        return await self.result(completion)


class Endless(Sound):
    """Keeps answering after the end."""

    async def step(self, completion):
        if self.turns is None:
            raise EnvError("not started")
        self.turns += 1
        return StepResult(0.5, self.turns >= self.last, self.shown())


class BareError(Sound):
    async def step(self, completion):
        if self.turns is None or self.turns >= self.last:
            raise RuntimeError
        self.turns += 1
        return await self.result(completion)


class RaisesOnText(Sound):
    async def result(self, completion):
        raise KeyError("move")


class Exits(Sound):
    async def initial_observation(self):
        raise SystemExit(1)


class PickyOnePrompt(Sound):
    takes_any_completion = True
    last = 1

    async def result(self, completion):
        if not completion.termination.well_formed:
            raise ValueError("cannot read this")
        return StepResult(0.5, True)


class YesToAnyCompletion(Sound):
    takes_any_completion = "yes"


class ForgetfulObserver(Sound):
    async def observe(self, messages):
        return Observation([Message("user", "Noted.")])


class ObservesNothing(Sound):
    async def observe(self, messages):
        raise KeyError("messages")


class ClosesOnce(Sound):
    closed = False

    async def close(self):
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class ClosesStartedOnly(Sound):
    def __init__(self):
        super().__init__()
        self.connection = None

    async def initial_observation(self):
        self.connection = [1]
        return await super().initial_observation()

    async def close(self):
        self.connection.clear()


class SwallowsCancellation(Sound):
    async def result(self, completion):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await super().result(completion)


class CannotTell(Sound):
    async def result(self, completion):
        await asyncio.sleep(0)
        return await super().result(completion)

    def unfinished_step(self):
        raise KeyError("the floor")


class TellsLater(CannotTell):
    async def unfinished_step(self):
        return None


class TellsText(CannotTell):
    def unfinished_step(self):
        return "half a turn"


class DisguisesCancellation(Sound):
    async def initial_observation(self):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            raise EnvError("the server is gone") from error
        return await super().initial_observation()


class LeavesTaskOnCancellation(Sound):
    """Ends its task only without a cancellation, and has one only in its last turn."""

    async def result(self, completion):
        await asyncio.sleep(0)
        if self.turns < self.last:
            return await super().result(completion)
        work = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        work.cancel()
        return await super().result(completion)


class LeavesTask(Sound):
    async def initial_observation(self):
        self.heart = asyncio.create_task(asyncio.Event().wait())
        return await super().initial_observation()


class Waits(Sound):
    async def result(self, completion):
        await asyncio.Event().wait()


class WaitsStubbornly(Sound):
    async def result(self, completion):
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


class CancelsItself(Sound):
    async def initial_observation(self):
        raise asyncio.CancelledError


class Hostile:
    def __eq__(self, other):
        raise ZeroDivisionError("compared")

    __hash__ = None

    def __repr__(self):
        raise ZeroDivisionError("printed")


class HostileValues(Sound):
    async def result(self, completion):
        return StepResult(Hostile(), self.turns == self.last, self.shown())


BROKEN_ENVS = [
    (TextReward, "numbers", "the str '1.0' as `reward`", "make `reward` a number"),
    (HugeReward, "numbers", "as `reward`", "make `reward` a number"),
    (TextInRewardData, "numbers", "'yes' as `reward_data['correct']`", "put what is not a number into `extra`"),
    (NestedMetrics, "numbers", "metrics['tools']", "flat map from name to number"),
    (ListAsExtra, "types", "the list ['reference'] as `extra`", "make `extra` a dict"),
    (TupleResult, "types", "gave the tuple", "return a `StepResult`"),
    (TextObservation, "types", "'Begin.' where an observation belongs", "return an `Observation`"),
    (DoneAsText, "types", "'no' as `done`", "set `done` to True or False"),
    (Speechless, "types", "is not done but gave no observation", "return an `Observation` with every `StepResult`"),
    (Promptless, "types", "without any message", "at least one message"),
    (OneMessageUnlisted, "types", "as `messages`", "a list or tuple of messages"),
    (UnreadableMessage, "types", "expected text, got int", "make each message a `Message`"),
    (StopAsText, "types", "'###' as `stop`", "list or tuple of texts"),
    (NamelessTool, "types", "as a tool", "make `tools` a list of `ToolSpec`"),
    (ToolsAsDict, "types", "the dict {'add': 'Adds.'} as `tools`", "make `tools` a list of `ToolSpec`"),
    (ReplacesAsText, "types", "the str 'no' as `replaces_history`", "set `replaces_history` to True or False"),
    (NumberAsStopReason, "types", "the int 3 as `stop_reason`", "name the reason in a text"),
    (UnawaitedStep, "types", "is not `async def`", "write `async def step`"),
    (WholeHistory, "new-messages", "the policy's own message again", "or the whole prompt with `replaces_history"),
    (HistoryOfItsOwn, "new-messages", "already in the prompt", "return only what is new"),
    (SystemAgain, "new-messages", "already in the prompt", "return only what is new"),
    (Echo, "new-messages", "the policy's own message again", "return only what is new"),
    (LiveHistory, "unchanging", "the first observation", "return copies, such as `list(self.history)`"),
    (LiveState, "unchanging", "`env_state` of step 0", "return copies"),
    (ClearsOnClose, "unchanging", "`reward_data` of step 0", "return copies"),
    (Unseeded, "same-seed", "the first observation: `messages`", "take all randomness from the builder's seed"),
    (MovingReward, "same-seed", "step 0: `reward` is", "take all randomness"),
    (MovingEnd, "same-seed", "step 2: `done` is", "take all randomness"),
    (NeedsStart, "step-before-start", "TypeError", "saying that the environment has not been started"),
    (Endless, "step-after-done", "answered StepResult", "saying that the environment is already done"),
    (RaisesOnText, "plays", "KeyError('move')", "let `step` accept whatever the policy says"),
    (Exits, "plays", "SystemExit(1)", "let `initial_observation` return the first prompt"),
    (CancelsItself, "plays", "CancelledError without being cancelled", "return the first prompt without raising"),
    (PickyOnePrompt, "any-completion", "a completion that is cut", "or leave `takes_any_completion` False"),
    (YesToAnyCompletion, "types", "is 'yes'", "set `takes_any_completion` to True or False"),
    (ForgetfulObserver, "observe", "without the message that was put in", "or None where that is unsupported"),
    (ObservesNothing, "observe", "`ObservesNothing.observe` raised KeyError('messages')", "or return None"),
    (ClosesOnce, "close", "already closed", "do nothing the second time"),
    (ClosesStartedOnly, "close", "on an environment that was never started", "release only what was acquired"),
    (SwallowsCancellation, "cancellation", "went on when it was cancelled", "let `CancelledError` through"),
    (CannotTell, "types", "`unfinished_step` of `CannotTell` (style: text) raised", "return a `StepResult` or None"),
    (TellsLater, "types", "`unfinished_step` of `TellsLater` (style: text) is `async def`", "return a `StepResult`"),
    (TellsText, "types", "`unfinished_step` of `TellsText` (style: text) gave", "return a `StepResult`"),
    (DisguisesCancellation, "cancellation", "the server is gone", "let `CancelledError` through"),
    (LeavesTaskOnCancellation, "nothing-running", "after a cancellation", "in `finally` or in `close`"),
    (LeavesTask, "nothing-running", "running: Event.wait", "every task that the environment started"),
    (HostileValues, "numbers", "its repr raises ZeroDivisionError", "make `reward` a number"),
]  # fmt: skip


def only(builder, **arguments):
    """The only violation, asserted to be one."""
    found = check_env(builder, **arguments)
    assert len(found) == 1, "\n".join(map(str, found)) or "nothing was found"
    return found[0]


@pytest.mark.parametrize(("kind", "rule", "seen", "fix"), BROKEN_ENVS, ids=[row[0].__name__ for row in BROKEN_ENVS])
def test_a_broken_env_breaks_exactly_its_rule(kind, rule, seen, fix):
    """Each fault is reported once, under its rule, with what was seen and how to comply, and no other."""
    violation = only(Group(kind))
    assert violation.rule == rule
    assert seen in violation.message
    assert fix in violation.fix
    assert "\n" not in str(violation)


def test_the_sound_env_conforms():
    """The base of the broken envs has no fault."""
    assert check_env(Group(Sound)) == []


def test_errors_without_a_message_are_not_clear():
    """An error without a message is reported, before the start and after the end."""
    assert {found.rule for found in check_env(Group(BareError))} == {"step-before-start", "step-after-done"}


@pytest.mark.parametrize("kind", [Waits, WaitsStubbornly])
def test_an_env_that_never_stops_waiting_is_given_up(kind):
    """A hanging await ends the play, not the check, even if it ignores its cancellation."""
    violation = only(Group(kind, episodes=1), answers=["Hello."], seconds=0.05)
    assert violation.rule == "hangs"
    assert f"`{kind.__name__}.step` was still waiting after 0.05 s" in violation.message
    assert "every await in `step` ends" in violation.fix


def test_one_fault_does_not_hide_another():
    """All faults are found in one check."""

    class Everything(TextReward):
        async def result(self, completion):
            result = await super().result(completion)
            return StepResult(result.reward, result.done, Observation([completion.message]), metrics=[])

        async def close(self):
            raise OSError("no")

    found = check_env(Group(Everything))
    assert {violation.rule for violation in found} == {"pickles", "numbers", "new-messages", "close"}
    assert sum(violation.rule == "numbers" for violation in found) == 2


# Builders


class NeedsArgument(Sound):
    def __init__(self, board):
        super().__init__()


class RaisesWhenMade(Sound):
    def __init__(self):
        raise FileNotFoundError("board.json")


class WithoutStep(Env):
    async def initial_observation(self):
        return Observation([Message("user", "Begin.")])


class Reuses(Group):
    async def make_episode(self, number):
        SHARED[:] = SHARED or [Sound()]
        return SHARED


class Bare(Group):
    async def make_episode(self, number):
        return Sound()


class NotEnvs(Group):
    async def make_episode(self, number):
        return [object()]


class TooMany(Group):
    async def make_episode(self, number):
        return [Sound(), Sound()]


class OneForBothSeats(Group):
    async def make_episode(self, number):
        return [Sound()] * 2


class HoldsLambda(Group):
    check = None

    def __init__(self):
        super().__init__()
        self.check = lambda answer: 1.0


class ForgetsKind(Group):
    def __getstate__(self):
        return {**self.__dict__, "kind": Endless3}


class Endless3(Sound):
    last = 2


class ForgetsTask(Group):
    def __getstate__(self):
        return {**self.__dict__, "task": "another"}


class RaisesInProperty(Group):
    @property
    def seed(self):
        raise KeyError("seed")


class CleansOnce(Group):
    clean = False

    async def cleanup(self):
        if self.clean:
            raise RuntimeError("already clean")
        self.clean = True


class CannotClean(Group):
    async def cleanup(self):
        raise OSError("no server")


class RaisesForRole(Group):
    def role_of(self, seat):
        return {}[seat]


class LeavesServer(Group):
    server = None

    async def make_episode(self, number):
        self.server = self.server or asyncio.create_task(asyncio.Event().wait())
        return [Sound()]

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "server"}


class GraderClass(Group):
    grader = Grader


class UnpicklableGrader(Grader):
    def __init__(self):
        self.judge = lambda text: 1.0

    async def grade(self, rollout):
        return Grade(1.0)


class WithUnpicklableGrader(Group):
    grader = UnpicklableGrader()


class GradesByPosition(Group):
    async def grade_group(self, rollouts):
        return {str(position): Grade(1.0) for position, _ in enumerate(rollouts)}


class GradesWithNumbers(Group):
    async def grade_group(self, rollouts):
        return {rollout.id: 1.0 for rollout in rollouts}


class TripsOverFailures(Group):
    async def grade_group(self, rollouts):
        return {rollout.id: Grade(rollout.steps[-1].reward) for rollout in rollouts}


class GivesNoBuilder(Tasks):
    env = "none"

    def builder(self, number, *, episodes, seed):
        return None


BROKEN_BUILDERS = [
    (Group(env=""), "builder", "`env` of `Group` is ''", "set the builder's `env` to a text"),
    (Group(task=7), "builder", "`task` of `Group` is 7", "set the builder's `task` to a text"),
    (Group(tags="math"), "builder", "`tags` of `Group` is 'math'", "a tuple of texts"),
    (Group(episodes=0), "builder", "`episodes` of `Group` is 0", "at least 1"),
    (RaisesInProperty(), "builder", "`seed` of `RaisesInProperty` is not set", "a whole number or None"),
    (Group(NeedsArgument), "makes-envs", "TypeError", "without raising"),
    (Group(RaisesWhenMade), "makes-envs", "FileNotFoundError('board.json')", "without raising"),
    (Group(WithoutStep), "makes-envs", "step", "without raising"),
    (Reuses(), "makes-envs", "the same Sound object more than once", "make new environments at each call"),
    (OneForBothSeats(seats=2), "makes-envs", "the same Sound object more than once", "make new environments"),
    (Bare(), "makes-envs", "make_episode", "return a list of `Env` instances"),
    (NotEnvs(), "makes-envs", "[<object", "return a list of `Env` instances"),
    (TooMany(), "makes-envs", "gave 2 env(s) for 1 seat(s)", "exactly one `Env` per seat"),
    (HoldsLambda(), "pickles", "lambda", "hold only what pickles"),
    (ForgetsKind(), "pickles", "unpickled builder differs in step 1: `done`", "keep in the pickle all"),
    (ForgetsTask(), "pickles", "with another task", "keep all fields"),
    (CleansOnce(), "cleanup", "already clean", "do nothing the second time"),
    (CannotClean(), "cleanup", "`CannotClean.cleanup` raised OSError('no server')", "release only what was acquired"),
    (RaisesForRole(), "builder", "`RaisesForRole.role_of(0)` raised KeyError(0)", "name a role for every seat"),
    (LeavesServer(), "nothing-running", "after `cleanup`", "cancel and await in `cleanup`"),
    (GraderClass(), "grader", "Grader", "an instance of a `Grader`"),
    (WithUnpicklableGrader(), "grader", "lambda", "let it hold only what pickles"),
    (GradesByPosition(), "grade-group", "graded ['0', '1']", "use `rollout.id` as the key"),
    (GradesWithNumbers(), "grade-group", "1.0", "from rollout id to a `Grade`"),
    (TripsOverFailures(), "grade-group", "IndexError", "also failed ones"),
    (GivesNoBuilder(), "builder", "None is not an env group builder", "return an instance of an `EnvGroupBuilder`"),
]


@pytest.mark.parametrize(
    ("builder", "rule", "seen", "fix"),
    BROKEN_BUILDERS,
    ids=[f"{number}-{row[1]}" for number, row in enumerate(BROKEN_BUILDERS)],
)
def test_a_broken_builder_breaks_exactly_its_rule(builder, rule, seen, fix):
    """A builder's fault is reported once, under its rule, and never raised."""
    violation = only(builder)
    assert violation.rule == rule
    assert seen in violation.message
    assert fix in violation.fix
