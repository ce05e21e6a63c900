"""Groups of user-written games."""

import asyncio
import math
import pickle
from dataclasses import replace

import pytest

from envs.arena_moves import Mover, play
from envs.countdown import Countdown, countdowns
from rolltrace.envs.game_group import GameGroup
from rolltrace.errors import InputError
from rolltrace.graders.grader import Grader, GroupGrader
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Sampling
from rolltrace.trace.score import Grade
from stage import Remembering, said, skip_time


class Drawn(Countdown):
    """A heap whose size is drawn from the seed."""

    def __init__(self, seed):
        super().__init__(heap=seed)


async def results(builder, policy):
    """The groups that a runner yields."""
    return [group async for group in Runner(policy, sink=MemorySink()).play([builder])]


async def test_every_episode_has_a_fresh_game_from_the_seed():
    """Each game is made from the builder's seed, and shares no state with another."""
    builder = GameGroup(env="drawn", task="three", make_game=Drawn, players=2, episodes=3, seed=3)
    rollouts = await play(builder, Mover(["1"], illegal=0))
    assert [(r.episode, r.seat, r.seed, r.reward) for r in rollouts] == [
        (episode, seat, 3, 1.0 - 2 * seat) for episode in range(3) for seat in range(2)
    ]
    assert check_env(builder, answers=["1", "x"]) == []


@pytest.mark.parametrize(("play_as", "seats"), [(None, 3), (0, 1), (2, 1)])
async def test_the_seats_that_are_rollouts(play_as, seats):
    """Every seat is a rollout, the first the policy's and the others its opponents', or only the seat of `play_as`."""
    builder = countdowns(heap=6, seats=3, play_as=play_as, episodes=2)
    assert (builder.seats, builder.players) == (seats, 3)
    assert [builder.role_of(seat) for seat in range(seats)] == ["policy", "opponent", "opponent"][:seats]
    opponent = Mover(["1"], illegal=0, name="other")
    rollouts = await play(builder, Mover(["1"], illegal=0), roles={"opponent": opponent})
    assert [r.policy for r in rollouts] == ["mover", "other", "other"][:seats] * 2
    assert [r.reward for r in rollouts] == ([-1.0, -1.0, 1.0] if play_as is None else [1.0 if play_as else -1.0]) * 2
    assert {len(r.calls) for r in rollouts} == ({0} if play_as is None else {4})


def test_what_is_recorded_of_how_it_is_played():
    """The game's own arguments are recorded along with those of the group, also in a changed copy."""
    sampling = Sampling(temperature=0.5, max_tokens=8)
    builder = countdowns(env_args={"heap": 5}, play_as=1, opponent_sampling=sampling, opponent_seconds=2.0)
    assert builder.env_args == {
        "heap": 5, "players": 2, "play_as": 1, "max_moves": 1000,
        "opponent_temperature": 0.5, "opponent_max_tokens": 8, "opponent_seconds": 2.0,
    }  # fmt: skip
    changed = replace(builder, play_as=None, max_moves=7)
    assert (changed.seats, changed.env_args["play_as"], changed.env_args["max_moves"]) == (2, None, 7)


async def test_how_it_is_played_reaches_the_table():
    """The bound on moves and the opponents' settings reach the table."""
    asked = []

    def answer(request):
        asked.append(request.sampling)
        return said("1")

    sampling = Sampling(max_tokens=8)
    builder = countdowns(heap=9, play_as=0, max_moves=4, opponent_sampling=sampling, opponent_seconds=60.0)
    [rollout] = await play(builder, Mover(["1"], illegal=0), roles={"opponent": Remembering(answer)})
    assert (rollout.stop_reason, len(rollout.steps), len(rollout.calls)) == ("max_turns", 2, 2)
    assert asked == [sampling] * 2


async def test_an_opponent_has_so_much_time():
    """An opponent that exceeds its time counts as not answering."""

    async def answer_late(request):
        skip_time(2.0)
        for _ in range(10):
            await asyncio.sleep(0)
        return said("1")

    builder = countdowns(play_as=0, opponent_seconds=1.0)
    [rollout] = await play(builder, Remembering(said("1")), roles={"opponent": Remembering(answer_late)})
    assert rollout.calls[0].error.message == "no answer within 1.0 s"


async def test_a_group_may_have_graders():
    """Their grades are added to the game's rewards."""

    class Moves(Grader):
        async def grade(self, rollout):
            return Grade(reward=0.5 * len(rollout.steps))

    class Seats(GroupGrader):
        async def grade_group(self, rollouts):
            return {rollout.id: Grade(reward=100.0 * rollout.seat) for rollout in rollouts}

    [group] = await results(countdowns(heap=3, grader=Moves(), group_grader=Seats()), Mover(["1"], illegal=0))
    assert group.rewards == [2.0, 99.5]


async def test_a_game_with_another_number_of_seats_is_an_error():
    """The error says what was expected, and the group fails in layer env."""
    builder = GameGroup(env="countdown", task="heap", make_game=lambda seed: Countdown(seats=3), players=2)
    rollouts = await play(builder, Mover(["1"], illegal=0))
    assert {(r.status, r.error.layer) for r in rollouts} == {("error", "env")}
    assert "Expected a game of 2 seats from make_game in countdown" in rollouts[0].error.message
    assert "got one of 3" in rollouts[0].error.message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"seats": 0}, "Expected players of at least 1 in countdown, got 0"),
        ({"play_as": 2}, "Expected play_as from 0 to 1 in countdown, got 2"),
        ({"play_as": -1}, "Expected play_as from 0 to 1 in countdown, got -1"),
        ({"max_moves": 0}, "Expected max_moves of at least 1 in countdown, got 0"),
        ({"opponent_seconds": 0.0}, r"Expected opponent_seconds above 0 in countdown, got 0\.0"),
        ({"opponent_seconds": math.nan}, "Expected opponent_seconds above 0 in countdown, got nan"),
        ({"opponent_sampling": Sampling(max_tokens=0)}, "Expected opponent_max_tokens of at least 1 in countdown"),
        ({"opponent_sampling": Sampling(temperature=-1.0)}, "Expected a finite opponent_temperature of at least 0"),
        ({"opponent_sampling": Sampling(temperature=math.inf)}, "Expected a finite opponent_temperature .* got inf"),
    ],
)
def test_wrong_arguments(settings, expected):
    """Each error says what was expected and what came."""
    with pytest.raises(InputError, match=expected):
        countdowns(**settings)


def test_a_group_pickles():
    """A pickled group plays the same game."""
    builder = countdowns(heap=7, seats=3)
    copy = pickle.loads(pickle.dumps(builder))
    assert replace(copy, make_game=builder.make_game) == builder
    game = copy.make_game(copy.seed)
    assert (game.heap, game.seats) == (7, 3)
