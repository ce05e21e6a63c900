"""A recorded group that is played again: what is compared, what is left out, and what is found."""

import asyncio
import random

import msgspec
import pytest
from msgspec.structs import replace

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.envs.tools import ToolResult
from rolltrace.errors import ContextOverflowError, PolicyError, RoleError, ToolError
from rolltrace.graders.grader import Grader
from rolltrace.jobs.plan import Plan, make_runner
from rolltrace.jobs.replay_compare import ReplayDifference, compare_rollout
from rolltrace.jobs.replay_group import CompareSettings, ReplayedGroup
from rolltrace.policies.roles import ask
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.strategies import FailFast
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolCall, ToolSpec
from rolltrace.trace.score import Grade, GroupKey
from rolltrace.trace.stop_reasons import Status
from stage import Stage, called, never

KEY = GroupKey("train", 0, "stage", "task")
SETTINGS = CompareSettings(also=(), tolerance=1e-9, has_calls=True, redaction=None)
REPLIES = ScriptedReplies(lambda request: f"answer {request.step} of {request.identity.index}")


def question(turn):
    return f"Question {turn}?"


def length(turn, text):
    return float(len(text))


class Quiz(Env):
    """Asks questions; `score` gives the reward of each answer, after asking `role` what it thinks."""

    def __init__(self, turns=3, ask_about=question, score=length, role=None, tools=(), fails=None):
        self.turns, self.ask_about, self.score, self.role, self.tools = turns, ask_about, score, role, tools
        self.fails = fails
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("system", "Be brief.\nBe right."), self._question()], tools=self.tools)

    async def step(self, completion):
        if self.fails is not None:
            await self.fails(self.turn)
        reward = self.score(self.turn, completion.message.content)
        if self.role is not None:
            said = await ask(self.role, [Message("user", f"Is {completion.message.content!r} right?")])
            reward += len(said.message.content)
        self.turn += 1
        return StepResult(
            reward,
            self.turn >= self.turns,
            Observation([self._question()], tools=self.tools),
            reward_data={"length": reward},
            extra={"turn": self.turn},
        )

    def _question(self):
        return Message("user", self.ask_about(self.turn))


async def record(builder, policy=REPLIES, plan=Plan()):
    """The group as it was recorded, in memory."""
    sink = MemorySink()
    await make_runner(plan, policy, {}, sink).play_group(builder, KEY)
    own = {rollout.id: [score for score in sink.scores if score.rollout == rollout.id] for rollout in sink.rollouts}
    rollouts = sorted(sink.rollouts, key=lambda rollout: (rollout.index, rollout.attempt))
    score = next((score for score in sink.scores if score.name == "group_grade"), None)
    return ReplayedGroup(KEY, builder, [rollout.with_scores(own[rollout.id]) for rollout in rollouts], score)


async def replay(recorded, make=None, builder=None, plan=Plan(), **settings):
    """The comparisons of a replay, perhaps with another env."""
    builder = builder or Stage(make or recorded.builder.make, episodes=recorded.builder.episodes)
    settings = msgspec.structs.replace(SETTINGS, **settings)
    return await recorded._replace(builder=builder).replay(plan, settings)


def changed_formula(turn, text):
    return len(text) * (0.5 if turn else 1.0)


def changed_question(turn):
    return "Question 1, in other words?" if turn == 1 else question(turn)


def hidden_random(turn):
    return f"Question {turn}? {random.random() if turn == 2 else ''}"


