"""Games that several seats play in turn: the rules, the table they are played at, and the env of one seat."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.deadline_pause import pause_deadline
from rolltrace.envs.env import Env, Observation, SingleUse, StepResult
from rolltrace.errors import EnvError
from rolltrace.policies.policy import Completion
from rolltrace.policies.role_calls import ask
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import StopReason

OPPONENT = "opponent"
"""The role in which the seats are played that are no rollouts of their own."""

MAX_MOVES = 1000
"""How many moves a game may have where nothing else is said, of all seats together and illegal ones included."""

ABORT_WAIT_SECONDS = 10.0
"""How long seats wait for a runner to abort them once another has left the game; then they raise."""


class GameResult(msgspec.Struct, frozen=True):
    """How a game ended."""

    rewards: Mapping[int, float] = {}
    """By seat; a seat that is not named has 0."""
    reason: str | None = None
    """Why it ended, in the game's own words."""
    data: Mapping[str, Any] = {}
    """What else the game says about it, for the record."""


class Game(ABC):
    """The rules of a game in which one seat moves at a time; plain synchronous code that knows of no policy."""

    seats: int
    """How many play."""

    @property
    @abstractmethod
    def turn(self) -> int | None:
        """The seat that moves next; None once the game is over."""

    @abstractmethod
    def observation_for(self, seat: int) -> str:
        """What this seat may know and was not told yet, if anything; asked when it is to move, and at the end."""

    @abstractmethod
    def move(self, text: str) -> bool:
        """Let the seat whose turn it is say this; False says that it was no legal move, whatever came of it."""

    @abstractmethod
    def result(self) -> GameResult:
        """How the game ended; asked once it is over, or will not be played on."""


class Move(msgspec.Struct, frozen=True):
    """One move of a game, legal or not."""

    number: int
    """Its place among the moves of all seats."""
    seat: int
    legal: bool

    def as_dict(self) -> dict[str, Any]:
        """The move as other seats' records name it; its text is with whoever made it."""
        return {"move": self.number, "seat": self.seat, "legal": self.legal}


class GameTable:
    """One game and the seats at it, each an env; a seat whose turn it is not waits.

    With `play_as` only that seat is an env. The others are played by whoever was given the seat by its number in the
    game, such as `seat2`, else by the opponent: they are asked while the env waits for its turn, each with its own
    conversation, and what they say is recorded with it.
    """

    def __init__(
        self,
        game: Game,
        *,
        play_as: int | None = None,
        max_moves: int | None = MAX_MOVES,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        seconds: float | None = None,
    ) -> None:
        """`max_moves` bounds the moves of all seats together; `sampling` and `seconds` are for asking opponents."""
        self.game = game
        self.moves: list[Move] = []
        self._play_as = play_as
        self._max_moves = max_moves
        self._sampling = sampling
        self._seconds = seconds
        self._conversations: dict[int, list[Message]] = {}
        self._changed = asyncio.Event()
        self._quit_seat: int | None = None
        self._result: GameResult | None = None

    def envs(self) -> Sequence["SeatEnv"]:
        """The envs of the episode, one per seat that is a rollout."""
        seats = range(self.game.seats) if self._play_as is None else (self._play_as,)
        return [SeatEnv(self, seat) for seat in seats]

    @property
    def turn(self) -> int | None:
        """The seat that moves next; None once nobody does."""
        return None if self.reached_max_moves else self.game.turn

    @property
    def is_over(self) -> bool:
        """Whether nobody will move any more."""
        return self.turn is None

    @property
    def reached_max_moves(self) -> bool:
        """Whether the game has had as many moves as it may have, and has no end."""
        is_capped = self._max_moves is not None and len(self.moves) >= self._max_moves
        return is_capped and self.game.turn is not None

    @property
    def result(self) -> GameResult:
        """How the game ended, once it has."""
        if self._result is None:
            self._result = self.game.result()
        return self._result

    async def wait_for_turn(self, seat: int) -> bool:
        """Wait until the seat is on turn; False says that the game is over instead."""
        while (turn := self.turn) not in (None, seat):
            if self._quit_seat is not None:
                await asyncio.sleep(ABORT_WAIT_SECONDS)
                raise EnvError(f"Seat {self._quit_seat} left the game before its end: seat {seat} cannot play on.")
            if self._play_as is not None and turn is not None:
                await self._ask_opponent(turn)
            else:
                with pause_deadline():  # for others, whose time is not this seat's
                    await self._changed.wait()
        return turn is not None

    def message_to(self, seat: int) -> Message:
        """What a seat is told when it is to move, or at the end."""
        told = self.game.observation_for(seat)
        if self.is_over:
            told = f"{told}\n\n{self._end_text()}".strip()
        return Message("user", told or "It is your turn.")

    def _end_text(self) -> str:
        if self.reached_max_moves:
            return f"The game was stopped after {len(self.moves)} moves."
        reason = self.result.reason
        return f"The game is over: {reason}" if reason else "The game is over."

    def play(self, seat: int, text: str) -> Move:
        """Make a move."""
        if self.turn != seat:
            raise EnvError(f"Seat {seat} moved out of turn: seat {self.turn} is to move.")
        try:
            legal = self.game.move(text)
        except BaseException:
            self.leave(seat)
            raise
        self.moves.append(Move(len(self.moves), seat, bool(legal)))
        self._wake()
        return self.moves[-1]

    def leave(self, seat: int) -> None:
        """Take note that a seat will not move again; where the game is not over, nobody can play on."""
        if not self.is_over and self._quit_seat is None:
            self._quit_seat = seat
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _ask_opponent(self, seat: int) -> None:
        conversation = self._conversations.setdefault(seat, [])
        conversation.append(self.message_to(seat))
        completion = await ask(
            OPPONENT, conversation, sampling=self._sampling, seconds=self._seconds, about=f"seat {seat}", seat=seat
        )
        conversation.append(completion.message)
        self.play(seat, completion.message.content)
        await asyncio.sleep(0)  # an opponent that never waits must not keep a cancellation from being heard


