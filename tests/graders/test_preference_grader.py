import asyncio
import pickle
import random

import pytest

from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.errors import ContextOverflowError, InputError, UnknownNameError
from rolltrace.graders.judge import Judge, PolicyJudge
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from stage import never, said


class Played:
    """A group that was played: its rollouts and scores by index."""

    def __init__(self, sink):
        self.rollouts = sorted(sink.rollouts, key=lambda rollout: rollout.index)
        self.ids = [rollout.id for rollout in self.rollouts]
        self.scores = {self.ids.index(score.rollout): score for score in sink.scores if score.rollout is not None}
        self.group = [score for score in sink.scores if score.name == "group_grade"]

    @property
    def rewards(self):
        return [self.scores[place].value if place in self.scores else None for place in range(len(self.ids))]

    def numbers(self, place):
        return self.scores[place].data["reward_data"]

    def matchups(self, place):
        return [
            (self.ids.index(one["opponent"]), one["side"], one["score"])
            for one in self.scores[place].data["extra"]["matchups"]
        ]


async def play(*answers, grader, judge=None):
    """Plays a group whose members give these answers or raise these errors."""
    sink = MemorySink()
    policy = ScriptedReplies(lambda request: answers[request.identity.index])
    builder = PromptOnlyGroup(env="p", task="t", messages="Which?", episodes=len(answers), group_grader=grader)
    async for _ in Runner(policy, roles={} if judge is None else {"grader": judge}, sink=sink).play([builder]):
        pass
    return Played(sink)


def text_of(rollout):
    return rollout.steps[-1].trace.policy_response.content


def by(scores):
    """A judge that looks up the score of each pair of texts."""
    return lambda prompt, first, second: scores[text_of(first) + text_of(second)]


def by_length(prompt, first, second):
    """A module-level judge function: the longer text is better."""
    one, other = len(text_of(first)), len(text_of(second))
    return (one > other) - (one < other)


async def test_both_ways_by_hand():
    """Each direction is one matchup; a member's preference is the mean over all of them, from its own side."""
    scores = {"ab": 1.0, "ba": -0.5, "ac": 0.25, "ca": 0.25, "bc": 0.0, "cb": 1.0}
    group = await play("a", "b", "c", grader=PreferenceGrader(judge=by(scores)))
    assert group.rewards == pytest.approx(
        [(1 + 0.5 + 0.25 - 0.25) / 4, (-1 - 0.5 + 0 - 1) / 4, (-0.25 + 0.25 + 0 + 1) / 4]
    )
    assert sorted(group.matchups(0)) == [
        (1, "first", 1.0),
        (1, "second", 0.5),
        (2, "first", 0.25),
        (2, "second", -0.25),
    ]
    assert group.numbers(0) == {
        "preference": 0.375, "format": 1.0, "matchups": 4, "failed_matchups": 0, "wins": 3, "losses": 1, "ties": 0,
        "agreement": 0.5,
    }  # fmt: skip
    assert group.numbers(1) == {
        "preference": -0.625, "format": 1.0, "matchups": 4, "failed_matchups": 0, "wins": 0, "losses": 3, "ties": 1,
        "agreement": 0.5,
    }  # fmt: skip
    [told] = group.group
    assert told.data["extra"] == {
        "pattern": "both_ways", "chunk": 4, "ids": group.ids, "indexes": [0, 1, 2],
        "matrix": [[None, 1.0, 0.25], [-0.5, None, 0.0], [0.25, 1.0, None]],
    }  # fmt: skip
    assert told.data["reward_data"] == {
        "matchups": 6, "failed_matchups": 0, "agreement": pytest.approx(1 / 3), "first_side": pytest.approx(2 / 6),
    }  # fmt: skip


