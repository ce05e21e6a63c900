"""Groups: indexes, strategies, group grades, names, order and cancellation."""

import asyncio
import contextlib

import pytest

from rolltrace.errors import InputError, RolltraceError
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.rollout.strategies import FailFast, KeepViable
from rolltrace.store.reader import RunReader
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Layer, Status, StopReason
from stage import Counting, GradedStage, Meddling, Remembering, Stage, assert_faithful, play, recorded, said


class Turnstile:
    """Releases policy requests one by one, in an order that the test chooses."""

    def __init__(self):
        self.doors = {}
        self.arrived = asyncio.Event()

    def door(self, index):
        return self.doors.setdefault(index, asyncio.Event())

    async def __call__(self, request):
        await self.door(request.identity.index).wait()
        return said(f"I am {request.identity.index}.")


async def test_members_keep_their_index_when_they_finish_out_of_order(tmp_path):
    """A member's index is its episode, not the order in which it finished."""
    stile = Turnstile()
    policy = Remembering(stile)
    task = asyncio.create_task(play(tmp_path / "run", GradedStage(lambda _: Meddling(turns=1), episodes=4), policy))
    for index in (2, 0, 3, 1):
        await asyncio.sleep(0)
        stile.door(index).set()
    [group] = await task
    assert [member.index for member in group.members] == [0, 1, 2, 3]
    for rollout in recorded(tmp_path / "run"):
        assert rollout.steps[0].trace.policy_response.content == f"I am {rollout.index}."
    assert [member.reward for member in group.members] == [101.0, 201.0, 301.0, 401.0]


async def test_group_grades_land_by_rollout_id(tmp_path):
    """Each score names its rollout and holds the parts of the total."""

    class Shuffled(GradedStage):
        async def grade_group(self, rollouts):
            return dict(reversed(list((await super().grade_group(rollouts)).items())))

    [group] = await play(
        tmp_path / "run",
        Shuffled(lambda _: Meddling(turns=1), episodes=3, grader=Counting(0.5)),
        Remembering(said("x")),
    )
    index_of = {rollout.id: rollout.index for rollout in recorded(tmp_path / "run")}
    scores = list(RunReader(tmp_path / "run").scores())
    assert {index_of[score.rollout]: score.value for score in scores} == {0: 101.5, 1: 201.5, 2: 301.5}
    for score in scores:
        assert score.data["reward_so_far"] == 1.5
        assert score.data["grade"] == 0.5
        assert score.data["group_grade"] == 100.0 * (index_of[score.rollout] + 1)
    assert group.rewards == [101.5, 201.5, 301.5]


class Flaky:
    """Fails a given number of times per index before it answers."""

    def __init__(self, failures):
        self.failures = dict(failures)

    def __call__(self, request):
        index = request.identity.index
        if request.step == 1 and self.failures.get(index, 0) > request.identity.attempt:
            raise ConnectionError(f"attempt {request.identity.attempt} of {index}")
        return said(f"{index}.{request.identity.attempt}")


async def test_a_retry_is_a_fresh_episode(tmp_path):
    """A retry is a fresh episode with its own record; the member keeps its index and the last attempt counts."""
    stage = GradedStage(lambda _: Meddling(turns=2), episodes=3)
    policy = Remembering(Flaky({1: 2, 2: 5}))
    [group] = await play(tmp_path / "run", stage, policy, retries=2)
    rollouts = recorded(tmp_path / "run")
    assert [(rollout.index, rollout.attempt, rollout.status) for rollout in rollouts] == [
        (0, 0, "ok"),
        (1, 0, "error"),
        (1, 1, "error"),
        (1, 2, "ok"),
        (2, 0, "error"),
        (2, 1, "error"),
        (2, 2, "error"),
    ]
    for rollout in rollouts:
        assert_faithful(rollout, policy)
    assert len({rollout.id for rollout in rollouts}) == 7
    assert [(member.index, member.attempt) for member in group.members] == [(0, 0), (1, 2), (2, 2)]
    assert group.failure is None  # two of three members are ok, and one is enough
    assert len(stage.made) == 7


