"""A group builder for games that users write."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltrace.envs.env import Env, GroupFields
from rolltrace.envs.game import MAX_MOVES, OPPONENT, Game, GameTable
from rolltrace.errors import EnvError, InputError
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.message import Sampling


@dataclass(kw_only=True)
class GameGroup(GroupFields):
    """Episodes of one game, always from the same start."""

    make_game: Callable[[int], Game]
    """Makes a new game from the seed. A class or function of a module, or a `functools.partial` of one, pickles."""
    players: int
    """The number of players. Each is a rollout, unless `play_as` is set."""
    play_as: int | None = None
    """The only seat that is a rollout; the roles `seatN` or `opponent` play the others."""
    max_moves: int | None = MAX_MOVES
    """The limit on the moves of all seats together, including illegal ones."""
    opponent_sampling: Sampling = field(default_factory=Sampling)
    opponent_seconds: float | None = None
    """Time limit for a reply of an opponent."""
    seats: int = field(init=False)
    env_args: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the game itself; those of this builder are added."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        self.seats = self.players if self.play_as is None else 1
        self.env_args = {
            **self.env_args,
            "players": self.players,
            "play_as": self.play_as,
            "max_moves": self.max_moves,
            "opponent_temperature": self.opponent_sampling.temperature,
            "opponent_max_tokens": self.opponent_sampling.max_tokens,
            "opponent_seconds": self.opponent_seconds,
        }

    def role_of(self, seat: int) -> str:
        """The policy has the first seat, or `play_as`; the others are its opponents."""
        return POLICY_ROLE if seat == 0 else OPPONENT

    async def make_episode(self, number: int) -> Sequence[Env]:
        """A new game, and an env for each seat that is a rollout."""
        game = self.make_game(self.seed)
        if game.seats != self.players:
            raise EnvError(
                f"Expected a game of {self.players} seats from make_game in {self.env}, as many as there are players, "
                f"got one of {game.seats}."
            )
        table = GameTable(
            game,
            play_as=self.play_as,
            max_moves=self.max_moves,
            sampling=self.opponent_sampling,
            seconds=self.opponent_seconds,
        )
        return table.envs()

    def _check(self) -> None:
        env, players, play_as, max_moves = self.env, self.players, self.play_as, self.max_moves
        if players < 1:
            raise InputError(f"Expected players of at least 1 in {env}, got {players}.")
        if play_as is not None and not 0 <= play_as < players:
            raise InputError(f"Expected play_as from 0 to {players - 1} in {env}, got {play_as}.")
        if max_moves is not None and max_moves < 1:
            raise InputError(f"Expected max_moves of at least 1 in {env}, got {max_moves}.")
        temperature, max_tokens = self.opponent_sampling.temperature, self.opponent_sampling.max_tokens
        if temperature is not None and not 0 <= temperature < math.inf:
            raise InputError(f"Expected a finite opponent_temperature of at least 0 in {env}, got {temperature}.")
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"Expected opponent_max_tokens of at least 1 in {env}, got {max_tokens}.")
        if self.opponent_seconds is not None and not self.opponent_seconds > 0:
            raise InputError(f"Expected opponent_seconds above 0 in {env}, got {self.opponent_seconds}.")
