"""User-written games: a table, its seats, and every way in which a seat can leave."""

import asyncio
import random

import pytest

from envs.arena_moves import Mover, play, seen, story
from envs.countdown import Countdown, countdowns
from rolltrace.envs.game import ABORT_WAIT_SECONDS, GameTable
from rolltrace.errors import EnvError, PolicyError
from rolltrace.policies.policy import to_completion
from rolltrace.policies.roles import with_roles
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.testing.check_env import check_env
from rolltrace.trace.message import Sampling
from rolltrace.trace.stop_reasons import Termination
from stage import Remembering, never, said, skip_time


def by_seat(*moves):
    """A policy with the moves of each seat, in turn."""
    return Remembering(lambda request: said(moves[request.identity.seat or 0][request.step]))


async def test_each_seat_is_told_its_turns_and_its_reward():
    """The reward is on the last step of every seat, also of one that waits when another ends the game."""
    first, second = await play(countdowns(), by_seat(["2", "1"], ["1", "1"]))
    assert [step.reward for step in first.steps] == [0.0, -1.0]
    assert [step.reward for step in second.steps] == [0.0, 1.0]
    assert (first.stop_reason, second.stop_reason) == ("completed", "completed")
    assert [message.content for message in first.conversation] == [
        "You are 0. Your secret is s0cret.", "2", "1 took 1, 2 are left.", "1",
        "1 took 1, 0 are left.\n\nThe game is over: 1 took the last.",
    ]  # fmt: skip
    assert [message.content for message in second.steps[0].trace.prompt] == [
        "You are 1. Your secret is s1cret.\n0 took 2, 3 are left."
    ]
    assert [message.role for message in second.conversation] == ["user", "assistant", "user", "assistant", "user"]


async def test_the_record_of_a_step():
    """A step has the seat, the move's number and legality, the next seat, others' moves, and why the game ended."""
    first, second = await play(countdowns(), by_seat(["2", "7", "1"], ["1", "1"]))
    states = [step.trace.env_state for step in first.steps]
    assert states == [
        {"seat": 0, "before": [], "move": 0, "legal": True, "next": 1},
        {"seat": 0, "before": [{"move": 1, "seat": 1, "legal": True}], "move": 2, "legal": False, "next": 0},
        {"seat": 0, "before": [], "move": 3, "legal": True, "next": 1,
         "after": [{"move": 4, "seat": 1, "legal": True}]},
    ]  # fmt: skip
    assert [step.trace.reward_data for step in first.steps] == [{}, {}, {"game_reward": -1.0}]
    assert [step.metrics for step in first.steps] == [
        {"moves": 1, "illegal_moves": 0},
        {"moves": 1, "illegal_moves": 1},
        {"moves": 1, "illegal_moves": 0, "game_moves": 5},
    ]
    assert first.steps[-1].trace.extra == {
        "reason": "1 took the last.",
        "rewards": {"0": -1.0, "1": 1.0},
        "winner": 1,
    }
    assert story(first) == story(second) == [(0, 0, True), (1, 1, True), (2, 0, False), (3, 0, True), (4, 1, True)]