async def test_a_member_that_was_retried_keeps_its_place(tmp_path):
    """Members are in the order of their indexes, although the first was retried and ended last."""
    stage = GradedStage(lambda _: Meddling(turns=2), episodes=3)
    [group] = await play(tmp_path / "run", stage, Remembering(Flaky({0: 1})), retries=1)
    assert [(member.index, member.attempt) for member in group.members] == [(0, 1), (1, 0), (2, 0)]


async def test_a_member_that_every_retry_left_failed_counts_by_the_strategy(tmp_path):
    """With retries used up, `KeepViable` counts the members that are ok, and says why the group does not count."""
    stage = Stage(lambda _: Meddling(turns=2), episodes=2)
    policy = Remembering(Flaky({1: 5}))
    [group] = await play(tmp_path / "run", stage, policy, strategy=KeepViable(1.0), retries=1)
    assert [(member.index, member.attempt, member.status) for member in group.members] == [
        (0, 0, "ok"),
        (1, 1, "error"),
    ]
    assert group.failure is not None
    assert (group.failure.layer, group.failure.type) == (Layer.POLICY, "NotViable")
    with pytest.raises(RolltraceError, match="1 of 2 members"):
        group.raise_for_failure()


@pytest.mark.parametrize(("failures", "statuses"), [(2, ["ok", "ok", "ok"]), (3, ["ok", "error", "cancelled"])])
async def test_fail_fast_ends_the_group_only_when_no_retry_is_left(tmp_path, failures, statuses):
    """Under fail-fast with retries, a failed attempt cancels no sibling; the last attempt ends the group."""
    first_ended, retried = asyncio.Event(), asyncio.Event()

    class Announcing(Meddling):
        async def close(self):
            await super().close()
            first_ended.set()

    async def answer(request):
        identity = request.identity
        if identity.index == 1:
            if identity.attempt > 0:  # the first attempt has failed; let a sibling end before this one does
                await first_ended.wait()
                for _ in range(20):
                    await asyncio.sleep(0)
            if identity.attempt < failures:
                raise ConnectionError(f"attempt {identity.attempt}")
            retried.set()
        elif identity.index == 2:
            await retried.wait()
        return said("x")

    stage = Stage(lambda number: (Announcing if number == 0 else Meddling)(turns=1), episodes=3)
    [group] = await play(tmp_path / "run", stage, Remembering(answer), strategy=FailFast(), retries=2)
    assert [member.status for member in group.members] == statuses
    assert group.members[1].attempt == 2
    assert (group.failure is None) == (failures == 2)
    assert len(recorded(tmp_path / "run")) == 5


async def test_retry_does_not_repeat_what_cannot_help(tmp_path):
    """A grader's failure is not retried: the play succeeded."""
    stage = Stage(lambda _: Meddling(turns=1), grader=Counting(ValueError("no")))
    await play(tmp_path / "run", stage, Remembering(said("x")), retries=3)
    [rollout] = recorded(tmp_path / "run")
    assert rollout.error.layer is Layer.GRADER


async def test_attempts_have_seeds_of_their_own(tmp_path):
    """A retry has another seed than the attempt before it, and the same one in every run."""
    seeds = {}

    def remember(request):
        seeds.setdefault(request.identity.attempt, []).append(request.seed)
        if request.identity.attempt == 0:
            raise ConnectionError
        return said("x")

    for name in ("one", "two"):
        await play(tmp_path / name, Stage(lambda _: Meddling(turns=1)), Remembering(remember), retries=1)
    assert seeds[0][0] == seeds[0][1] != seeds[1][0] == seeds[1][1]


async def test_fail_fast_cancels_awaits_and_records_before_clean_up(tmp_path):
    """Under fail-fast no sibling is still running when clean-up starts, and each is recorded."""
    running = set()
    all_in = asyncio.Event()
    at_clean_up = []

    async def answer(request):
        index = request.identity.index
        running.add(index)
        if len(running) == 4:
            all_in.set()
        try:
            await all_in.wait()
            if index == 2:
                raise ConnectionError("down")
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # a sibling that takes its time to stop
                await asyncio.sleep(0)
            running.discard(index)

    class Watched(GradedStage):
        async def cleanup(self):
            await super().cleanup()
            at_clean_up.append((set(running), [env.closed for env in self.made]))

    stage = Watched(lambda _: Meddling(), episodes=4)
    [group] = await play(tmp_path / "run", stage, Remembering(answer), strategy=FailFast())
    assert at_clean_up == [(set(), [1, 1, 1, 1])]
    rollouts = recorded(tmp_path / "run")
    assert [rollout.status for rollout in rollouts] == ["cancelled", "cancelled", "error", "cancelled"]
    aborted = "episode_aborted"
    assert [rollout.stop_reason for rollout in rollouts] == [aborted, aborted, "error", aborted]
    assert all(rollout.pending_prompt is not None for rollout in rollouts)
    assert group.failure is not None
    assert group.failure.message == "down"
    assert [(member.index, member.status) for member in group.members] == [
        (0, "cancelled"),
        (1, "cancelled"),
        (2, "error"),
        (3, "cancelled"),
    ]
    assert stage.seen == ()