LOOK = ToolSpec("look", "Looks.", FrozenMap.of({"type": "object"}))
CHANGES = {
    "formula": (
        lambda number: Quiz(score=changed_formula),
        [(1, "reward", 13.0, 6.5), (1, "reward_data.length", 13.0, 6.5)],
    ),
    "prompt": (
        lambda number: Quiz(ask_about=changed_question),
        [(1, "prompt[3].content", "Question 1?", "Question 1, in other words?")],
    ),
    "tools": (lambda number: Quiz(tools=[LOOK]), [(0, "tools.look", None, LOOK)]),
    "ends sooner": (lambda number: Quiz(turns=2), [(1, "stop_reason", None, "completed")]),
    "goes on": (lambda number: Quiz(turns=4), [(2, "stop_reason", "completed", None)]),
    "last message": (
        lambda number: Quiz(ask_about=lambda turn: "Over." if turn == 3 else question(turn)),
        [(2, "final[7].content", "Question 3?", "Over.")],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_shown_at_its_first_step(change):
    """The first difference of each rollout is the change itself, with the step, the field and both values."""
    make, expected = CHANGES[change]
    recorded = await record(Stage(lambda number: Quiz(), episodes=2))
    assert [one.comparison.differences for one in await replay(recorded)] == [[], []]
    for compared in await replay(recorded, make):
        first = [msgspec.structs.astuple(difference) for difference in compared.comparison.differences]
        assert first[: len(expected)] == expected
        assert compared.comparison.left_out is None


async def test_a_hidden_random_call_is_found():
    """An env that uses the global random numbers differs from its own record, first where it uses them."""
    recorded = await record(Stage(lambda number: Quiz(ask_about=hidden_random)))
    [compared] = await replay(recorded)
    [difference] = compared.comparison.differences
    assert (difference.step, difference.field) == (2, "prompt[5].content")
    assert difference.recorded != difference.replayed


async def test_a_message_that_differs_is_reported_once():
    """Later prompts repeat the message, and the report does not."""
    recorded = await record(Stage(lambda number: Quiz()))
    [compared] = await replay(recorded, lambda number: Quiz(ask_about=lambda turn: f"{question(turn)} Now."))
    assert [difference.field for difference in compared.comparison.differences] == [
        "prompt[1].content", "prompt[3].content", "prompt[5].content", "final[7].content",
    ]  # fmt: skip
    assert compared.steps == 3


async def test_other_fields_are_compared_if_they_are_named():
    """`extra` may have times, so that a difference in it counts only on request."""

    class Later(Quiz):
        async def step(self, completion):
            return msgspec.structs.replace(await super().step(completion), extra={"turn": -1})

    recorded = await record(Stage(lambda number: Quiz(turns=1)))
    [plain] = await replay(recorded, lambda number: Later(turns=1))
    [named] = await replay(recorded, lambda number: Later(turns=1), also=("extra",))
    assert plain.comparison.differences == []
    assert named.comparison.differences == [ReplayDifference(0, "extra.turn", 1, -1)]


@pytest.mark.parametrize(("factor", "count"), [(1 + 1e-12, 0), (1 + 1e-6, 3)])
async def test_the_last_digits_of_numbers_do_not_count(factor, count):
    """Rounding on another machine is no difference; anything larger is."""
    recorded = await record(Stage(lambda number: Quiz(turns=1)))
    [compared] = await replay(recorded, lambda number: Quiz(turns=1, score=lambda turn, text: len(text) * factor))
    assert len(compared.comparison.differences) == count


async def test_fields_of_the_record_are_compared_one_by_one():
    """A reward that a limit replaced, stop sequences and numbers that are not finite; the order of calls is free."""
    recorded = await record(Stage(lambda number: Quiz(turns=2, role="answerer")))
    [old] = recorded.rollouts
    [sampling] = old.sampling

    def differences(one, other):
        return [msgspec.structs.astuple(each) for each in compare_rollout(one, other, (), 1e-9).differences]

    def with_step(**fields):
        return replace(old, steps=(replace(old.steps[0], **fields), *old.steps[1:]))

    assert differences(old, with_step(env_reward=99.0)) == [(0, "env_reward", old.steps[0].env_reward, 99.0)]
    stopped = replace(old, sampling=(replace(sampling, stop=("END",)),))
    assert differences(old, stopped)[0] == (0, "stop_sequences", list(sampling.stop), ["END"])
    assert differences(*(with_step(reward_data={"loss": float("nan")}) for _ in range(2))) == []
    assert len(old.calls) == 2
    assert differences(old, replace(old, calls=old.calls[::-1])) == []


# Model calls, graders, groups


class Judged(Grader):
    """Asks the grader, and gives the length of its answer."""

    def __init__(self, words="How good is", weight=1.0):
        self.words, self.weight = words, weight

    async def grade(self, rollout):
        said = await ask("grader", [Message("user", f"{self.words} {rollout.conversation[-2].content!r}?")])
        return Grade(self.weight * len(said.message.content), {"judged": len(said.message.content)})


class JudgedGroup(Stage):
    """Its grader compares each member with the next."""

    words = "Compare"
    weight = 1.0

    async def grade_group(self, rollouts):
        grades = {}
        for rollout in rollouts:
            if rollout.status == "ok":
                said = await ask("grader", [Message("user", f"{self.words} {rollout.id} {rollout.index}")])
                grades[rollout.id] = Grade(self.weight * len(said.message.content), {"order": rollout.index})
        return grades


def talkative(request):
    """Another answer each time, so that only the record can repeat it."""
    return "x" * random.randint(1, 10_000)


async def test_calls_of_envs_and_graders_get_their_recorded_answers():
    """Grades are compared too, without asking a model, also those of graders that see the group and its ids."""
    policy = ScriptedReplies(talkative)
    builder = JudgedGroup(lambda number: Quiz(role="answerer"), episodes=3, grader=Judged())
    recorded = await record(builder, policy)
    again = JudgedGroup(builder.make, episodes=3, grader=Judged())
    compared = await replay(recorded, builder=again)
    assert [(one.comparison.differences, one.comparison.left_out) for one in compared] == [([], None)] * 3
    again.weight = 2.0
    fields = [
        difference.field for one in await replay(recorded, builder=again) for difference in one.comparison.differences
    ]
    assert fields == ["group_grade.reward", "reward"] * 3
    again = JudgedGroup(builder.make, episodes=3, grader=Judged(weight=2.0))
    first = (await replay(recorded, builder=again))[0].comparison.differences
    assert [difference.field for difference in first] == ["grade.reward", "reward"]


class ReversedGroup(JudgedGroup):
    """Its grader asks about the last member first."""

    async def grade_group(self, rollouts):
        return await super().grade_group(rollouts[::-1])


async def test_calls_get_the_answers_to_their_own_prompts():
    """Also if they are made in another order than in the record, as calls at the same time may be."""
    recorded = await record(JudgedGroup(lambda number: Quiz(turns=1), episodes=3), ScriptedReplies(talkative))
    again = ReversedGroup(lambda number: Quiz(turns=1), episodes=3)
    assert [one.comparison for one in await replay(recorded, builder=again)] == [([], None)] * 3


async def test_a_changed_question_to_a_grader_is_found():
    """Its recorded answer is used, and the prompt is the difference."""
    policy = ScriptedReplies(talkative)
    recorded = await record(JudgedGroup(lambda number: Quiz(turns=1), episodes=2, grader=Judged()), policy)
    again = JudgedGroup(lambda number: Quiz(turns=1), episodes=2, grader=Judged("Rate"))
    again.words = "Rank"
    for one in await replay(recorded, builder=again):
        own, *others = one.comparison.differences
        assert own.field == "calls[0].grader.prompt[0].content"
        assert own.replayed == own.recorded.replace("How good is", "Rate")
        assert {difference.field for difference in others} == {f"calls[{n}].grader.prompt[0].content" for n in (0, 1)}


async def test_calls_that_were_not_recorded_are_said():
    """Without the answers of the other roles, a rollout cannot be replayed, and its group not graded."""
    recorded = await record(Stage(lambda number: Quiz(turns=1, role="answerer")), ScriptedReplies(talkative))
    stripped = [msgspec.structs.replace(rollout, calls=()) for rollout in recorded.rollouts]
    [one] = await replay(recorded._replace(rollouts=stripped), has_calls=False)
    assert one.not_replayed == "its model calls were not recorded"
    group = await record(JudgedGroup(lambda number: Quiz(turns=1)), ScriptedReplies(talkative))
    again = JudgedGroup(lambda number: Quiz(turns=1))
    [one] = await replay(group._replace(score=None), builder=again, has_calls=False)
    assert (one.comparison.differences, one.comparison.left_out) == ([], "its model calls were not recorded")


class Search(ToolEnv):
    """Its tool answers otherwise each time, as the outside does, and one call in it fails."""

    def __init__(self, parallel):
        answered = {"check": lambda text: float(len(text)), "parallel": parallel}
        super().__init__([Message("user", "Find it.")], [self.search], **answered)

    def search(self, query: str) -> str:
        """Search.

        Args:
            query: What to search for.

        """
        if query == "nothing":
            raise ToolError("nothing found")
        if query == "enough":
            return ToolResult("enough", stop=True)
        return f"{query}: {random.random()}"


ENOUGH, MORE = (ToolCall("search", f'{{"query": "{query}"}}', id=query) for query in ("enough", "more"))


@pytest.mark.parametrize("last", ["I found it.", called(ENOUGH), called(MORE, ENOUGH)], ids=["text", "one", "two"])
@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "one by one"])
async def test_recorded_results_of_tools_are_used(last, parallel):
    """Tools of the outside differ when they run again; their recorded results, errors and stops do not."""
    calls = [ToolCall("search", f'{{"query": "{query}"}}', id=query) for query in ("news", "nothing")]
    replies = [called(*calls, ToolCall("find", "{}", id="c")), last]
    recorded = await record(Stage(lambda number: Search(parallel)), ScriptedReplies(replies))
    [again] = await replay(recorded)
    assert again.comparison.differences[0].field == "prompt[2].content"
    [same] = await replay(recorded, recorded_tools=True, also=("metrics", "env_state"))
    assert same.comparison == ([], None)


