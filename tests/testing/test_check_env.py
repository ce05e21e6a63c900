import asyncio
import contextlib
import inspect
import random
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Grade, Observation, StepResult
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter, MessageStepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError, InputError
from rolltrace.graders.grader import Grader
from rolltrace.policies.policy import Completion
from rolltrace.testing.check_env import Rule, Violation, check_env, check_env_async
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolSpec

pytestmark = pytest.mark.core

WHOLE = {"type": "integer"}
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "check-env.md"


class Strict(Env):
    """Tracks whether it was started, and whether it is over."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.turns = None
        self.over = False

    def begin(self):
        self.turns = 0

    def answer_turn(self, last):
        if self.turns is None:
            raise EnvError("step came before initial_observation")
        if self.over:
            raise EnvError("step came after the env was done")
        self.turns += 1
        self.over = self.turns >= last


class OnePrompt(Strict):
    takes_any_completion = True

    async def initial_observation(self):
        self.begin()
        return Observation([{"role": "user", "content": f"Say {self.rng.random()}."}])

    async def step(self, completion):
        self.answer_turn(1)
        return StepResult(float("1" in completion.message.content), True, reward_data={"right": True, "turns": 1})


class NumpyNumbers(OnePrompt):
    async def step(self, completion):
        import numpy

        await super().step(completion)
        return StepResult(numpy.float32(0.5), numpy.bool_(True), reward_data={"turns": numpy.int64(1)})


class Conversation(Strict):
    async def initial_observation(self):
        self.begin()
        await asyncio.sleep(0)
        return Observation([Message("system", "Be brief."), Message("user", "Your move?")], stop=["###"])

    async def step(self, completion):
        self.answer_turn(5)
        await asyncio.sleep(0)
        return StepResult(self.rng.random(), self.over, Observation([Message("user", "Your move?")]))

    async def observe(self, messages):
        return Observation(list(messages))


class Windowed(Conversation):
    """Shows only the last messages, as a new list each time."""

    async def initial_observation(self):
        self.history = [{"role": "user", "content": "Begin."}]
        self.begin()
        return Observation(list(self.history))

    async def step(self, completion):
        self.answer_turn(5)
        self.history.append({"role": "assistant", "content": completion.message.content})
        self.history.append({"role": "user", "content": "Go on."})
        return StepResult(0, self.over, Observation(self.history[-3:], replaces_history=True))


class SameWords(Strict):
    """Says the same at each turn, which is not the whole history."""

    async def initial_observation(self):
        self.begin()
        return Observation([Message("user", "A board."), Message("user", "Your move?")])

    async def step(self, completion):
        self.answer_turn(3)
        return StepResult(0, self.over, Observation([Message("user", "A board."), Message("user", "Your move?")]))


class OneList(MessageEnv):
    """Keeps one history, changes it in place and returns it whole."""

    def __init__(self, seed):
        self.history = [{"role": "user", "content": f"Begin with {seed}."}]

    async def initial_observation(self):
        return self.history

    async def step(self, message):
        self.history[0]["content"] += " Again."
        self.history += [message, {"role": "user", "content": "Go on."}]
        return MessageStepResult(reward=1.0, episode_done=len(self.history) > 6, next_messages=self.history)


class OneListAdapter(MessageEnvAdapter):
    def __init__(self, seed):
        super().__init__(OneList(seed))


class ToolLike(Strict):
    """Works in a background task that it ends when it is cancelled or closed."""

    tools = (
        ToolSpec("add", "Adds.", FrozenMap.of({"type": "object", "properties": {"a": WHOLE, "b": WHOLE}})),
        {"name": "negate", "description": "Negates.", "parameters": {"type": "object", "properties": {"a": WHOLE}}},
    )

    def __init__(self, seed=0):
        super().__init__(seed)
        self.heart = None

    async def initial_observation(self):
        self.begin()
        self.heart = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        return Observation([Message("user", "Add.")], tools=self.tools)

    async def step(self, completion):
        self.answer_turn(4)
        calls = completion.message.tool_calls
        answers = await asyncio.gather(*[self.answer(call) for call in calls])
        answers = answers or [Message("user", "Use the tool.")]
        return StepResult(float(len(calls)), self.over, Observation(answers, tools=self.tools))

    async def answer(self, call):
        await asyncio.sleep(0)
        assert call.arguments == {"add": '{"a":1,"b":1}', "negate": '{"a":1}'}[call.name]
        return Message("tool", "2", tool_call_id=call.id)

    async def close(self):
        if self.heart is not None:
            self.heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.heart
            self.heart = None


class Table:
    def __init__(self, seats, last):
        self.seats = seats
        self.last = last
        self.moves = 0
        self.modified_at = asyncio.Condition()

    async def turn_of(self, seat):
        async with self.modified_at:
            await self.modified_at.wait_for(lambda: self.moves % self.seats == seat or self.moves >= self.last)

    async def move(self):
        async with self.modified_at:
            self.moves += 1
            self.modified_at.notify_all()


class Player(Strict):
    """Moves when it is its turn, and waits until it is again."""

    def __init__(self, table, seat):
        super().__init__()
        self.table = table
        self.seat = seat

    async def initial_observation(self):
        await self.table.turn_of(self.seat)
        self.begin()
        return Observation([Message("user", f"You are {self.seat}, after {self.table.moves} moves.")])

    async def step(self, completion):
        self.answer_turn(1_000)
        await self.table.move()
        await self.table.turn_of(self.seat)
        self.over = self.table.moves >= self.table.last
        shown = Observation([Message("user", f"{self.table.moves} moves were made.")])
        return StepResult(1.0, self.over, shown)


@dataclass
class Group(EnvGroupBuilder):
    kind: type[Env]
    env: str = "sample"
    task: str = "one"
    tags: tuple[str, ...] = ("test",)
    episodes: int = 2
    seed: int | None = 7

    async def make_episode(self, number):
        return [self.kind(self.seed)]


@dataclass
class Game(EnvGroupBuilder):
    last: int
    env: str = "game"
    task: str = "one"
    episodes: int = 2
    seats: int = 2

    async def make_episode(self, number):
        table = Table(self.seats, self.last)
        return [Player(table, seat) for seat in range(self.seats)]


class Length(Grader):
    async def grade(self, rollout):
        return Grade(float(len(rollout.messages)))


class Graded(Group):
    grader = Length()

    async def grade_group(self, rollouts):
        best = max(rollout.reward_so_far for rollout in rollouts)
        return {
            rollout.id: Grade(float(rollout.reward_so_far == best)) for rollout in rollouts if rollout.status == "ok"
        }


CONFORMING = {
    "one prompt": Group(OnePrompt),
    "conversation": Group(Conversation),
    "the same words at each turn": Group(SameWords),
    "windowed history": Group(Windowed),
    "one list, changed in place, behind the adapter": Group(OneListAdapter),
    "tools and a background task": Group(ToolLike),
    "game that ends": Game(last=5),
    "game that outlasts the check": Game(last=1_000),
    "graded": Graded(Conversation),
}


@pytest.mark.parametrize("kind", CONFORMING)
def test_conforming_envs_have_no_violations(kind):
    """An environment that keeps the contract passes, whatever its kind."""
    assert [str(found) for found in check_env(CONFORMING[kind])] == []


def test_numpy_numbers_are_numbers():
    """Scalars of numpy are accepted as reward, as data and as `done`."""
    pytest.importorskip("numpy")
    assert check_env(Group(NumpyNumbers)) == []


SAID = []


class Recording(OnePrompt):
    async def step(self, completion):
        SAID.append(completion)
        return await super().step(completion)


@pytest.fixture
def said():
    SAID.clear()
    return SAID


@pytest.mark.parametrize(
    "answers",
    [
        "Answer: 9",
        ["Answer: 9"],
        [Message("assistant", "Answer: 9")],
        [Completion(message=Message("assistant", "Answer: 9"))],
        lambda messages, tools: f"Answer: {9 if messages and not tools else 0}",
    ],
    ids=["text", "texts", "messages", "completions", "function"],
)
def test_answers_are_what_the_caller_gives(answers, said):
    """The environment gets the caller's answers, in any accepted form."""
    assert check_env(Group(Recording), answers=answers) == []
    assert said[0] == Completion(message=Message("assistant", "Answer: 9"))


