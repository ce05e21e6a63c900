"""Games: seats that share one episode are rollouts of their own."""

import asyncio

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.errors import GraderError
from rolltrace.graders.grader import Grader
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout_clock import pause_deadline
from rolltrace.trace.message import Message
from rolltrace.trace.score import Grade
from rolltrace.trace.stop_reasons import Termination
from stage import Counting, GradedStage, Remembering, Stage, assert_faithful, never, play, recorded, said


class Table:
    """Two players speak in turn; each waits for the other."""

    def __init__(self, rounds):
        self.moves = []
        self.remaining_iterations = rounds
        self.modified_at = asyncio.Condition()

    async def move(self, seat, text):
        async with self.modified_at:
            await self.modified_at.wait_for(lambda: len(self.moves) % 2 == seat)
            self.moves.append((seat, text))
            self.modified_at.notify_all()
            await self.modified_at.wait_for(lambda: self.over or len(self.moves) % 2 == seat)

    @property
    def over(self):
        return len(self.moves) >= 2 * self.remaining_iterations


class Player(Env):
    """One seat at a table."""

    def __init__(self, table, seat):
        self.table = table
        self.seat = seat

    async def initial_observation(self):
        return Observation([Message("user", f"You are seat {self.seat}.")])

    async def step(self, completion):
        await self.table.move(self.seat, completion.message.content)
        heard = [text for seat, text in self.table.moves if seat != self.seat]
        over = self.table.over
        return StepResult(1.0 - self.seat, done=over, observation=Observation([Message("user", f"Heard {heard}.")]))


def make_table(number):
    """Makes both seats of one game."""
    table = Table(rounds=3)
    return [Player(table, 0), Player(table, 1)]


@pytest.mark.parametrize("concurrency", [1, 2, 64])
async def test_a_low_bound_cannot_deadlock_a_game(tmp_path, concurrency):
    """Seats start together, and waiting for another seat's move occupies no request slot."""
    policy = Remembering(lambda request: said(f"move {request.step} of {request.identity.seat}"))
    stage = GradedStage(make_table, episodes=3, seats=2, grader=Counting())
    [group] = await asyncio.wait_for(play(tmp_path / "run", stage, policy, concurrency=concurrency), 60)
    rollouts = recorded(tmp_path / "run")
    assert [(rollout.index, rollout.episode, rollout.seat) for rollout in rollouts] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
        (4, 2, 0),
        (5, 2, 1),
    ]
    for rollout in rollouts:
        assert_faithful(rollout, policy)
        assert rollout.stop_reason == "completed"
    assert [member.reward for member in group.members] == [
        pytest.approx(10 + 3.0 * (1 - index % 2) + 100 * (index + 1)) for index in range(6)
    ]


async def test_an_episode_is_retried_whole(tmp_path):
    """When one seat fails, all seats of that episode are retried, each with its own record and index."""

    def answer(request):
        if request.identity.seat == 1 and request.identity.episode == 1 and request.identity.attempt == 0:
            raise ConnectionError("seat 1 fell asleep")
        return said("x")

    stage = Stage(make_table, episodes=2, seats=2)
    [group] = await play(tmp_path / "run", stage, Remembering(answer), retries=1)
    assert [(r.index, r.attempt, r.stop_reason) for r in recorded(tmp_path / "run")] == [
        (0, 0, "completed"),
        (1, 0, "completed"),
        (2, 0, "episode_aborted"),
        (2, 1, "completed"),
        (3, 0, "error"),
        (3, 1, "completed"),
    ]
    assert [member.attempt for member in group.members] == [0, 0, 1, 1]


@pytest.mark.parametrize("termination", [Termination.LENGTH, Termination.MALFORMED])
async def test_a_seat_that_the_runner_stops_ends_the_game(tmp_path, termination):
    """If the runner stops one seat, the others end as aborted instead of waiting for its move."""

    def answer(request):
        cut = request.identity.seat == 1 and request.step == 1
        return said("x", termination if cut else Termination.EOS)

    await asyncio.wait_for(play(tmp_path / "run", Stage(make_table, seats=2), Remembering(answer)), 60)
    first, second = recorded(tmp_path / "run")
    assert second.stop_reason in ("max_tokens", "parse_error")
    assert second.status == "ok"
    assert (first.stop_reason, first.reward) == ("episode_aborted", None)
    assert len(first.steps) >= 1


