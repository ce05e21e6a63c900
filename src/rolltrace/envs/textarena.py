"""The built-in family `textarena:NAME`: games of the textarena package, between seats that are rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolltrace.envs import textarena_catalogue as catalogue
from rolltrace.envs.base import Env, EnvGroupBuilder
from rolltrace.envs.game import MAX_TURNS, OPPONENT, Table
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.textarena_game import TextArenaGame, find_players
from rolltrace.errors import InputError
from rolltrace.policies.roles import POLICY
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Sampling


@dataclass(kw_only=True)
class TextArenaGroup(EnvGroupBuilder):
    """Plays one game as often as asked, always from the same start."""

    env: str
    task: str
    name: str
    players: int
    play_as: int | None = None
    max_turns: int = MAX_TURNS
    opponent_sampling: Sampling = field(default_factory=Sampling)
    opponent_seconds: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    episodes: int = 1
    seats: int = 1
    env_args: Mapping[str, Any] = field(default_factory=dict)
    task_data: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.seats = self.players if self.play_as is None else 1

    def role_of(self, seat: int) -> str:
        """The policy has the first seat, or the one it plays as; the others are its opponents."""
        return POLICY if seat == 0 else OPPONENT

    async def make_episode(self, number: int) -> Sequence[Env]:
        """A fresh game, and an env for each seat that is a rollout."""
        table = Table(
            TextArenaGame(self.name, self.players, self.seed, self.options),
            play_as=self.play_as,
            max_turns=self.max_turns,
            sampling=self.opponent_sampling,
            seconds=self.opponent_seconds,
        )
        return table.envs()


class TextArenaTasks(Tasks):
    """Games of textarena between policies, by themselves or against an opponent; scored by the game."""

    def __init__(
        self,
        name: str,
        players: int | None = None,
        play_as: int | None = None,
        max_turns: int = MAX_TURNS,
        opponent_temperature: float | None = None,
        opponent_max_tokens: int | None = None,
        opponent_seconds: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Choose a game.

        `players` is by default the fewest that the game takes. With `play_as` only that seat is a rollout, and the
        others are asked in the role `opponent`. `max_turns` bounds the moves of all seats together. `options` are
        settings of the game itself, such as `{"max_rounds": 3}`.
        """
        self.env = f"{catalogue.FAMILY}:{name}"
        self.name = name
        self.options = dict(options or {})
        self.players = find_players(name, players, self.options)
        if play_as is not None and not 0 <= play_as < self.players:
            raise InputError(f"Expected play_as from 0 to {self.players - 1} in {self.env}, got {play_as}.")
        if max_turns < 1:
            raise InputError(f"Expected max_turns of at least 1, got {max_turns}.")
        self.play_as = play_as
        self.max_turns = max_turns
        self.opponent_sampling = Sampling(temperature=opponent_temperature, max_tokens=opponent_max_tokens)
        self.opponent_seconds = opponent_seconds

    @staticmethod
    def names() -> list[str]:
        """All games, without the `-raw` and `-train` names of each; those are known too."""
        return catalogue.names()

    def builder(self, number: int, *, episodes: int, seed: int) -> TextArenaGroup:
        """The group that plays game `number` of the seed."""
        return TextArenaGroup(
            env=self.env,
            task=f"players{self.players}-seed{seed}-{number}",
            name=self.name,
            players=self.players,
            play_as=self.play_as,
            max_turns=self.max_turns,
            opponent_sampling=self.opponent_sampling,
            opponent_seconds=self.opponent_seconds,
            options=self.options,
            tags=("game", f"players{self.players}"),
            episodes=episodes,
            env_args={
                "players": self.players, "play_as": self.play_as, "max_turns": self.max_turns, "options": self.options,
                "opponent_temperature": self.opponent_sampling.temperature,
                "opponent_max_tokens": self.opponent_sampling.max_tokens, "opponent_seconds": self.opponent_seconds,
            },
            seed=derive_seed(catalogue.FAMILY, self.name, self.players, seed, number),
        )  # fmt: skip