async def test_fail_fast_leaves_a_null_score_for_finished_members(tmp_path):
    """A finished member whose group grade will not come gets a null score that says so."""
    first_done = asyncio.Event()

    async def answer(request):
        if request.identity.index == 1:
            await first_done.wait()
            raise ConnectionError("down")
        return said("x")

    class Announcing(Meddling):
        async def close(self):
            await super().close()
            first_done.set()

    stage = GradedStage(lambda number: Announcing(turns=1), episodes=2)
    await play(tmp_path / "run", stage, Remembering(answer), strategy=FailFast())
    [first, second] = recorded(tmp_path / "run")
    assert (first.status, second.status) == ("ok", "error")
    [score] = RunReader(tmp_path / "run").scores()
    assert (score.rollout, score.name, score.value) == (first.id, "reward", None)
    assert "down" in score.error.message


async def test_fail_fast_records_a_retry_that_was_due_as_aborted(tmp_path):
    """If another game ends the group, a failed game whose retry was due is recorded as aborted."""
    closing = asyncio.Event()

    async def answer(request):
        if request.identity.index == 0:
            await closing.wait()
        if request.identity.index in (0, 2):
            raise ConnectionError("down")
        await asyncio.Event().wait()

    class ClosesSlowly(Meddling):
        async def close(self):
            await super().close()
            closing.set()
            await asyncio.Event().wait()

    def make(number):
        return [Meddling(), ClosesSlowly() if number == 1 else Meddling()]

    stage = Stage(make, episodes=2, seats=2)
    [group] = await play(tmp_path / "run", stage, Remembering(answer), strategy=FailFast(), retries=1)
    told = [(rollout.index, rollout.attempt, rollout.stop_reason) for rollout in recorded(tmp_path / "run")]
    assert told == [
        (0, 0, "error"), (0, 1, "error"), (1, 0, "episode_aborted"), (1, 1, "episode_aborted"),
        (2, 0, "error"), (2, 1, "episode_aborted"), (3, 0, "episode_aborted"), (3, 1, "episode_aborted"),
    ]  # fmt: skip
    assert [(member.index, member.attempt) for member in group.members] == [(0, 1), (1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize(("fraction", "viable"), [(0.0, True), (0.5, True), (0.75, False)])
async def test_keep_viable(tmp_path, fraction, viable):
    """Failed members are data: the group counts while enough members are ok, and its grader sees all of them."""
    stage = GradedStage(lambda _: Meddling(turns=2), episodes=4)
    [group] = await play(
        tmp_path / "run", stage, Remembering(Flaky({0: 9, 3: 9})), strategy=KeepViable(fraction), concurrency=1
    )
    assert [member.status for member in group.members] == ["error", "ok", "ok", "error"]
    assert (group.failure is None) == viable
    assert len(stage.seen) == (4 if viable else 0)
    assert [member.reward for member in group.members] == [None, 203.0, 303.0, None] if viable else [None] * 4


@pytest.mark.parametrize("stage", [Stage, GradedStage])
async def test_rewards_align_with_members(tmp_path, stage):
    """A group's rewards have one entry per member, in their order, and None for a member without a reward."""
    [group] = await play(
        tmp_path / "run",
        stage(lambda _: Meddling(turns=2), episodes=4),
        Remembering(Flaky({0: 9, 2: 9})),
        strategy=KeepViable(),
    )
    assert group.rewards == [member.reward for member in group.members]
    assert dict(zip((member.index for member in group.members), group.rewards, strict=True)) == (
        {0: None, 1: 3.0, 2: None, 3: 3.0} if stage is Stage else {0: None, 1: 203.0, 2: None, 3: 403.0}
    )


async def test_members_have_the_group_s_grade(tmp_path):
    """A member's rollout has the reward with the group's grade, the line's reward, grade and scores, as read back."""

    class Telling(GradedStage):
        async def grade_group(self, rollouts):
            return {one.id: Grade(one.index + 1.0, {"wins": one.index}, {"met": one.task}) for one in rollouts}

    [group] = await play(tmp_path / "run", Telling(lambda _: Meddling(turns=1), episodes=2), Remembering(said("x")))
    written = list(RunReader(tmp_path / "run").scores())
    for member, total in zip(group.members, (2.0, 3.0), strict=True):
        rollout = member.rollout
        assert (member.reward, rollout.reward, member.line_reward, rollout.line_reward) == (total, total, None, None)
        grade = Grade(total - 1.0, {"wins": member.index}, {"met": rollout.task})
        assert (member.group_grade, rollout.group_grade) == (grade, grade)
        assert member.scores == rollout.scores == tuple(one for one in written if one.rollout == member.id)


class BadGroup(GradedStage):
    """A stage whose group grader does what the test configures."""

    def __init__(self, grades, **settings):
        super().__init__(lambda _: Meddling(turns=1), episodes=3, **settings)
        self.grades = grades

    async def grade_group(self, rollouts):
        return self.grades(rollouts)


def raising(rollouts):
    raise RuntimeError("no judge")


@pytest.mark.parametrize(
    ("grades", "values", "message"),
    [
        (raising, [None, None, None], "no judge"),
        (lambda rollouts: [Grade(1.0)] * 3, [None, None, None], "by rollout id"),
        (lambda rollouts: {r.id: Grade(1.0) for r in rollouts if r.index != 1}, [2.0, None, 2.0], "got no grade"),
        (lambda rollouts: {r.id: Grade(float("nan") if r.index == 1 else 1.0) for r in rollouts}, [2, None, 2], "nan"),
        (lambda rollouts: {r.id: 1.0 if r.index == 1 else Grade(1.0) for r in rollouts}, [2, None, 2], "Grade"),
        (lambda rollouts: {r.id: Grade("good" if r.index == 1 else 1.0) for r in rollouts}, [2, None, 2], "good"),
    ],
)
async def test_a_group_grader_that_fails(tmp_path, grades, values, message):
    """A group grader's failure is a null score with the error on the rollout it concerns; others keep their grades."""
    [group] = await play(tmp_path / "run", BadGroup(grades), Remembering(said("x")))
    rollouts = {rollout.id: rollout for rollout in recorded(tmp_path / "run")}
    assert all(rollout.status is Status.OK for rollout in rollouts.values())
    scores = {rollouts[score.rollout].index: score for score in RunReader(tmp_path / "run").scores()}
    assert [scores[index].value for index in range(3)] == values
    assert [member.reward for member in group.members] == values
    assert [member.rollout.reward for member in group.members] == values
    failed = [score for score in scores.values() if score.value is None]
    assert all(score.error.layer is Layer.GRADER for score in failed)
    assert all(message in score.error.message for score in failed)


async def test_a_cancelled_group_grader_leaves_null_scores(tmp_path):
    """If cancellation prevents the grading, each waiting rollout gets a null score; the cancellation is re-raised."""
    asked = asyncio.Event()

    class Slow(GradedStage):
        async def grade_group(self, rollouts):
            asked.set()
            await asyncio.Event().wait()

    stage = Slow(lambda _: Meddling(turns=1), episodes=2)
    task = asyncio.create_task(play(tmp_path / "run", stage, Remembering(said("x"))))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.status for rollout in recorded(tmp_path / "run")] == ["ok", "ok"]
    scores = list(RunReader(tmp_path / "run").scores())
    assert [(score.value, score.error.type) for score in scores] == [(None, "Interrupted")] * 2
    assert stage.cleaned == 1


async def test_members_that_finished_before_a_cancellation_get_null_scores(tmp_path):
    """A finished member whose siblings are cancelled gets a null score: its grade will not come."""
    first_done = asyncio.Event()

    class Announcing(Meddling):
        async def close(self):
            await super().close()
            first_done.set()

    async def answer(request):
        return said("x") if request.identity.index == 0 else await asyncio.Event().wait()

    stage = GradedStage(lambda _: Announcing(turns=1), episodes=2)
    task = asyncio.create_task(play(tmp_path / "run", stage, Remembering(answer)))
    await first_done.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first, second = recorded(tmp_path / "run")
    assert (first.status, second.status) == ("ok", "cancelled")
    [score] = RunReader(tmp_path / "run").scores()
    assert (score.rollout, score.value, score.error.type) == (first.id, None, "Interrupted")


@pytest.mark.parametrize("episodes", [1, 2])
async def test_members_that_are_cancelled_while_playing_are_not_graded(tmp_path, episodes):
    """The grader of a group whose rollouts are cancelled is not asked, whether it has one member or several."""
    playing, asked = asyncio.Event(), []

    class Watched(GradedStage):
        async def grade_group(self, rollouts):
            asked.append(rollouts)
            return await super().grade_group(rollouts)

    async def answer(request):
        playing.set()
        return await asyncio.Event().wait()

    stage = Watched(lambda _: Meddling(turns=1), episodes=episodes)
    task = asyncio.create_task(play(tmp_path / "run", stage, Remembering(answer), retries=1))
    await playing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.status for rollout in recorded(tmp_path / "run")] == ["cancelled"] * episodes
    assert (asked, stage.cleaned) == ([], 1)