def test_answers_that_fail_are_named(said):
    """A function of the caller that raises, or returns something else, is reported, not raised."""
    [raising] = check_env(Group(Recording), answers=lambda messages, tools: 1 / 0)
    [wrong] = check_env(Group(Recording), answers=lambda messages, tools: 4)
    assert raising.rule == wrong.rule == "answers"
    assert "ZeroDivisionError" in raising.message
    assert "got int" in wrong.message


@pytest.mark.parametrize("arguments", [{"answers": 4}, {"answers": []}, {"answers": [4]}, {"turns": 0}, {"seconds": 0}])
def test_wrong_arguments_are_the_callers_mistake(arguments):
    """Arguments that make no check possible are an input error that says what was expected."""
    with pytest.raises(InputError, match="Expected"):
        check_env(Group(OnePrompt), **arguments)


class Counting(MessageEnv):
    """A message env of one turn, made with an argument."""

    def __init__(self, goal: int = 3):
        self.goal = goal
        self.history = []

    async def initial_observation(self):
        self.history.append({"role": "user", "content": f"Say {self.goal}."})
        return self.history

    async def step(self, message):
        self.history.append(message)
        right = str(self.goal) in message["content"]
        return MessageStepResult(reward=float(right), episode_done=True, next_messages=self.history)


class Forgetful(Env):
    """Breaks two rules: it can be stepped before its start and after its end."""

    async def initial_observation(self):
        return Observation([Message("user", "Say hello.")])

    async def step(self, completion):
        return StepResult(0.0, done=True)


