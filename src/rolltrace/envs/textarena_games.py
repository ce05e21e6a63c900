"""Finds and makes the games of the textarena package; only this module uses its registry."""

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
"""Suffixes of the names of the same game with other wrappers."""
_NEED_ONLINE_MODELS = {"Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions"}
"""Games whose game master or jury is a model of an online service."""
_MIN_PLAYERS = {"MarketEntryGame": 2, "PublicGoodsGame": 2, "QuantumTicTacToe": 2, "SpiteAndMalice": 2}
_MAX_PLAYERS = {"QuantumTicTacToe": 2, "SpiteAndMalice": 2}
"""Limits on players that these games do not check themselves."""
_MAX_PLAYERS_OF_ANY_GAME = 15
_NLTK_DATA = re.compile(r"nltk\.download\(\W*(\w+)")


def names() -> list[str]:
    """All games, without variants that only have other wrappers."""
    return sorted(name for name in _registry() if not name.endswith(_WRAPPED))


def base_game(name: str) -> str:
    """The game of which this name is a variant, such as `TicTacToe`."""
    return str(_spec(name).entry_point).split(":", maxsplit=1)[0].split(".")[2]


def player_counts(name: str) -> range:
    """Numbers of players to try; most games refuse an invalid number themselves."""
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
        if missing := missing_word_list(f"{FAMILY}:{name}", error):
            raise InputError(missing) from error
        raise _faulty(name, error) from error
    except TypeError as error:
        if options:
            raise InputError(f"{FAMILY}:{name} does not take the options {', '.join(options)}: {error}.") from error
        raise _faulty(name, error) from error
    except (Exception, SystemExit) as error:
        raise _faulty(name, error) from error


def action_wrappers(name: str) -> list[Any]:
    """The wrappers that change a move before the game gets it, such as adding brackets."""
    action_wrapper = _textarena().ActionWrapper
    return [wrapper for wrapper in _spec(name).default_wrappers or () if issubclass(wrapper, action_wrapper)]


def hides_moves(name: str) -> bool:
    """Whether a seat sees only the effects of other seats' moves, not their text, as in most `-train` variants."""
    wrappers = _spec(name).default_wrappers or ()
    return name.endswith("-train") and _textarena().wrappers.LLMObservationWrapper not in wrappers


def missing_word_list(name: str, error: BaseException) -> str | None:
    """What to download, if this is nltk's error about data that it does not have."""
    needed = _NLTK_DATA.search(str(error)) if isinstance(error, LookupError) else None
    if needed is None:
        return None
    return (
        f"{name} needs the word list {needed[1]!r} of nltk, which is not here: "
        f"download it once with `python -m nltk.downloader {needed[1]}`."
    )


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress prints, warnings and downloads of textarena, and of other threads, inside the block."""
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
    # The import takes a second, because it imports clients of several online services.
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