@pytest.mark.parametrize("episodes", [1, 2])
async def test_an_error_without_a_rollout_is_raised(tmp_path, episodes):
    """If a builder fails before there are rollouts, the error reaches the caller after clean-up."""

    class Nameless(Stage):
        def role_of(self, seat):
            raise LookupError("nobody plays")

    stage = Nameless(lambda _: Meddling(turns=1), episodes=episodes)
    with pytest.raises(LookupError, match="nobody plays"):
        await play(tmp_path / "run", stage, Remembering(said("x")))
    assert stage.cleaned == 1


async def test_text_in_the_data_of_a_grade_is_moved_and_noted(tmp_path):
    """A grade keeps its reward although its data hold text: the text goes to `extra`, with a note."""
    stage = BadGroup(lambda rollouts: {r.id: Grade(1.0, {"clear": 0.5, "why": "good"}) for r in rollouts})
    await play(tmp_path / "run", stage, Remembering(said("x")))
    scores = list(RunReader(tmp_path / "run").scores())
    assert len(scores) == stage.episodes
    for score in scores:
        assert score.value == 2.0
        assert score.data["reward_data"] == {"clear": 0.5}
        assert score.data["extra"] == {"reward_data.why": "good"}
        assert "why" in score.data["notes"][0]["path"]


