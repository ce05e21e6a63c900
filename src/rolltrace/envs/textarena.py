"""The built-in family `textarena:NAME`: games of the textarena package, between seats that are rollouts."""

from functools import partial
from typing import Any

from rolltrace.envs import textarena_games as games
from rolltrace.envs.game import MAX_MOVES
from rolltrace.envs.game_group import GameGroup, check_game_args, check_opponent_args
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.textarena_game import TextArenaGame, resolve_players
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Sampling


class TextArenaTasks(Tasks):
    """Games of textarena between policies, by themselves or against an opponent; scored by the game."""

    def __init__(
        self,
        name: str,
        players: int | None = None,
        play_as: int | None = None,
        max_moves: int = MAX_MOVES,
        opponent_temperature: float | None = None,
        opponent_max_tokens: int | None = None,
        opponent_seconds: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Choose a game.

        `players` is by default the fewest that the game takes. With `play_as` only that seat is a rollout, and the
        others are asked in the role `opponent`. `max_moves` bounds the moves of all seats together. `options` are
        settings of the game itself, such as `{"max_rounds": 3}`.
        """
        self.env = f"{games.FAMILY}:{name}"
        self.name = name
        self.options = dict(options or {})
        self.opponent_sampling = Sampling(temperature=opponent_temperature, max_tokens=opponent_max_tokens)
        check_opponent_args(self.env, self.opponent_sampling, opponent_seconds)
        self.players = resolve_players(name, players, self.options)
        check_game_args(self.env, self.players, play_as, max_moves)
        self.play_as = play_as
        self.max_moves = max_moves
        self.opponent_seconds = opponent_seconds

    @staticmethod
    def names() -> list[str]:
        """All games, without the `-raw` and `-train` names of each; those are known too."""
        return games.names()

    def builder(self, number: int, *, episodes: int, seed: int) -> GameGroup:
        """The group that plays game `number` of the seed."""
        return GameGroup(
            env=self.env,
            task=f"players{self.players}-seed{seed}-{number}",
            make_game=partial(TextArenaGame, self.name, self.players, options=self.options),
            players=self.players,
            play_as=self.play_as,
            max_moves=self.max_moves,
            opponent_sampling=self.opponent_sampling,
            opponent_seconds=self.opponent_seconds,
            tags=("game", f"players{self.players}"),
            episodes=episodes,
            env_args={"options": self.options},
            seed=derive_seed(games.FAMILY, self.name, self.players, seed, number),
        )
