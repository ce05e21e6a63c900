"""One game of textarena, with its own chance, behind the interface of a `Game`."""

import contextlib
import math
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rolltrace.envs.game import Game, GameResult
from rolltrace.envs.textarena_games import FAMILY, action_wrappers, hides_moves, make_game, player_counts, silenced
from rolltrace.errors import EnvError, InputError, RolltraceError

MAX_MOVE_CHARS = 2000
"""How many characters of a move, from its end, a game gets: its patterns are slow on long texts."""

_MAX_ELIMINATION_LOOKUPS = 10_000
"""How often in one move a game may find a player eliminated before it is taken to search for ever."""


class TextArenaGame(Game):
    """A game as textarena registers it, without its observation wrappers: each seat is told what is new to it.

    textarena draws from the global `random` (and numpy's). Around each call of a game that is exchanged for the game's
    own, so the same seed gives the same game whatever else happens in the process. For that moment the process's
    standard output, its warning filters and `nltk.download` are exchanged too, so that no game prints, warns or
    downloads by itself. Games of one event loop do not disturb each other; a thread that draws from `random`, prints
    or warns in that very moment would be disturbed.
    """

    def __init__(self, name: str, players: int, seed: int, options: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.seats = players
        self._rng_state = RngState(seed)
        self._hides_moves = hides_moves(name)
        self._illegal = False
        self._nobody_left = False
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
        """The player on move; textarena may take a player's illegal move as a reason to ask again, or to go on."""
        return self._turn

    def observation_for(self, seat: int) -> str:
        """The messages that textarena has for this player only, each line of a player's with the name before it."""
        with self._isolated("tell"):
            if seat == self._turn:
                _, messages = self._game.get_observation()
            else:
                messages = self._state.observations.get(seat, [])
                self._state.observations[seat] = []
        lines = [line for message in messages for line in self._lines(seat, *message[:3])]
        return "\n".join(lines)

    def move(self, text: str) -> bool:
        """Let textarena take the move; it is illegal where the game itself says so."""
        self._illegal = False
        self._eliminated.hits = 0
        try:
            with self._isolated("move"):
                self._moving.step(text[-MAX_MOVE_CHARS:])
        except NobodyLeftError:
            self._nobody_left = True
        self._turn = self._seat_on_turn()
        return not self._illegal

    def result(self) -> GameResult:
        """The game's own rewards; none where it was not played to an end."""
        if self._nobody_left:
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
        return None if self._state.done or self._nobody_left else int(self._state.current_player_id)

    def _patch_state(self) -> None:
        """Hear of illegal moves, which textarena only tells its players, and of a search for a player without end."""
        set_invalid_move = getattr(self._state, "set_invalid_move", None)

        def note_illegal(*args: Any, **settings: Any) -> Any:
            self._illegal = True
            if len(args) == 2 and isinstance(args[1], str):  # given in the wrong order by some games
                args = args[::-1]
            return set_invalid_move(*args, **settings)  # type: ignore[misc]

        if set_invalid_move is not None:
            self._state.set_invalid_move = note_illegal
        self._eliminated = EliminatedPlayers(getattr(self._state, "elimination_order", ()))
        self._state.elimination_order = self._eliminated

    def _lines(self, seat: int, sender: Any, text: Any, kind: Any) -> list[str]:
        """A message as lines; what the player said itself is in its conversation already."""
        if not isinstance(text, str):  # some games echo a player's own move with the arguments in the wrong order
            return []
        if getattr(kind, "name", "") == "PLAYER_ACTION" and (sender == seat or self._hides_moves):
            return []
        name = "GAME" if sender == -1 else self._state.role_mapping.get(sender, f"Player {sender}")
        if sender == -1:
            return [f"[{name}] {text}"]
        # Each line, so that no player can write one that seems to be the game's.
        return [f"[{name}] {line}" for line in text.splitlines()] or [f"[{name}]"]

    @contextlib.contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        with silenced(), self._rng_state.installed():
            try:
                yield
            except (RolltraceError, NobodyLeftError):
                raise
            except Exception as error:
                raise EnvError(f"{FAMILY}:{self.name} failed at its {what}: {type(error).__name__}: {error}") from error


def resolve_players(name: str, players: int | None, options: Mapping[str, Any]) -> int:
    """How many play: as many as asked for if the game takes them, else the fewest that it takes."""
    tries = player_counts(name)
    if players is None:
        allowed = next((count for count in tries if _refusal(name, count, options) is None), None)
        if allowed is None:
            raise InputError(f"{FAMILY}:{name} cannot be started: {_refusal(name, tries[0], options)}.")
        return allowed
    refusal = _refusal(name, players, options) if players in tries else "that many cannot play"
    if refusal is not None:
        counts = [str(count) for count in tries if _refusal(name, count, options) is None]
        raise InputError(f"Expected players of {FAMILY}:{name} among {', '.join(counts)}, got {players}: {refusal}.")
    return players


def _refusal(name: str, players: int, options: Mapping[str, Any]) -> str | None:
    """Why a game cannot be played by so many; None where it can."""
    try:
        TextArenaGame(name, players, 0, options)
    except EnvError as error:
        return str(error.__cause__).rstrip(".")
    return None


class RngState:
    """The state of the global random generators as one game has it."""

    def __init__(self, seed: int) -> None:
        self._random: Any = random.Random(seed).getstate()  # noqa: S311 - not for secrets
        self._seed = seed
        self._numpy: Any = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Exchange the generators' states for this one's, and back."""
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


class NobodyLeftError(Exception):
    """A game looks for a player who may still move, and there is none; never leaves this file."""


class EliminatedPlayers(list[int]):
    """The players that are out. textarena goes round the table until it finds one who is not, even if none is."""

    hits = 0
    """How often in this move somebody was found to be out."""

    def __contains__(self, player: object) -> bool:
        found = super().__contains__(player)
        self.hits += found
        if self.hits > _MAX_ELIMINATION_LOOKUPS:
            raise NobodyLeftError
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
