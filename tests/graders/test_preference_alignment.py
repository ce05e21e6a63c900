"""Responses, matchups and rewards belong to the right rollouts, in any order of finishing and with any failures."""

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from examples import examples
from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.errors import ContextOverflowError
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.query.run import open_run
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from stage import said

FAILING = ("policy_error", "policy_error_late", "env_error", "env_error_late")
KINDS = ("one_turn", "three_turns", "cut", "cut_late", "overflow", "overflow_late", *FAILING)


@dataclass
class Member:
    """How one member of the group plays."""

    kind: str
    strength: int
    delay: int


class Talk(Env):
    """An env of one or three turns whose rewards tell the members apart."""

    def __init__(self, number, member):
        self.number = number
        self.member = member
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("system", "Be strong."), Message("user", "Speak.")])

    async def step(self, completion):
        self.turn += 1
        if self.member.kind == ("env_error" if self.turn == 1 else "env_error_late"):
            raise RuntimeError("the env broke")
        done = self.turn == (1 if self.member.kind == "one_turn" else 3)
        return StepResult(100.0 * (self.number + 1), done, Observation([Message("user", f"More, {self.number}.")]))


class TalkGroup(EnvGroupBuilder):
    env = "talk"
    task = "speak"

    def __init__(self, members, grader):
        self.members = members
        self.episodes = len(members)
        self.group_grader = grader

    async def make_episode(self, number):
        return [Talk(number, self.members[number])]


class Players:
    """Each member says its strength after its own delay."""

    name = "players"
    version = None
    context_length = None

    def __init__(self, members):
        self.members = members

    def count_tokens(self, request):
        return None

    async def complete(self, request):
        index = request.identity.index
        member = self.members[index]
        for _ in range(member.delay):
            await asyncio.sleep(0)
        if member.kind == "policy_error" or (member.kind == "policy_error_late" and request.step):
            raise RuntimeError("the policy broke")
        if member.kind == "overflow" or (member.kind == "overflow_late" and request.step):
            raise ContextOverflowError("too long")
        # Only the last turn counts: earlier turns claim more strength, so that reading the wrong turn fails.
        text = f"I am member {index}. Strength {member.strength + 2 - request.step}."
        cut = member.kind == "cut" or (member.kind == "cut_late" and request.step)
        return said(text, Termination.LENGTH if cut else Termination.EOS)


def rule(first, second):
    """The preference for the first: unique for each ordered pair, and not antisymmetric."""
    return ((17 * first - 29 * second) % 201 - 100) / 100


def is_refused(first, second):
    """Whether this pair cannot be compared, if some cannot."""
    return (first + 2 * second) % 3 == 0


def strength_in(text):
    return int(re.findall(r"Strength (\d+)\.", text)[-1])


def judge_function(refusing):
    async def judge(prompt, first, second):
        assert [message.content for message in prompt] == ["Be strong.", "Speak."]
        one, other = (strength_in(rollout.steps[-1].trace.policy_response.content) for rollout in (first, second))
        for _ in range((one * 7 + other) % 5):
            await asyncio.sleep(0)
        if refusing and is_refused(one, other):
            raise ValueError("these two are beyond me")
        return rule(one, other)

    return judge


def judge_policy(refusing):
    """Parses the prompt, as a model would."""

    def answer(request):
        _, a, b = re.split(r"^<answer [AB] \w+>$", request.messages[1].content, flags=re.MULTILINE)
        one, other = strength_in(a), strength_in(b)
        if refusing and is_refused(one, other):
            return "These two are beyond me."
        return f"Hard to say.\nPreference: {rule(one, other):.2f}"

    return ScriptedReplies(answer, name="judge")


async def play(members, sink, *, pattern, chunk, by_policy, refusing):
    grader = PreferenceGrader(pattern=pattern, chunk=chunk)
    if not by_policy:
        grader = PreferenceGrader(judge=judge_function(refusing), pattern=pattern, chunk=chunk)
    runner = Runner(Players(members), roles={"grader": judge_policy(refusing)}, sink=sink)
    async for _ in runner.play([TalkGroup(members, grader)]):
        pass