async def test_cancelling_a_game_records_every_seat(tmp_path):
    """A cancelled game is `cancelled` at every seat, not `episode_aborted`."""
    waiting = asyncio.Event()

    async def answer(request):
        if request.identity.seat == 1:
            waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(play(tmp_path / "run", Stage(make_table, seats=2), Remembering(answer)))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.stop_reason for rollout in recorded(tmp_path / "run")] == ["cancelled", "cancelled"]


# How the failure of one seat affects the others


class Turns(Env):
    """Seats that move in turn, `turns` times each; a move is kept although its seat may still be waiting."""

    def __init__(self, table, seat, turns=2):
        self.table, self.seat, self.turns = table, seat, turns
        self.made = None

    async def _turn(self):
        with pause_deadline():
            while self.table["moves"] % 2 != self.seat and self.table["moves"] < 2 * self.turns:
                self.table["changed"] = asyncio.Event()
                await self.table["changed"].wait()

    async def initial_observation(self):
        await self._turn()
        return Observation([Message("user", "move")])

    async def step(self, completion):
        self.made = StepResult(0.0, False, env_state={"move": self.table["moves"]})
        self.table["moves"] += 1
        self.table.get("changed", asyncio.Event()).set()
        await self._turn()
        if self.table["moves"] >= 2 * self.turns:
            return StepResult(1.0, True, env_state=self.made.env_state)
        return StepResult(0.0, False, Observation([Message("user", "move")]), env_state=self.made.env_state)

    def unfinished_step(self):
        return self.made


def turns(**settings):
    def make(number):
        table = {"moves": 0}
        return [Turns(table, 0), Turns(table, 1)]

    return Stage(make, seats=2, **settings)


@pytest.mark.parametrize("first", [0, 1])
async def test_a_grader_that_fails_for_one_seat_leaves_the_other_its_grade(tmp_path, first):
    """Graders run after the game, so one that fails for a seat does not abort the other seat."""

    class Choosy(Grader):
        async def grade(self, rollout):
            if rollout.seat == first:
                raise GraderError("no idea")
            for _ in range(20):
                await asyncio.sleep(0)
            return Grade(5.0)

    await play(tmp_path / "run", turns(grader=Choosy()), Remembering(said("x")))
    rollouts = recorded(tmp_path / "run")
    assert [rollout.stop_reason for rollout in rollouts].count("episode_aborted") == 0
    assert rollouts[first].error.layer == "grader"
    assert (rollouts[1 - first].status, rollouts[1 - first].reward) == ("ok", 6.0)


@pytest.mark.parametrize("late", [0, 1])
async def test_the_seat_whose_turn_it_is_times_out(tmp_path, late):
    """A seat's clock is paused while it waits for another's move, so the time-out hits the seat whose turn it is."""

    async def answer(request):
        if request.identity.seat == late and request.step == 1:
            await never()
        return said("x")

    await play(tmp_path / "run", turns(), Remembering(answer), limits=Limits(timeout=60))
    rollouts = recorded(tmp_path / "run")
    assert rollouts[late].stop_reason == "timeout"
    assert rollouts[1 - late].stop_reason == "episode_aborted"


async def test_waiting_at_the_gate_is_no_seats_time(tmp_path):
    """While one seat waits for a request slot, the other seat's clock is paused too."""
    loop = asyncio.get_running_loop()
    clock, offset = loop.time, [0.0]
    loop.time = lambda: clock() + offset[0]

    async def answer(request):
        await asyncio.sleep(0)
        offset[0] += 4.0
        return said("x")

    await play(tmp_path / "run", turns(episodes=4), Remembering(answer), limits=Limits(timeout=10), concurrency=1)
    assert {rollout.stop_reason for rollout in recorded(tmp_path / "run")} == {"completed"}


async def test_a_move_that_was_made_is_a_step_though_the_game_is_aborted(tmp_path):
    """A seat that waits for its next turn has made its move: the step is recorded, as aborted."""

    def answer(request):
        if request.identity.seat == 0 and request.step == 1:
            raise ValueError("down")
        return said(f"move {request.step}")

    await play(tmp_path / "run", turns(), Remembering(answer))
    first, second = recorded(tmp_path / "run")
    assert (first.error.layer, second.stop_reason) == ("policy", "episode_aborted")
    assert [step.env_state["move"] for step in first.steps] == [0]
    assert [(step.env_state["move"], step.trace.policy_response.content) for step in second.steps] == [(1, "move 0")]
    assert [(step.env_failure, step.env_reward, step.reward) for step in second.steps] == [("aborted", None, 0.0)]
    assert (second.pending_prompt, second.reward) == (None, None)