class ForgetfulGroup(EnvGroupBuilder):
    env = task = "forgetful"

    async def make_episode(self, number):
        return [Forgetful()]


class ForgetfulTasks(Tasks):
    env = "forgetful"
    count = 2

    def __init__(self, which: int = 1):
        self.which = which

    def builder(self, number, *, episodes, seed):
        if number != self.which:
            raise LookupError("another task")
        return ForgetfulGroup()


def make_tasks():
    return ForgetfulTasks(0)


def make_forgetful(noise: int = 0) -> Forgetful:
    return Forgetful()


FORGETFUL = {
    "env class": (Forgetful, {}),
    "builder": (ForgetfulGroup(), {}),
    "builder class": (ForgetfulGroup, {}),
    "tasks": (ForgetfulTasks(), {"task": 1}),
    "tasks class": (ForgetfulTasks, {"args": {"which": "0"}}),
    "function that returns tasks": (make_tasks, {}),
    "function that returns an env": (make_forgetful, {"args": {"noise": 1}}),
}


@pytest.mark.parametrize("form", FORGETFUL)
def test_whatever_can_be_run_can_be_checked(form):
    """Every form that `rolltrace run` accepts is played, and its violations are found."""
    env, arguments = FORGETFUL[form]
    assert [found.rule for found in check_env(env, **arguments)] == ["step-after-done", "step-before-start"]


def test_a_name_can_be_checked(tmp_path, monkeypatch):
    """A built-in name, and `package.module:name` of a user's own."""
    (tmp_path / "own_env.py").write_text(f"{HEAD}{inspect.getsource(Forgetful)}{inspect.getsource(Counting)}")
    monkeypatch.syspath_prepend(tmp_path)
    assert check_env("arithmetic", args={"difficulty": "2"}, task=5, seed=9) == []
    assert check_env("own_env:Counting", args={"goal": "4"}) == []
    assert len(check_env("own_env:Forgetful")) == 2


HEAD = "from rolltrace import Env, Message, MessageEnv, MessageStepResult, Observation, StepResult\n\n\n"


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        (None, {}, "Expected a Tasks, EnvGroupBuilder"),
        (4, {}, "got int"),
        (Forgetful(), {}, "an env plays one rollout only"),
        (ForgetfulGroup(), {"args": {"size": 1}}, "Expected no arguments"),
        ("nope", {}, "There is no environment 'nope'"),
        ("arithmetic", {"args": {"colour": 1}}, "colour"),
        (ForgetfulTasks(), {"task": 2}, "from 0 to 1, got 2"),
        ("arithmetic", {"task": -1}, "0 or more, got -1"),
    ],
)
def test_what_cannot_be_run_cannot_be_checked(env, arguments, said):
    """The error is the caller's mistake, with the message of `rolltrace run`."""
    with pytest.raises(InputError, match=re.escape(said)):
        check_env(env, **arguments)


async def test_check_env_works_inside_a_running_loop():
    """A notebook has a running loop; the check runs its own."""
    assert check_env(Group(ToolLike)) == []


async def test_the_async_core_leaves_no_task_of_its_own():
    """The check ends every task that it started."""
    before = asyncio.all_tasks()
    assert await check_env_async(Game(last=1_000)) == []
    assert asyncio.all_tasks() == before


class Endless(Conversation):
    async def step(self, completion):
        WAITING.set()
        await asyncio.Event().wait()


WAITING = asyncio.Event()


async def test_a_cancelled_check_leaves_nothing_running():
    """A caller that cancels the check finds no task left in its loop."""
    before = asyncio.all_tasks()
    check = asyncio.create_task(check_env_async(Group(Endless)))
    await WAITING.wait()
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert asyncio.all_tasks() == before


def test_a_violation_reads_as_one_sentence():
    """A violation has the rule, what was seen, and how to comply."""
    assert str(Violation("numbers", "step 0 gave a str", "make it a number")) == (
        "numbers: step 0 gave a str; make it a number."
    )


def test_the_code_of_the_guide_works(tmp_path):
    """The guide's code runs as shown, and prints what the guide says."""
    text = GUIDE.read_text(encoding="utf-8")
    code, output = ("".join(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)) for kind in ("python", "text"))
    script = tmp_path / "guess.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, "-X", "utf8", str(script)]
    assert subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout == output


def test_the_commands_of_the_guide_work(tmp_path):
    """The commands that the guide shows print what it shows."""
    text = GUIDE.read_text(encoding="utf-8")
    [block] = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE)
    assert len(shown) == 2
    for command, printed in shown:
        words = [sys.executable, "-X", "utf8", "-m", *shlex.split(command)]
        ran = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, encoding="utf-8")
        assert ran.stdout == printed


def test_the_guide_lists_every_rule():
    """The guide documents every rule."""
    text = GUIDE.read_text(encoding="utf-8")
    assert [rule for rule in Rule if f"`{rule}`" not in text] == []