# The ways out of a rollout


def failing(step, error):
    return ScriptedReplies(lambda request: error if request.step == step else f"answer {request.step}")


async def raises(turn):
    if turn == 1:
        raise KeyError("board")


async def hangs(turn):
    if turn == 1:
        await never()


async def cancels(turn):
    if turn == 1:
        raise asyncio.CancelledError


def hanging(request):
    return never(request) if request.step == 1 else "answer"


WAYS_OUT = {
    "policy error": (Quiz, failing(1, PolicyError("down")), Plan(), "error", None),
    "overflow": (Quiz, failing(1, ContextOverflowError("long")), Plan(), "context_overflow", None),
    "time-out of the policy": (Quiz, ScriptedReplies(hanging), Plan(limits=Limits(timeout=60)), "timeout", None),
    "time-out of the env": (
        lambda: Quiz(fails=hangs), REPLIES, Plan(limits=Limits(timeout=60)), "timeout", "timeout during a step",
    ),
    "total tokens": (Quiz, REPLIES, Plan(limits=Limits(max_total_tokens=40)), "max_total_tokens", None),
    "sampled tokens": (Quiz, REPLIES, Plan(limits=Limits(max_sampled_tokens=5)), "max_sampled_tokens", None),
    "context": (Quiz, REPLIES, Plan(limits=Limits(context_length=30)), "context_overflow", None),
    "turns": (Quiz, REPLIES, Plan(limits=Limits(max_turns=2)), "max_turns", None),
    "env error": (lambda: Quiz(fails=raises), REPLIES, Plan(), "error", None),
    "retries": (Quiz, failing(1, PolicyError("down")), Plan(retries=2), "error", None),
    "role error": (lambda: Quiz(role="answerer"), failing(1, RoleError("down")), Plan(), "error", None),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_a_rollout_that_ended_early_ends_in_the_same_way(way):
    """Failures of the policy and limits are repeated where they were recorded, so that its group can be graded."""
    make, policy, plan, reason, left_out = WAYS_OUT[way]
    builder = JudgedGroup(lambda number: make(), episodes=1)
    recorded = await record(builder, policy, plan)
    assert {rollout.stop_reason for rollout in recorded.rollouts} == {reason}
    fixed = Quiz if way == "time-out of the env" else make
    compared = await replay(recorded, builder=JudgedGroup(lambda number: fixed(), episodes=1), plan=plan)
    assert len(compared) == plan.retries + 1
    for one in compared:
        assert (one.not_replayed, one.comparison.differences) == (None, [])
        assert one.comparison.left_out == left_out
        assert one.steps > 0


async def test_an_env_that_no_longer_fails_differs():
    """An error of the env is compared by its layer and type."""
    recorded = await record(Stage(lambda number: Quiz(fails=raises)))
    [fixed] = await replay(recorded, lambda number: Quiz())
    assert [msgspec.structs.astuple(difference) for difference in fixed.comparison.differences] == [
        (1, "env_failure", "raised", None),
        (1, "reward", 0.0, 13.0),
        (1, "reward_data.length", None, 13.0),
        (1, "stop_reason", "error in the env: KeyError: 'board'", None),
    ]

    async def raises_otherwise(turn):
        if turn == 1:
            raise ValueError("board")

    [other] = await replay(recorded, lambda number: Quiz(fails=raises_otherwise))
    [difference] = other.comparison.differences
    assert difference.field == "stop_reason"
    assert (difference.recorded, difference.replayed) == (
        "error in the env: KeyError: 'board'", "error in the env: ValueError: board",
    )  # fmt: skip


async def test_what_was_cancelled_is_compared_up_to_its_end():
    """With FailFast one failure aborts the others: their steps are compared, and their ends and grades are not."""

    def some(request):
        if request.identity.index == 0:
            return PolicyError("down") if request.step == 2 else "answer"
        return "answer" if request.step == 0 else never(request)

    plan = Plan(strategy=FailFast())
    recorded = await record(JudgedGroup(lambda number: Quiz(), episodes=2), ScriptedReplies(some), plan)
    assert [rollout.stop_reason for rollout in recorded.rollouts] == ["error", "episode_aborted"]
    first, second = await replay(recorded, builder=JudgedGroup(lambda number: Quiz(), episodes=2), plan=plan)
    assert first.comparison == ([], None)
    assert second.comparison == ([], "episode_aborted")
    assert (first.steps, second.steps) == (2, 1)
    _, changed = await replay(recorded, lambda number: Quiz(score=lambda turn, text: 0.0), plan=plan)
    assert [difference.field for difference in changed.comparison.differences] == ["reward", "reward_data.length"]


async def test_a_rollout_that_never_began_is_not_replayed():
    """There is nothing to compare in a rollout that was cancelled before its first prompt."""
    recorded = await record(Stage(lambda number: Quiz(), episodes=2))
    empty = msgspec.structs.replace(
        recorded.rollouts[0],
        status=Status.CANCELLED,
        stop_reason="cancelled",
        steps=(),
        messages=(),
        final=(),
        line_reward=None,
    )
    first, second = await replay(recorded._replace(rollouts=[empty, recorded.rollouts[1]]))
    assert first.not_replayed == "ended before the first turn (cancelled)"
    assert second.comparison == ([], None)


async def test_an_incomplete_group_is_replayed_as_far_as_it_goes():
    """Members that an interrupted run does not have are not compared, and do not abort the others."""
    plan = Plan(strategy=FailFast())
    recorded = await record(JudgedGroup(lambda number: Quiz(turns=9), episodes=3), plan=plan)
    partial = recorded._replace(rollouts=[recorded.rollouts[1]])
    [one] = await replay(partial, builder=JudgedGroup(lambda number: Quiz(turns=9), episodes=3), plan=plan)
    assert one.comparison == ([], "the record of the group is incomplete")
    assert one.steps == 9


async def test_a_group_that_was_not_graded_is_compared_without_its_grade():
    """The grading of an interrupted run is missing, and is no difference."""
    recorded = await record(JudgedGroup(lambda number: Quiz(turns=1), episodes=2))
    ungraded = [rollout.with_scores(()) for rollout in recorded.rollouts]
    again = JudgedGroup(lambda number: Quiz(turns=1), episodes=2)
    compared = await replay(recorded._replace(rollouts=ungraded, score=None), builder=again)
    assert [one.comparison for one in compared] == [([], "not graded by its group")] * 2


class Pass(Env):
    """A seat of a game in which seats take turns: each waits until it is its turn."""

    def __init__(self, table, seat):
        self.table, self.seat = table, seat

    async def initial_observation(self):
        await self._wait()
        return Observation([Message("user", f"Pot {self.table['pot']}")])

    async def step(self, completion):
        self.table["pot"] += len(completion.message.content)
        self.table["turn"] += 1
        done = self.table["turn"] >= 5
        await self._wait()
        return StepResult(float(self.table["pot"]), done, Observation([Message("user", f"Pot {self.table['pot']}")]))

    async def _wait(self):
        while self.table["turn"] % 2 != self.seat and self.table["turn"] < 6:  # noqa: ASYNC110 - the smallest game
            await asyncio.sleep(0)


def make_game(number):
    table = {"turn": 0, "pot": number}
    return [Pass(table, 0), Pass(table, 1)]


@pytest.mark.parametrize("fails", [None, 1])
async def test_the_seats_of_a_game_are_replayed_together(fails):
    """Each seat gets its own recorded turns; if one failed, the other was aborted and is so again."""

    def say(request):
        is_failing = fails is not None and request.identity.seat == 1 and request.step == fails
        return PolicyError("down") if is_failing else "x" * random.randint(1, 10_000)

    recorded = await record(Stage(make_game, episodes=2, seats=2), ScriptedReplies(say))
    compared = await replay(recorded, builder=Stage(make_game, episodes=2, seats=2))
    assert [one.comparison.differences for one in compared] == [[]] * 4
    left_out = None if fails is None else "episode_aborted"
    assert [one.comparison.left_out for one in compared] == [left_out, None] * 2