def chunked(order, chunk):
    """The members dealt round-robin to as many chunks as needed, but with at least two per chunk."""
    count = max(1, min(-(-len(order) // chunk), len(order) // 2))
    sizes = Counter(number % count for number in range(len(order)))
    rest = iter(order)
    return [[next(rest) for _ in range(sizes[number])] for number in range(count)]


def expected_scores(strengths, pattern, chunk, refusing):
    """For each index its matchups as (opponent's index, side, score), computed from strengths alone."""
    order = sorted(strengths)
    expected = {index: [] for index in order}
    for index in order:
        [own] = [members for members in chunked(order, chunk) if index in members]
        for opponent in own:
            if opponent == index:
                continue
            me, them = strengths[index], strengths[opponent]
            if pattern == "both_ways" or index < opponent:
                expected[index].append(
                    (opponent, "first", None if refusing and is_refused(me, them) else rule(me, them))
                )
            if pattern == "both_ways" or opponent < index:
                refused = refusing and is_refused(them, me)
                expected[index].append((opponent, "second", None if refused else -rule(them, me)))
    return expected


def check_record(rollouts, scores, members, *, pattern, chunk, refusing):
    """Checks each recorded score against the recorded texts."""
    assert sorted(rollout.index for rollout in rollouts) == list(range(len(members)))
    index_of = {rollout.id: rollout.index for rollout in rollouts}
    for rollout in rollouts:
        for step in rollout.steps:
            assert f"I am member {rollout.index}." in step.trace.policy_response.content
    ok = [rollout for rollout in rollouts if rollout.status is Status.OK]
    strengths = {
        rollout.index: strength_in(rollout.steps[-1].trace.policy_response.content) for rollout in ok if rollout.steps
    }
    expected = expected_scores(strengths, pattern, chunk, refusing)
    rewards = {score.rollout: score for score in scores if score.name == "reward"}
    assert rewards.keys() == {rollout.id for rollout in ok}
    for rollout in ok:
        check_member(rollout, rewards[rollout.id], expected.get(rollout.index, []), index_of)
    if ok:
        check_matrix([score for score in scores if score.name == "group_grade"], expected, index_of)


def check_member(rollout, score, matchups, index_of):
    scored = [value for *_, value in matchups if value is not None]
    if rollout.steps and not scored:
        assert score.value is None
        assert (score.error.layer, score.error.type) == (Layer.GRADER, "GraderError")
        assert rollout.id in score.error.message
        return
    preference = sum(scored) / len(scored) if scored else 0
    form = float(bool(rollout.steps) and rollout.steps[-1].termination is Termination.EOS)
    assert score.value == pytest.approx(rollout.reward_so_far + preference + form - 1)
    numbers = score.data["reward_data"]
    assert numbers["preference"] == pytest.approx(preference)
    assert numbers["format"] == form
    assert (numbers["matchups"], numbers["failed_matchups"]) == (len(matchups), len(matchups) - len(scored))
    signs = Counter((value > 0) - (value < 0) for value in scored)
    assert (numbers["wins"], numbers["losses"], numbers["ties"]) == (signs[1], signs[-1], signs[0])
    told = [(index_of[one["opponent"]], one["side"], one["score"]) for one in score.data["extra"]["matchups"]]
    assert sorted(told, key=str) == sorted(matchups, key=str)
    assert all(("error" in one) == (one["score"] is None) for one in score.data["extra"]["matchups"])


def check_matrix(scores, expected, index_of):
    [score] = scores
    order = [index_of[rollout] for rollout in score.data["extra"]["ids"]]
    assert order == sorted(expected)
    cells = {
        (one, other): value
        for one, row in zip(order, score.data["extra"]["matrix"], strict=True)
        for other, value in zip(order, row, strict=True)
        if value is not None
    }
    firsts = {
        (index, opponent): value
        for index, matchups in expected.items()
        for opponent, side, value in matchups
        if side == "first" and value is not None
    }
    assert cells == pytest.approx(firsts)


MEMBERS = st.builds(Member, st.sampled_from(KINDS), st.integers(0, 60), st.integers(0, 12))
TOURNAMENTS = {"pattern": st.sampled_from(["one_way", "both_ways"]), "chunk": st.integers(2, 17)}


@settings(max_examples=examples(80))
@given(
    members=st.lists(MEMBERS, min_size=1, max_size=16), by_policy=st.booleans(), refusing=st.booleans(), **TOURNAMENTS
)
def test_scores_land_on_the_right_rollout(members, pattern, chunk, by_policy, refusing):
    """For any group, order of finishing and failures, the recorded scores are those of the recorded texts."""
    sink = MemorySink()
    asyncio.run(play(members, sink, pattern=pattern, chunk=chunk, by_policy=by_policy, refusing=refusing))
    event(f"{sum(rollout.status is Status.OK for rollout in sink.rollouts)} finished")
    check_record(sink.rollouts, sink.scores, members, pattern=pattern, chunk=chunk, refusing=refusing)


@pytest.mark.parametrize("size", range(1, 17))
async def test_every_size_of_group(size):
    """Groups of one to sixteen members, by every pattern, in chunks that divide the group and that do not."""
    rng = random.Random(size)
    for pattern in ("one_way", "both_ways"):
        for chunk in sorted({2, 3, 4, 7, size, size + 1} - {1}):
            strengths = rng.sample(range(60), size)
            members = [Member("one_turn", strength, rng.randrange(12)) for strength in strengths]
            if size > 2:
                members[rng.randrange(size)].kind = rng.choice(KINDS)
            sink = MemorySink()
            await play(members, sink, pattern=pattern, chunk=chunk, by_policy=False, refusing=False)
            check_record(sink.rollouts, sink.scores, members, pattern=pattern, chunk=chunk, refusing=False)


async def test_the_last_to_finish_may_be_the_first_of_the_group():
    """Rollouts are recorded in the order in which they end, and graded by identity."""
    members = [Member("one_turn", 10 * number, 20 - 4 * number) for number in range(5)]
    sink = MemorySink()
    await play(members, sink, pattern="both_ways", chunk=5, by_policy=True, refusing=False)
    assert [rollout.index for rollout in sink.rollouts] == [4, 3, 2, 1, 0]
    check_record(sink.rollouts, sink.scores, members, pattern="both_ways", chunk=5, refusing=False)


async def test_the_calls_show_who_met_whom():
    """The judge was asked once for each matchup, about the right two answers in the right order."""
    members = [Member("three_turns", 7 * number, number % 3) for number in range(3)]
    sink = MemorySink()
    await play(members, sink, pattern="both_ways", chunk=4, by_policy=True, refusing=False)
    [score] = [score for score in sink.scores if score.name == "group_grade"]
    asked = []
    for call in score.calls:
        assert (call.role, call.policy) == ("grader", "judge")
        _, a, b = re.split(r"^<answer [AB] \w+>$", call.prompt[1].content, flags=re.MULTILINE)
        whole = [re.findall(r"I am member (\d)", side) for side in (a, b)]
        assert [len(set(side)) for side in whole] == [1, 1]
        assert [len(side) for side in whole] == [3, 3]
        asked.append((int(whole[0][0]), int(whole[1][0])))
    assert sorted(asked) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize("by_policy", [False, True])
async def test_the_same_on_disk_and_in_sql(tmp_path, by_policy):
    """The record in memory, on disk and in SQL agree on each rollout."""
    rng = random.Random(4)
    kinds = [*KINDS, *KINDS[:3]]
    members = [Member(kind, strength, rng.randrange(9)) for kind, strength in zip(kinds, range(0, 65, 5), strict=True)]
    with create_run(tmp_path / "run") as run:
        await play(members, run, pattern="both_ways", chunk=4, by_policy=by_policy, refusing=True)
    with open_run(tmp_path / "run") as run:
        rollouts, scores = list(run.rollouts(limit=None)), list(run.scores())
        check_record(rollouts, scores, members, pattern="both_ways", chunk=4, refusing=True)
        recorded = {score.rollout: score.value for score in scores if score.name == "reward"}
        rows = run.sql("select id, reward, status from rollouts order by index").fetchall()
    assert len(rows) == len(members)
    for rollout, reward, status in rows:
        assert reward == (pytest.approx(recorded[rollout]) if status == "ok" else None)
    assert sum(reward is not None for _, reward, _ in rows) >= 6