@pytest.mark.parametrize("concurrency", [1, 64])
async def test_indexes_episodes_and_seats(concurrency):
    """A group of games is several episodes; a low bound on requests does not deadlock a game."""
    builder = countdowns(heap=9, seats=3, episodes=4)
    policy = Remembering(lambda request: said(random.Random(request.seed).choice(["1", "2", "x"])))
    rollouts = await asyncio.wait_for(play(builder, policy, concurrency=concurrency), 60)
    assert [(r.index, r.episode, r.seat) for r in rollouts] == [(i, i // 3, i % 3) for i in range(12)]
    for episode in range(4):
        seats = [rollout for rollout in rollouts if rollout.episode == episode]
        assert len({tuple(story(rollout)) for rollout in seats}) == 1
        assert sum(rollout.reward for rollout in seats) == -1.0


async def test_a_seat_sees_no_secret_of_another():
    """A seat's messages hold its own secret and no other seat's."""
    rollouts = await play(countdowns(heap=9, seats=3), Remembering(lambda request: said("1")))
    assert sorted(rollout.seat for rollout in rollouts) == [0, 1, 2]
    for rollout in rollouts:
        shown = "\n".join(seen(rollout))
        assert [f"s{seat}cret" in shown for seat in range(3)] == [seat == rollout.seat for seat in range(3)]


async def test_a_game_that_ends_before_a_seat_has_moved():
    """The seat's policy is not asked; its record has the game's stop reason and reward."""
    first, second = await play(countdowns(heap=2), by_seat(["2"], []))
    assert first.reward == 1.0
    assert (second.steps, second.pending_prompt, second.status, second.stop_reason) == ((), None, "ok", "completed")
    assert (second.reward, second.reward_so_far, second.stopped_by) == (-1.0, -1.0, "env")
    assert second.conversation[-1].content.endswith("0 took 2, 0 are left.\n\nThe game is over: 0 took the last.")
    told = second.ended_before_first_turn
    assert (told.reward, told.reward_data) == (-1.0, {"game_reward": -1.0})
    assert told.metrics == {"moves": 0, "illegal_moves": 0, "game_moves": 1}
    assert told.env_state == {
        "seat": 1, "before": [{"move": 0, "seat": 0, "legal": True}], "move": None, "legal": None, "next": None,
        "after": [],
    }  # fmt: skip
    assert told.extra == first.steps[-1].trace.extra
    assert story(second) == story(first) == [(0, 0, True)]
    assert first.ended_before_first_turn is None


async def test_a_move_that_breaks_the_game_is_a_step_of_its_seat():
    """The seat that made it has the move as a failed step, without an earlier state; the others are aborted."""
    first, second = await play(countdowns(heap=9), by_seat(["1", "crash"], ["2"]))
    assert [(step.env_failure, step.trace.policy_response.content) for step in first.steps] == [
        (None, "1"), ("raised", "crash"),
    ]  # fmt: skip
    assert first.error.message == "the heap fell over"
    assert first.steps[1].env_state == {}
    [waiting] = second.steps
    assert (waiting.env_failure, waiting.env_reward, waiting.reward) == ("aborted", None, 0.0)
    assert (waiting.env_state["move"], waiting.metrics["moves"]) == (1, 1)
    assert second.conversation[-1].content == "2"


async def test_the_cap_on_moves():
    """A game that is stopped at the cap has no winner; one that ends with its last allowed move is complete."""
    first, second = await play(countdowns(heap=9, max_moves=3), by_seat(["1", "1"], ["1", "1"]))
    assert {(r.stop_reason, r.stopped_by, r.reward) for r in (first, second)} == {("max_turns", "env", 0.0)}
    assert first.conversation[-1].content == "The game was stopped after 3 moves."
    assert len(story(first)) == len(story(second)) == 3
    first, second = await play(countdowns(heap=3, max_moves=3), by_seat(["1", "1"], ["1", "1"]))
    assert {(r.stop_reason, r.stopped_by) for r in (first, second)} == {("completed", "env")}
    assert (first.reward, second.reward) == (1.0, -1.0)


async def test_an_opponent_is_asked():
    """With `play_as` there is one rollout; the others' moves are calls, each with that seat's own conversation."""
    answers = {"policy": ["2", "1"], "opponent": ["1", "1"]}
    policy = Remembering(lambda request: said(answers["policy"][request.step]))
    asked = []

    def opponent(request):
        assert (request.role, request.sampling.max_tokens) == ("opponent", 9)
        asked.append([message.content for message in request.messages])
        return said(answers["opponent"][len(asked) - 1])

    other = Remembering(opponent)
    other.name = "other"
    [rollout] = await play(
        countdowns(play_as=0, opponent_sampling=Sampling(max_tokens=9)), policy, roles={"opponent": other}
    )
    assert (rollout.seat, rollout.episode, rollout.policy, rollout.reward) == (None, None, "remembering", -1.0)
    assert [(call.role, call.policy, call.reply.content, call.step) for call in rollout.calls] == [
        ("opponent", "other", "1", 0),
        ("opponent", "other", "1", 1),
    ]
    assert asked[0] == ["You are 1. Your secret is s1cret.\n0 took 2, 3 are left."]
    assert asked[1] == [*asked[0], "1", "0 took 1, 1 are left."]
    assert [call.continues_call for call in rollout.calls] == [None, 0]
    assert story(rollout) == [(0, 0, True), (1, 1, True), (2, 0, True), (3, 1, True)]
    assert not any("s1cret" in text for text in seen(rollout))


async def test_an_opponent_may_move_first():
    """An opponent may be asked before the played seat's first prompt; without opponents the policy plays all seats."""
    [rollout] = await play(countdowns(heap=3, play_as=1), Remembering(lambda request: said("1")))
    assert [call.role for call in rollout.calls] == ["opponent", "opponent"]
    assert rollout.steps[0].trace.prompt[-1].content == "You are 1. Your secret is s1cret.\n0 took 1, 2 are left."
    assert rollout.reward == -1.0


async def test_opponents_by_the_number_of_their_seat():
    """A policy given for `seatN` plays that seat; the other seats are the opponent's, and the rollout the policy's."""
    names = ("policy", "opponent", "second", "nobody")
    policy, opponent, second, nobody = (Mover(["1"], illegal=0, name=name) for name in names)
    roles = {"opponent": opponent, "seat2": second, "seat0": nobody}
    [rollout] = await play(countdowns(heap=8, seats=4, play_as=0), policy, roles=roles)
    assert rollout.policy == "policy"
    asked = [(call.about, call.policy, call.role) for call in rollout.calls]
    assert asked == [
        ("seat 1", "opponent", "opponent"), ("seat 2", "second", "opponent"), ("seat 3", "opponent", "opponent")
    ] * 2  # fmt: skip


async def test_an_opponent_that_does_not_answer():
    """The failure is that policy's, and is recorded with the rollout."""
    broken = Remembering(ConnectionError("gone"))
    [rollout] = await play(countdowns(play_as=0), Remembering(said("1")), roles={"opponent": broken})
    assert (rollout.status, rollout.error.layer, rollout.error.type) == ("error", "policy", "RoleError")
    assert rollout.calls[0].error.message == "gone"


@pytest.mark.parametrize("seconds", [None, 1.0])
async def test_an_opponent_that_takes_too_long(seconds):
    """The table bounds an opponent's time, the runner that of the rollout."""
    settings = {} if seconds is None else {"opponent_seconds": seconds}
    limits = Limits(timeout=100.0 if seconds is None else None)
    [rollout] = await play(
        countdowns(play_as=0, **settings), Remembering(said("1")), roles={"opponent": Remembering(never)}, limits=limits
    )
    assert rollout.stop_reason == ("timeout" if seconds is None else "error")


WAYS_OUT = {
    "cut": (lambda: said("1", Termination.LENGTH), Limits(), "max_tokens"),
    "malformed": (lambda: said("1", Termination.MALFORMED), Limits(), "parse_error"),
    "policy": (lambda: ConnectionError("gone"), Limits(), "error"),
    "crash": (lambda: said("crash"), Limits(), "error"),
    "timeout": (lambda: never, Limits(timeout=100.0), "timeout"),
    "overflow": (lambda: said("1"), Limits(context_length=10), "context_overflow"),
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_a_seat_that_leaves_ends_the_game_for_all(way, leaver):
    """However one seat leaves, the other seats end as `episode_aborted` and do not wait."""
    answer, limits, reason = WAYS_OUT[way]

    def tokens(request):
        return 99 if request.identity.seat == leaver and request.step == 1 and way == "overflow" else 1

    async def answered(request):
        if request.identity.seat != leaver or request.step != 1:
            return said("1")
        given = answer()
        if isinstance(given, Exception):
            raise given
        return await given(request) if callable(given) else given

    class Seated(Remembering):
        async def complete(self, request):
            return await answered(request)

    builder = countdowns(heap=50, seats=3)
    rollouts = await play(builder, Seated(tokens=tokens), limits=limits)
    reasons = [rollout.stop_reason for rollout in rollouts]
    others = reasons[:leaver] + reasons[leaver + 1 :]
    if way == "timeout":  # the clock of every seat has run out by then
        assert set(reasons) <= {"timeout", "episode_aborted"}
    else:
        assert (reasons[leaver], others) == (reason, ["episode_aborted"] * 2)
    assert all(rollout.reward is None for rollout in rollouts if rollout.stop_reason == "episode_aborted")


async def test_without_a_runner_waiting_seats_get_an_error():
    """Seats that wait for a closed seat get an error, after the time in which a runner would have aborted them."""
    first, second = GameTable(Countdown()).envs()
    await first.initial_observation()
    waiting = asyncio.create_task(second.initial_observation())
    await asyncio.sleep(0)
    await first.close()
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.sleep(0)
    skip_time(ABORT_WAIT_SECONDS + 1)
    with pytest.raises(EnvError, match="Seat 0 left the game before its end: seat 1 cannot play on"):
        await asyncio.wait_for(waiting, 60)
    await second.close()


async def test_a_game_that_fails_ends_for_the_waiting_seats():
    """A move that breaks the game raises for its seat, and waiting seats get an error."""
    first, second = GameTable(Countdown()).envs()
    await first.initial_observation()
    waiting = asyncio.create_task(second.initial_observation())
    with pytest.raises(RuntimeError, match="fell over"):
        await first.step(to_completion("crash"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    skip_time(ABORT_WAIT_SECONDS + 1)
    with pytest.raises(EnvError, match="Seat 0 left"):
        await asyncio.wait_for(waiting, 60)


async def test_seats_are_single_use_and_keep_to_their_turn():
    """Misuse of a seat is a clear error."""
    first, second = GameTable(Countdown()).envs()
    with pytest.raises(EnvError, match="before initial_observation"):
        await first.step(to_completion("1"))
    await first.initial_observation()
    with pytest.raises(EnvError, match="single use"):
        await first.initial_observation()
    waiting = asyncio.create_task(second.initial_observation())
    await asyncio.sleep(0)
    with pytest.raises(EnvError, match="Seat 1 moved out of turn: seat 0 is to move"):
        await second.step(to_completion("1"))
    waiting.cancel()


async def test_opponents_outside_a_runner():
    """Outside a runner and `with_roles`, asking an opponent is an error that says so."""
    [env] = GameTable(Countdown(), play_as=1).envs()
    with pytest.raises(PolicyError, match="No policy plays the role 'opponent'"):
        await env.initial_observation()
    [env] = GameTable(Countdown(), play_as=1).envs()
    with with_roles(Mover(["2"], illegal=0)) as calls:
        observation = await env.initial_observation()
    assert observation.messages[0].content.endswith("0 took 2, 3 are left.")
    assert calls[0].reply.content == "2"


@pytest.mark.parametrize(
    "settings", [{}, {"seats": 3}, {"seats": 1}, {"play_as": 1, "max_moves": 20}, {"max_moves": 2}]
)
def test_a_game_keeps_the_contract(settings):
    """Tables of all shapes pass `check_env`, with legal and illegal moves."""
    assert check_env(countdowns(**settings)) == []
    assert check_env(countdowns(**settings), answers=["1", "x", "2"]) == []