async def test_room_is_made_as_episodes_end():
    """A group with only one slow member left occupies one slot, not the whole group's."""
    slow = asyncio.Event()
    tasks = []

    async def answer(request):
        tasks.append(request.identity.task)
        if request.identity.task == "first" and request.identity.index == 0:
            await slow.wait()
        if request.identity.task == "third":
            slow.set()
        return said("x")

    stages = [Stage(lambda _: Meddling(turns=1), episodes=4, task=task) for task in ("first", "second", "third")]
    runner = Runner(Remembering(answer), sink=MemorySink(), concurrency=4)
    groups = [group.task async for group in runner.play(stages)]
    assert sorted(groups) == ["first", "second", "third"]
    assert groups[-1] != "second"


async def test_grades_for_unknown_rollouts_are_named(tmp_path):
    """A grade for a rollout outside the group is a recorded failure; the members keep their grades."""
    stage = BadGroup(lambda rollouts: {"stranger": Grade(5.0)} | {r.id: Grade(1.0) for r in rollouts})
    [group] = await play(tmp_path / "run", stage, Remembering(said("x")))
    assert group.rewards == [2.0, 2.0, 2.0]
    [score] = [score for score in RunReader(tmp_path / "run").scores() if score.rollout is None]
    assert score.group.group == "task"
    assert "stranger" in score.error.message


async def test_groups_have_names_unique_within_an_iteration(tmp_path):
    """A task that repeats within an iteration gets a number, also if a task has such a name already."""
    tasks = ["a", "b", "a", "a~2", "a"]
    groups = await play(
        tmp_path / "run", [Stage(lambda _: Meddling(turns=1), task=task) for task in tasks], Remembering(said("x"))
    )
    assert sorted(group.group for group in groups) == ["a", "a~2", "a~2~2", "a~3", "b"]


