"""The built-in family `textarena:NAME`: games of the textarena package, played between seats that are rollouts."""

import contextlib
import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rolltrace.envs.game import MAX_MOVES, Game, GameResult
from rolltrace.envs.game_group import GameGroup
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.textarena_games import FAMILY, action_wrappers, hides_moves, make_game, player_counts, silenced
from rolltrace.envs.textarena_games import names as game_names
from rolltrace.errors import EnvError, InputError, RolltraceError
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Sampling

MAX_MOVE_CHARS = 2000
"""How many characters of a move, from its end, a game gets: its patterns are slow on long texts."""

_MAX_ELIMINATION_LOOKUPS = 10_000
"""How often in one move a game may find a player eliminated before the game counts as stuck in an endless search."""


class TextArenaTasks(Tasks):
    """Games of textarena, in self-play or against an opponent; the game sets the rewards."""

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

        `players` is by default the fewest that the game allows. With `play_as` only that seat is a rollout, and the
        role `opponent` plays the others. `max_moves` bounds the moves of all seats together. `options` are
        settings of the game itself, such as `{"max_rounds": 3}`.
        """
        self.env = f"{FAMILY}:{name}"
        self.name = name
        self.players = resolve_players(name, players, options or {})
        self._group = GameGroup(
            env=self.env,
            task=name,
            make_game=partial(TextArenaGame, name, self.players, options=options or {}),
            players=self.players,
            play_as=play_as,
            max_moves=max_moves,
            opponent_sampling=Sampling(temperature=opponent_temperature, max_tokens=opponent_max_tokens),
            opponent_seconds=opponent_seconds,
            tags=("game", f"players{self.players}"),
            env_args={"options": options or {}},
        )

    @staticmethod
    def names() -> list[str]:
        """All games, without their `-raw` and `-train` variants, which can be loaded too."""
        return game_names()

    def builder(self, number: int, *, episodes: int, seed: int) -> GameGroup:
        """The group that plays game `number` of the seed."""
        return replace(
            self._group,
            task=f"players{self.players}-seed{seed}-{number}",
            episodes=episodes,
            seed=derive_seed(FAMILY, self.name, self.players, seed, number),
        )


class TextArenaGame(Game):
    """A game as textarena registers it, without its observation wrappers: each seat gets only new messages.

    textarena draws from the global `random` (and numpy's). During each call of a game, their state is replaced by the
    game's own, so that the same seed always gives the same game. Standard output, the warning filters and
    `nltk.download` are replaced too, so that no game prints, warns or downloads. This is safe for games of one event
    loop, but affects a thread that draws from `random`, prints or warns during the call.
    """

    def __init__(self, name: str, players: int, seed: int, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.seats = players
        self._rng_state = RngState(seed)
        self._hides_moves = hides_moves(name)
        self._illegal = False
        self._all_eliminated = False
        with self._isolated("start"):
            self._game = make_game(name, options or {})
            self._game.reset(num_players=players, seed=seed)
            self._state: Any = self._game.state
            self._patch_state()
            self._moving: Any = self._game
            for wrapper in action_wrappers(name):
                self._moving = wrapper(self._moving)
            self._turn = self._seat_on_turn()

    @property
    def turn(self) -> int | None:
        """The player on move. After an illegal move, textarena either asks the same player again or goes on."""
        return self._turn

    def observation_for(self, seat: int) -> str:
        """The new messages for this player; each line of another player starts with that player's name."""
        with self._isolated("tell"):
            if seat == self._turn:
                _, messages = self._game.get_observation()
            else:
                messages = self._state.observations.get(seat, [])
                self._state.observations[seat] = []
        lines = [line for message in messages for line in self._lines(seat, *message[:3])]
        return "\n".join(lines)

    def move(self, text: str) -> bool:
        """Pass the move to textarena, and return whether it was legal."""
        self._illegal = False
        self._eliminated.hits = 0
        try:
            with self._isolated("move"):
                self._moving.step(text[-MAX_MOVE_CHARS:])
        except AllEliminatedError:
            self._all_eliminated = True
        self._turn = self._seat_on_turn()
        return not self._illegal

    def result(self) -> GameResult:
        """The game's own rewards, or none if the game did not end."""
        if self._all_eliminated:
            return GameResult(reason="Every player was eliminated, and the game names no winner.")
        if not self._state.done:
            return GameResult()
        with self._isolated("end"):
            rewards, info = self._game.close()
        if not isinstance(rewards, Mapping) or not all(_is_number(value) for value in rewards.values()):
            raise EnvError(f"{FAMILY}:{self.name} ended without numbers for rewards: {rewards!r}.")
        reasons = {str(info[seat].get("reason")) for seat in range(self.seats) if info[seat].get("reason")}
        return GameResult(
            {seat: float(value) for seat, value in rewards.items()},
            "; ".join(sorted(reasons)) or None,
            {"game_info": {str(seat): dict(info[seat]) for seat in range(self.seats)}},
        )

    def _seat_on_turn(self) -> int | None:
        return None if self._state.done or self._all_eliminated else int(self._state.current_player_id)

    def _patch_state(self) -> None:
        """Detect illegal moves, which textarena reports only to its players, and endless searches for a player."""
        set_invalid_move = getattr(self._state, "set_invalid_move", None)

        def note_illegal(*args: Any, **settings: Any) -> Any:
            self._illegal = True
            if len(args) == 2 and isinstance(args[1], str):  # some games swap the arguments
                args = args[::-1]
            return set_invalid_move(*args, **settings)  # type: ignore[misc]

        if set_invalid_move is not None:
            self._state.set_invalid_move = note_illegal
        self._eliminated = EliminatedPlayers(getattr(self._state, "elimination_order", ()))
        self._state.elimination_order = self._eliminated

    def _lines(self, seat: int, sender: Any, text: Any, kind: Any) -> list[str]:
        """A message as lines, without the player's own moves, which its conversation already has."""
        if not isinstance(text, str):  # some games swap the arguments when they echo a player's own move
            return []
        if getattr(kind, "name", "") == "PLAYER_ACTION" and (sender == seat or self._hides_moves):
            return []
        name = "GAME" if sender == -1 else self._state.role_mapping.get(sender, f"Player {sender}")
        if sender == -1:
            return [f"[{name}] {text}"]
        # Each line has the name, so that no player can write a line that looks like the game's.
        return [f"[{name}] {line}" for line in text.splitlines()] or [f"[{name}]"]

    @contextlib.contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        with silenced(), self._rng_state.installed():
            try:
                yield
            except (RolltraceError, AllEliminatedError):
                raise
            except Exception as error:
                raise EnvError(f"{FAMILY}:{self.name} failed at its {what}: {type(error).__name__}: {error}") from error


def resolve_players(name: str, players: int | None, options: Mapping[str, Any]) -> int:
    """The number of players: `players` if the game allows it, by default the fewest that it allows."""
    counts = player_counts(name)
    if players is None:
        fewest = next((count for count in counts if _refusal(name, count, options) is None), None)
        if fewest is None:
            raise InputError(f"{FAMILY}:{name} cannot be started: {_refusal(name, counts[0], options)}.")
        return fewest
    refusal = _refusal(name, players, options) if players in counts else "that many cannot play"
    if refusal is not None:
        allowed = ", ".join(str(count) for count in counts if _refusal(name, count, options) is None)
        raise InputError(f"Expected players of {FAMILY}:{name} among {allowed}, got {players}: {refusal}.")
    return players


def _refusal(name: str, players: int, options: Mapping[str, Any]) -> str | None:
    """Why the game cannot be played by this number of players, or None if it can."""
    try:
        TextArenaGame(name, players, 0, options)
    except EnvError as error:
        return str(error.__cause__).rstrip(".")
    return None


class RngState:
    """One game's own state of the global random generators."""

    def __init__(self, seed: int) -> None:
        self._random: Any = random.Random(seed).getstate()  # noqa: S311 - not for secrets
        self._seed = seed
        self._numpy: Any = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Install this state in the generators, and restore theirs on exit."""
        numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
        outside = random.getstate()
        numpy_outside = None if numpy is None else numpy.get_state()
        random.setstate(self._random)
        if numpy is not None:
            numpy.seed(self._seed % 2**32) if self._numpy is None else numpy.set_state(self._numpy)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(outside)
            if numpy is not None:
                self._numpy = numpy.get_state()
                numpy.set_state(numpy_outside)


class AllEliminatedError(Exception):
    """A game searches endlessly for a player who can move; this error does not leave the module."""


class EliminatedPlayers(list[int]):
    """The eliminated players. textarena searches for another player, and never stops if all are eliminated."""

    hits = 0
    """How many lookups in this move found an eliminated player."""

    def __contains__(self, player: object) -> bool:
        is_eliminated = super().__contains__(player)
        self.hits += is_eliminated
        if self.hits > _MAX_ELIMINATION_LOOKUPS:
            raise AllEliminatedError
        return is_eliminated


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