async def test_one_way_by_hand():
    """One way, each pair meets once, and agreement between orders is not reported."""
    grader = PreferenceGrader(judge=by({"ab": 1.0, "ac": -0.5, "bc": 0.5}), pattern="one_way")
    group = await play("a", "b", "c", grader=grader)
    assert group.rewards == pytest.approx([0.25, -0.25, 0.0])
    assert group.matchups(1) == [(0, "second", -1.0), (2, "first", 0.5)]
    assert "agreement" not in group.numbers(0)
    assert group.group[0].data["reward_data"] == {"matchups": 3, "failed_matchups": 0}
    assert group.group[0].data["extra"]["matrix"] == [[None, 1.0, -0.5], [None, None, 0.5], [None, None, None]]


async def test_every_member_of_an_odd_group_meets_another():
    """Five members in chunks of four meet as three and two, so the fifth has an opponent."""
    group = await play("a", "b", "cc", "ddd", "e", grader=PreferenceGrader(judge=by_length))
    assert group.rewards == pytest.approx([-0.5, -0.5, 1.0, 1.0, -1.0])
    assert {opponent for opponent, _, _ in group.matchups(4)} == {3}


async def test_the_only_member_has_no_reward():
    """A group of one has nothing to compare: the score is null, and the error says why and what to do."""
    alone = await play("a", grader=PreferenceGrader(judge=by_length))
    assert alone.rewards == [None]
    error = alone.scores[0].error
    assert (error.layer, error.type) == (Layer.GRADER, "GraderError")
    assert error.message == (
        f"Expected another member to compare rollout {alone.ids[0]} with, got none: no other member of its group has "
        "an answer. Use a larger group size, or find out why the others failed."
    )
    assert alone.group[0].value is None
    assert alone.group[0].data["extra"]["matrix"] == [[None]]


@pytest.mark.parametrize("other", [ValueError("no answer"), ContextOverflowError("too long")], ids=["failed", "silent"])
async def test_the_only_member_with_an_answer_has_no_reward(other):
    """Members that failed or never answered are no opponents."""
    group = await play(other, "a", other, grader=PreferenceGrader(judge=by_length))
    assert group.rewards[1] is None
    assert "got none" in group.scores[1].error.message


async def test_failed_members_take_no_part():
    """The remaining members are chunked and compared as if the failed ones were not there."""
    broken = ValueError("no answer")
    answers = (broken, "a", "bb", broken, "ccc", "d")
    group = await play(*answers, grader=PreferenceGrader(judge=by_length, chunk=2))
    assert group.rewards == [None, -1.0, 1.0, None, 1.0, -1.0]
    assert set(group.scores) == {1, 2, 4, 5}
    assert group.group[0].data["extra"]["ids"] == [group.ids[place] for place in (1, 2, 4, 5)]


async def test_who_met_whom_is_there_in_numbers():
    """An opponent's index is its place in the whole group, failed members included, and agrees with its id."""
    broken = ValueError("no answer")
    group = await play(broken, "a", "bb", broken, "ccc", grader=PreferenceGrader(judge=by_length))
    assert group.group[0].data["extra"]["indexes"] == [1, 2, 4]
    for place in (1, 2, 4):
        matchups = group.scores[place].data["extra"]["matchups"]
        others = {1, 2, 4} - {place}
        assert sorted((one["opponent_index"], one["first"]) for one in matchups) == [
            (other, first) for other in sorted(others) for first in (False, True)
        ]
        assert all(one["opponent"] == group.ids[one["opponent_index"]] for one in matchups)
        assert all(one["first"] is (one["side"] == "first") for one in matchups)


async def test_a_cut_answer_takes_part_and_is_charged():
    """A truncated answer is compared, and its format term is -1, as in every one-prompt env."""
    group = await play(
        "a",
        said("bbb", Termination.LENGTH),
        said("cc", Termination.MALFORMED),
        grader=PreferenceGrader(judge=by_length),
    )
    assert group.rewards == pytest.approx([-1.0, 1.0 - 1, 0.0 - 1])
    assert [group.numbers(place)["format"] for place in range(3)] == [1.0, 0.0, 0.0]
    assert [rollout.stop_reason for rollout in group.rollouts] == ["completed", "max_tokens", "completed"]