async def test_groups_are_yielded_as_they_finish():
    """A slow group does not delay a fast one."""
    slow = asyncio.Event()

    async def answer(request):
        if request.identity.task == "slow":
            await slow.wait()
        return said("x")

    stages = [Stage(lambda _: Meddling(turns=1), task=task) for task in ("slow", "quick")]
    seen = []
    async for group in Runner(Remembering(answer), sink=MemorySink()).play(stages):
        seen.append(group.task)
        slow.set()
    assert seen == ["quick", "slow"]


@pytest.mark.parametrize("concurrency", [1, 3, 100])
async def test_concurrency_bounds_policy_requests(concurrency):
    """No more requests than the bound are in flight, and the bound is reached."""
    in_flight = most = 0

    async def answer(request):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return said("x")

    stages = [Stage(lambda _: Meddling(), episodes=4) for _ in range(8)]
    async for _ in Runner(Remembering(answer), sink=MemorySink(), concurrency=concurrency).play(stages):
        pass
    assert most == min(concurrency, 32)


async def test_groups_are_made_only_when_there_is_room():
    """Groups are drawn from an endless source as rollouts end, not all at once."""
    drawn = 0

    def source():
        nonlocal drawn
        while True:
            drawn += 1
            yield Stage(lambda _: Meddling(turns=1), episodes=2)

    runner = Runner(Remembering(said("x")), sink=MemorySink(), concurrency=4)
    async with contextlib.aclosing(runner.play(source())) as groups:
        async for _ in groups:
            break
    assert drawn <= 5


async def test_a_cancelled_run_records_what_was_in_flight(tmp_path):
    """Cancelling a run records every rollout in flight, cleans up every group, and raises again."""
    waiting = 0
    all_in = asyncio.Event()

    async def answer(request):
        nonlocal waiting
        if request.step == 0:
            return said("x")
        waiting += 1
        if waiting == 12:
            all_in.set()
        return await asyncio.Event().wait()

    stages = [Stage(lambda _: Meddling(), episodes=4, task=f"t{number}") for number in range(3)]
    policy = Remembering(answer)
    task = asyncio.create_task(play(tmp_path / "run", stages, policy))
    await all_in.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    rollouts = recorded(tmp_path / "run")
    assert len(rollouts) == 12
    for rollout in rollouts:
        assert (rollout.status, rollout.stop_reason) == (Status.CANCELLED, StopReason.CANCELLED)
        assert_faithful(rollout, policy)
        assert len(rollout.steps) == 1
    assert [stage.cleaned for stage in stages] == [1, 1, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_early_records_what_was_in_flight():
    """If the caller closes the generator early, the rest is cancelled, recorded and awaited."""

    async def answer(request):
        if request.identity.group != "task":
            await asyncio.Event().wait()
        return said("x")

    sink = MemorySink()
    runner = Runner(Remembering(answer), sink=sink)
    async with contextlib.aclosing(runner.play([Stage(lambda _: Meddling(turns=1)) for _ in range(3)])) as groups:
        async for group in groups:
            assert group.group == "task"
            break
    assert sorted(rollout.status for rollout in sink.rollouts) == ["cancelled", "cancelled", "ok"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_ledger_adds_up_after_all_this(tmp_path):
    """Every attempt that was started is recorded."""
    stage = Stage(lambda _: Meddling(turns=2), episodes=3)
    await play(tmp_path / "run", stage, Remembering(Flaky({1: 2, 2: 5})), retries=2)
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.dispatched, ledger.recorded, ledger.in_flight) == (7, 7, 0)


def test_strategies_refuse_what_makes_no_sense():
    """A fraction outside 0 to 1, or a negative number of retries, is refused."""
    with pytest.raises(InputError, match="0 to 1"):
        KeepViable(1.5)
    with pytest.raises(InputError, match="0 or more"):
        Runner(Remembering(said("x")), sink=MemorySink(), retries=-1)
    with pytest.raises(InputError, match="1 or more"):
        Runner(Remembering(said("x")), sink=MemorySink(), concurrency=0)