class SeatEnv(Env):
    """One seat at a table. The game's reward is that of the seat's last step, whoever made the last move."""

    def __init__(self, table: GameTable, seat: int) -> None:
        self.table = table
        self.seat = seat
        self._life = SingleUse()
        self._seen = 0
        """How many moves of the game this seat's record has told."""
        self._partial_result: StepResult | None = None
        """What came so far of the move of the current step."""

    async def initial_observation(self) -> Observation | StepResult:
        """What the seat is told at its first turn; where the game is over before that, how it ended."""
        self._life.start()
        if not await self.table.wait_for_turn(self.seat):
            return self._end(
                {"seat": self.seat, "before": self._new_moves(), "move": None, "legal": None, "next": None}
            )
        return Observation([self.table.message_to(self.seat)])

    async def step(self, completion: Completion) -> StepResult:
        """Make the move and wait for the next turn, or the end."""
        self._partial_result = None
        self._life.require_active()
        table = self.table
        state: dict[str, Any] = {"seat": self.seat, "before": self._new_moves()}
        move = table.play(self.seat, completion.message.content)
        self._seen = len(table.moves)
        state |= {"move": move.number, "legal": move.legal, "next": table.turn}
        made = self._partial_result = StepResult(0.0, False, env_state=state, metrics=_counts(move))
        if not await table.wait_for_turn(self.seat):
            return self._end(state, move)
        return msgspec.structs.replace(made, observation=Observation([table.message_to(self.seat)]))

    def unfinished_step(self) -> StepResult | None:
        """The move that was made, where the seat was waiting for its next turn."""
        return self._partial_result

    async def close(self) -> None:
        """Leave the table."""
        self.table.leave(self.seat)

    def _new_moves(self) -> list[dict[str, Any]]:
        """The moves of the others since this seat's record last told of any."""
        moves = self.table.moves[self._seen :]
        self._seen += len(moves)
        return [move.as_dict() for move in moves]

    def _end(self, state: Mapping[str, Any], move: Move | None = None) -> StepResult:
        self._life.end()
        table = self.table
        result = table.result
        reward = result.rewards.get(self.seat, 0.0)
        return StepResult(
            reward=reward,
            done=True,
            observation=Observation([table.message_to(self.seat)]),
            reward_data={"game_reward": reward},
            env_state={**state, "after": self._new_moves()},
            extra={"reason": result.reason, "rewards": {str(seat): value for seat, value in result.rewards.items()}}
            | dict(result.data),
            metrics={**_counts(move), "game_moves": len(table.moves)},
            stop_reason=StopReason.MAX_TURNS if table.reached_max_moves else None,
        )


def _counts(move: Move | None) -> dict[str, float]:
    """What one step adds to the counts of a seat's moves."""
    return {"moves": float(move is not None), "illegal_moves": float(move is not None and not move.legal)}
