"""Finds and makes the games of the textarena package; the only file that knows how its registry works."""

import contextlib
import functools
import importlib
import importlib.metadata
import io
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from rolltrace.errors import InputError, UnknownNameError

FAMILY = "textarena"
_WRAPPED = ("-raw", "-train")
"""Endings of the names under which textarena offers the same game with other wrappers."""
_NEED_ONLINE_MODELS = {"Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"}
"""Games with a game master or a jury of their own behind an online service."""
_MIN_PLAYERS = {"MarketEntryGame": 2, "PublicGoodsGame": 2, "QuantumTicTacToe": 2, "SpiteAndMalice": 2}
_MAX_PLAYERS = {"QuantumTicTacToe": 2, "SpiteAndMalice": 2}
"""Bounds that these games have and do not check."""
_MAX_PLAYERS_OF_ANY_GAME = 15
_NLTK_DATA = re.compile(r"nltk\.download\(\W*(\w+)")


def names() -> list[str]:
    """All games, without the names that only stand for other wrappers."""
    return sorted(name for name in _registry() if not name.endswith(_WRAPPED))


def base_game(name: str) -> str:
    """The game of which this name is a variant, such as `TicTacToe`."""
    return str(_spec(name).entry_point).split(":", maxsplit=1)[0].split(".")[2]


def player_counts(name: str) -> range:
    """How many players may be tried; most games refuse by themselves what they do not take."""
    kind = base_game(name)
    return range(_MIN_PLAYERS.get(kind, 1), _MAX_PLAYERS.get(kind, _MAX_PLAYERS_OF_ANY_GAME) + 1)


def make_game(name: str, options: Mapping[str, Any]) -> Any:
    """The game's own object, without any wrapper; it is not started."""
    spec = _spec(name)
    kind = base_game(name)
    if kind in _NEED_ONLINE_MODELS:
        raise InputError(
            f"{FAMILY}:{name} cannot be played: it asks models of an online service by itself, "
            "and such calls could neither be recorded nor replaced."
        )
    module, _, member = spec.entry_point.partition(":")
    try:
        with silenced():
            return getattr(importlib.import_module(module), member)(**{**spec.kwargs, **options})
    except LookupError as error:
        if needed := _NLTK_DATA.search(str(error)):
            data = needed[1]
            raise InputError(
                f"{FAMILY}:{name} needs the word list {data!r} of nltk, which is not here: "
                f"download it once with `python -m nltk.downloader {data}`."
            ) from error
        raise _faulty(name, error) from error
    except TypeError as error:
        if options:
            raise InputError(f"{FAMILY}:{name} does not take the options {', '.join(options)}: {error}.") from error
        raise _faulty(name, error) from error
    except (Exception, SystemExit) as error:
        raise _faulty(name, error) from error


def action_wrappers(name: str) -> list[Any]:
    """What the game's name makes of a move before the game sees it, such as putting it into brackets."""
    action_wrapper = _textarena().ActionWrapper
    return [wrapper for wrapper in _spec(name).default_wrappers or () if issubclass(wrapper, action_wrapper)]


def hides_moves(name: str) -> bool:
    """Whether seats see what comes of the others' moves, and not their words: so the `-train` names, except in talk."""
    wrappers = _spec(name).default_wrappers or ()
    return name.endswith("-train") and _textarena().wrappers.LLMObservationWrapper not in wrappers


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Let textarena neither print, nor warn, nor download anything by itself; nor can any other thread meanwhile."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nltk: Any = sys.modules.get("nltk")
        if nltk is None:
            yield
            return
        download = nltk.download
        nltk.download = _no_download
        try:
            yield
        finally:
            nltk.download = download


def _no_download(*args: Any, **settings: Any) -> bool:  # noqa: ARG001 - takes whatever nltk's own takes
    return False


@functools.cache
def _textarena() -> Any:
    # It takes a second to import: it brings clients of several online services with it.
    try:
        with silenced():
            return importlib.import_module("textarena")
    except ImportError as error:
        raise InputError(
            f"The games need the package textarena ({error}): pip install 'rolltrace[textarena]'."
        ) from error


def _registry() -> Mapping[str, Any]:
    _textarena()
    registry: Mapping[str, Any] = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    return registry


def _spec(name: str) -> Any:
    registry = _registry()
    if name not in registry:
        raise UnknownNameError.for_name("game of textarena", name, names())
    return registry[name]


def _faulty(name: str, error: BaseException) -> InputError:
    version = importlib.metadata.version("textarena")
    return InputError(
        f"{FAMILY}:{name} of textarena {version} does not work under Python {platform.python_version()}: "
        f"{type(error).__name__}: {error}."
    )