async def test_the_form_of_an_answer_is_charged_by_its_share():
    """A fractional format score is kept, and the coefficient is the caller's."""
    grader = PreferenceGrader(judge=by_length, format_coef=0.5, format_check=lambda text: 0.5 if "b" in text else 1.0)
    group = await play("a", "bb", grader=grader)
    assert group.rewards == pytest.approx([-1.0, 1.0 - 0.25])
    assert group.numbers(1)["format"] == 0.5


async def test_a_member_without_an_answer_has_no_matchups():
    """A member that ended without an answer is graded with preference 0 and format 0."""
    group = await play("a", ContextOverflowError("too long"), "bb", grader=PreferenceGrader(judge=by_length))
    assert group.rollouts[1].status is Status.OK
    assert group.rollouts[1].steps == ()
    assert group.rewards == pytest.approx([-1.0, -0.1 + 0 - 1, 1.0])
    assert group.numbers(1) == {
        "preference": 0.0, "format": 0.0, "matchups": 0, "failed_matchups": 0, "wins": 0, "losses": 0, "ties": 0,
    }  # fmt: skip
    assert group.group[0].data["extra"]["ids"] == [group.ids[0], group.ids[2]]


async def raises(prompt, first, second):
    raise ValueError("beyond me")


async def exits(prompt, first, second):
    raise SystemExit(3)


async def cancels_itself(prompt, first, second):
    raise asyncio.CancelledError


class Sloppy(Judge):
    """A judge whose method is not async."""

    def compare(self, prompt, first, second):
        return 0.5


