"""Games that several seats play in turn: the rules, the table that coordinates the seats, and the env of one seat."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import Env, Observation, SingleUse, StepResult
from rolltrace.errors import EnvError
from rolltrace.policies.policy import Completion
from rolltrace.policies.roles import ask
from rolltrace.rollout_clock import pause_deadline
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import StopReason

OPPONENT = "opponent"
"""The role of the seats that are not rollouts."""

MAX_MOVES = 1000
"""The default limit on the moves of all seats together, including illegal ones."""

ABORT_WAIT_SECONDS = 10.0
"""How long seats wait for the runner to abort them after another has left the game, before they raise."""


class GameResult(msgspec.Struct, frozen=True):
    """How a game ended."""

    rewards: Mapping[int, float] = {}
    """Rewards by seat; a missing seat has 0."""
    reason: str | None = None
    """Why it ended, in the game's own words."""
    data: Mapping[str, Any] = {}
    """Other data of the game, for the record."""


class Game(ABC):
    """The rules of a game in which one seat moves at a time: synchronous code, independent of policies."""

    seats: int
    """The number of players."""

    @property
    @abstractmethod
    def turn(self) -> int | None:
        """The seat that moves next; None once the game is over."""

    @abstractmethod
    def observation_for(self, seat: int) -> str:
        """New information for this seat. It is called before each of the seat's moves, and at the end."""

    @abstractmethod
    def move(self, text: str) -> bool:
        """Make the move of the seat whose turn it is, and return whether it was legal."""

    @abstractmethod
    def result(self) -> GameResult:
        """The result of the game. It is called when the game is over or is stopped."""


class Move(msgspec.Struct, frozen=True):
    """One move of a game, legal or not."""

    number: int
    """The position among the moves of all seats."""
    seat: int
    legal: bool

    def as_dict(self) -> dict[str, Any]:
        """The move for the records of other seats; only the seat that made it records its text."""
        return {"move": self.number, "seat": self.seat, "legal": self.legal}


class GameTable:
    """One game and its seats, each of which is an env. A seat waits until it is its turn.

    With `play_as` only that seat is an env. Each other seat is played by the policy of the role `seatN`, such as
    `seat2`, or by that of the role `opponent` if no policy has that role. They are called while
    the env waits for its turn, each with its own conversation, and their replies are recorded with the rollout.
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
        """The envs of the episode, one for each seat that is a rollout."""
        seats = range(self.game.seats) if self._play_as is None else (self._play_as,)
        return [SeatEnv(self, seat) for seat in seats]

    @property
    def turn(self) -> int | None:
        """The seat that moves next; None once the game is over or stopped."""
        return None if self.reached_max_moves else self.game.turn

    @property
    def is_over(self) -> bool:
        """Whether there are no more moves."""
        return self.turn is None

    @property
    def reached_max_moves(self) -> bool:
        """Whether the game was stopped by `max_moves`."""
        is_capped = self._max_moves is not None and len(self.moves) >= self._max_moves
        return is_capped and self.game.turn is not None

    @property
    def result(self) -> GameResult:
        """How the game ended, once it has."""
        if self._result is None:
            self._result = self.game.result()
        return self._result

    async def wait_for_turn(self, seat: int) -> bool:
        """Wait for the seat's turn; False if the game is over instead."""
        while (turn := self.turn) not in (None, seat):
            if self._quit_seat is not None:
                await asyncio.sleep(ABORT_WAIT_SECONDS)
                raise EnvError(f"Seat {self._quit_seat} left the game before its end: seat {seat} cannot play on.")
            if self._play_as is not None and turn is not None:
                await self._ask_opponent(turn)
            else:
                with pause_deadline():  # waiting for other seats does not count as this seat's time
                    await self._changed.wait()
        return turn is not None

    def message_to(self, seat: int) -> Message:
        """The observation of a seat before its move, or at the end."""
        text = self.game.observation_for(seat)
        if self.is_over:
            text = f"{text}\n\n{self._end_text()}".strip()
        return Message("user", text or "It is your turn.")

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
        """Mark a seat as gone. If the game is not over, the other seats cannot continue."""
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
        await asyncio.sleep(0)  # so that a cancellation arrives even if the opponent never waits


class SeatEnv(Env):
    """The env of one seat. The game's reward is the reward of the seat's last step."""

    def __init__(self, table: GameTable, seat: int) -> None:
        self.table = table
        self.seat = seat
        self._life = SingleUse()
        self._seen = 0
        """The number of the game's moves that are in this seat's record."""
        self._partial_result: StepResult | None = None
        """The partial result of the current step."""

    async def initial_observation(self) -> Observation | StepResult:
        """The observation at the seat's first turn, or the result of a game that ended before it."""
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
        result = self._partial_result = StepResult(0.0, False, env_state=state, metrics=_counts(move))
        if not await table.wait_for_turn(self.seat):
            return self._end(state, move)
        return msgspec.structs.replace(result, observation=Observation([table.message_to(self.seat)]))

    def unfinished_step(self) -> StepResult | None:
        """The move that was made, if the seat was waiting for its next turn."""
        return self._partial_result

    async def close(self) -> None:
        """Leave the table."""
        self.table.leave(self.seat)

    def _new_moves(self) -> list[dict[str, Any]]:
        """The moves of other seats since the last step of this seat."""
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
    """The metrics of one step."""
    return {"moves": float(move is not None), "illegal_moves": float(move is not None and not move.legal)}