BROKEN = {
    "raises": (raises, "ValueError: beyond me"),
    "exits": (exits, "SystemExit"),
    "cancels_itself": (cancels_itself, "CancelledError"),
    "nan": (lambda *_: float("nan"), "from -1 to 1"),
    "infinite": (lambda *_: float("-inf"), "from -1 to 1"),
    "out_of_range": (lambda *_: 1.25, "1.25"),
    "text": (lambda *_: "A", "str: 'A'"),
    "nothing": (lambda *_: None, "None"),
    "truth": (lambda *_: True, "bool: True"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_judge_that_fails_for_one_member(broken):
    """If the judge fails for one member, its matchups say why and it has no grade; the others are graded without it."""
    judge, reason = BROKEN[broken]

    def judge_some(prompt, first, second):
        is_bad = "bad" in (text_of(first), text_of(second))
        return (judge if is_bad else by_length)(prompt, first, second)

    group = await play("a", "bad", "cc", grader=PreferenceGrader(judge=judge_some))
    assert group.rewards == [-1.0, None, 1.0]
    error = group.scores[1].error
    assert (error.layer, error.type) == (Layer.GRADER, "GraderError")
    assert group.ids[1] in error.message
    assert reason in error.message
    assert "None of the 4 matchups" in error.message
    failed = [one for one in group.scores[0].data["extra"]["matchups"] if one["opponent"] == group.ids[1]]
    assert [(one["side"], one["score"]) for one in failed] == [("first", None), ("second", None)]
    assert all(reason in one["error"] for one in failed)
    assert (group.numbers(0)["matchups"], group.numbers(0)["failed_matchups"]) == (4, 2)
    assert group.group[0].data["reward_data"]["failed_matchups"] == 4
    assert [rollout.status for rollout in group.rollouts] == ["ok"] * 3


async def test_a_judge_that_is_not_async():
    """The matchups of a judge whose method is not async fail with a TypeError."""
    group = await play("a", "b", grader=PreferenceGrader(judge=Sloppy()))
    assert group.rewards == [None, None]
    assert "TypeError" in group.scores[0].error.message


async def test_a_function_may_be_async_or_not():
    """A sync or async function gets the prompt and the two rollouts, and may return an integer."""

    async def slow(prompt, first, second):
        await asyncio.sleep(0)
        assert [message.content for message in prompt] == ["Which?"]
        return 1 if text_of(first) == "a" else -1

    group = await play("a", "b", grader=PreferenceGrader(judge=slow))
    assert group.rewards == [1.0, -1.0]
    group = await play("a", "b", grader=PreferenceGrader(judge=lambda *_: 0))
    assert group.rewards == [0.0, 0.0]


def test_a_judge_is_a_judge_or_a_function():
    """Another object is refused when the grader is made."""
    with pytest.raises(InputError, match="Expected a Judge, or a function"):
        PreferenceGrader(judge="better")


async def test_a_judge_that_always_fails():
    """If the judge fails every time, each member has its own error, and the group is recorded."""
    group = await play("a", "b", grader=PreferenceGrader(judge=raises))
    assert group.rewards == [None, None]
    assert all(group.ids[place] in group.scores[place].error.message for place in range(2))
    assert group.group[0].value is None
    assert group.group[0].data["extra"]["matrix"] == [[None, None], [None, None]]


async def test_a_failed_direction_leaves_the_other():
    """One failed order of a pair leaves the score of the other order."""

    def judge(prompt, first, second):
        if text_of(first) == "a":
            raise ValueError("not this way round")
        return 0.5

    group = await play("a", "b", grader=PreferenceGrader(judge=judge))
    assert group.rewards == [-0.5, 0.5]
    assert "agreement" not in group.numbers(0)


async def test_a_long_error_is_cut():
    """An error of a judge may hold a whole conversation, so it is truncated."""

    def judge(prompt, first, second):
        if "bad" in (text_of(first), text_of(second)):
            raise ValueError("x" * 100_000)
        return 0.0

    group = await play("a", "bad", "b", grader=PreferenceGrader(judge=judge))
    errors = [one["error"] for one in group.scores[0].data["extra"]["matchups"] if "error" in one]
    assert errors
    assert all(len(error) <= 500 for error in errors)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I like both.", "I like both."),
        ("Preference: NaN", "NaN"),
        ("Preference: 3", "from -1 to 1"),
        (ValueError("overloaded"), "overloaded"),
        (said("Preference: 1", Termination.LENGTH), "was cut off"),
        (never, "no answer within"),
    ],
    ids=["nonsense", "nan", "out_of_range", "raises", "cut", "silent"],
)
async def test_a_policy_that_cannot_judge_one_member(reply, reason):
    """A policy that fails as judge of one member costs only that member its grade, and each try is recorded."""

    def answer(request):
        if "bad" in request.messages[1].content:
            return reply(request) if callable(reply) else reply
        return "Preference: 0.5"

    grader = PreferenceGrader(judge=PolicyJudge(tries=2, seconds=5), pattern="one_way")
    group = await play("a", "bad", "b", grader=grader, judge=ScriptedReplies(answer, name="judge"))
    assert group.rewards == [0.5, None, -0.5]
    error = group.scores[1].error
    assert error.layer is Layer.GRADER
    assert group.ids[1] in error.message
    assert reason in error.message
    [told] = group.group
    assert len(told.calls) == 5
    assert {call.policy for call in told.calls} == {"judge"}


async def test_a_judge_that_favours_the_first_is_found_out():
    """Both ways, a bias for the first side cancels, and the record says that verdicts depend on the order."""
    group = await play("a", "b", "c", grader=PreferenceGrader(), judge=ScriptedReplies(lambda _: "Preference: A"))
    assert group.rewards == [0.0, 0.0, 0.0]
    numbers = group.group[0].data["reward_data"]
    assert (numbers["agreement"], numbers["first_side"]) == (0.0, 1.0)
    one_way = await play(
        "a", "b", "c", grader=PreferenceGrader(pattern="one_way"), judge=ScriptedReplies(lambda _: "A")
    )
    assert one_way.rewards == [1.0, 0.0, -1.0]


async def test_the_policy_judges_by_default():
    """Without a policy in the role `grader`, the policy itself is asked."""

    def answer(request):
        return "Preference: A" if request.role == "grader" else "an answer"

    sink = MemorySink()
    builder = PromptOnlyGroup(env="p", task="t", messages="Which?", episodes=2, group_grader=PreferenceGrader())
    async for group in Runner(ScriptedReplies(answer), sink=sink).play([builder]):
        assert group.rewards == [0.0, 0.0]
    assert [call.role for call in Played(sink).group[0].calls] == ["grader", "grader"]


async def test_a_format_check_that_raises_costs_its_own_member():
    """The error names the rollout and the reason; the other members are graded."""

    def check(text):
        if text == "bb":
            raise ValueError("no such form")
        return 1.0

    group = await play("a", "bb", "ccc", grader=PreferenceGrader(judge=by_length, format_check=check))
    assert group.rewards == [-1.0, None, 1.0]
    assert group.ids[1] in group.scores[1].error.message
    assert "no such form" in group.scores[1].error.message


@pytest.mark.parametrize("form", [float("nan"), float("inf"), -float("inf")])
async def test_a_format_score_that_is_not_finite_costs_its_own_member(form):
    """Only the member whose format score is not finite has no reward."""
    grader = PreferenceGrader(judge=by_length, format_check=lambda text: form if text == "bb" else 1.0)
    group = await play("a", "bb", "ccc", grader=grader)
    assert group.rewards == [-1.0, None, 1.0]
    error = group.scores[1].error
    assert (error.layer, error.type) == (Layer.GRADER, "GraderError")
    assert group.ids[1] in error.message
    assert f"Expected a finite number from the format check, got {form}." in error.message


async def test_cancellation_passes():
    """A group that is cancelled while it is judged leaves no matchup running."""
    asked = asyncio.Event()

    async def wait(prompt, first, second):
        asked.set()
        await asyncio.Event().wait()

    sink = MemorySink()
    grader = PreferenceGrader(judge=wait)
    builder = PromptOnlyGroup(env="p", task="t", messages="Which?", episodes=3, group_grader=grader)

    async def run():
        async for _ in Runner(ScriptedReplies(["x"]), sink=sink).play([builder]):
            pass

    task = asyncio.create_task(run())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(score.value, score.error.type) for score in sink.scores] == [(None, "Interrupted")] * 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_order_in_which_rollouts_are_given_does_not_matter():
    """Members are paired by index, so the order of the argument does not change the grades."""
    group = await play("a", "bb", "ccc", "dd", "e", grader=None)
    grader = PreferenceGrader(judge=lambda prompt, first, second: len(text_of(first)) / 4, chunk=3)
    expected = await grader.grade_group(group.rollouts)
    for seed in range(5):
        shuffled = random.Random(seed).sample(group.rollouts, 5)
        assert await grader.grade_group(shuffled) == expected


async def test_a_group_without_members():
    """A group in which all failed has no grades and an empty matrix."""
    told = await PreferenceGrader(judge=by_length).grade_group([])
    assert (told.grades, told.extra["matrix"]) == ({}, [])


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"pattern": "round_robin"}, UnknownNameError),
        ({"chunk": 1}, InputError),
        ({"chunk": 0}, InputError),
        ({"format_coef": float("nan")}, InputError),
        ({"judge": "gpt"}, InputError),
    ],
)
def test_settings_that_make_no_sense(settings, error):
    """Invalid settings are refused when the grader is made, not when a group is graded."""
    with pytest.raises(error):
        PreferenceGrader(**settings)


def test_graders_pickle():
    """Graders pickle, because builders that hold them go to other processes."""
    for grader in (PreferenceGrader(), PreferenceGrader(judge=by_length, pattern="one_way", chunk=3, format_coef=0.5)):
        assert pickle.loads(pickle.dumps(grader)) == grader
