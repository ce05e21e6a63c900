"""How much of a run to record: one setting, from code, the command line or the environment."""

import os
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from rolltrace.errors import InputError
from rolltrace.trace.score import GroupKey
from rolltrace.trace.text_transform import Redact

LEVEL_VARIABLE = "ROLLTRACE_TRACE"
FRACTION_VARIABLE = "ROLLTRACE_TRACE_FRACTION"
TOKENS_VARIABLE = "ROLLTRACE_TRACE_TOKENS"
CALLS_VARIABLE = "ROLLTRACE_TRACE_CALLS"

_MEGABYTE = 1 << 20
_BUCKETS = 1 << 32

Value = TypeVar("Value")


class Level(StrEnum):
    """How much of a rollout is recorded."""

    FULL = "full"
    """Everything."""
    NUMBERS = "numbers"
    """Everything but text, of which length and hash are left."""
    OFF = "off"
    """Nothing."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer records, and how it gets it to the disk.

    Where `level`, `fraction`, `tokens` or `calls` is None, the environment variable decides, and else the default.
    """

    level: Level | None = None
    """Default: `full`."""
    fraction: float | None = None
    """The fraction of groups to record in full, by a hash of the group: whole groups, the same in every process. The
    others are recorded as numbers. Default: 1."""
    tokens: bool | None = None
    """Whether token ids and log-probabilities are kept where a policy gives them. Default: no."""
    calls: bool | None = None
    """Whether the calls of graders, answerers and opponents are recorded. Default: yes."""
    redact: Redact | None = None
    """Is shown each message and each free-form map before it is recorded, and returns what may be. If it raises, the
    rollout is recorded as numbers, and counted."""
    queue_bytes: int = 64 * _MEGABYTE
    """How much may wait to be written."""
    queue_seconds: float = 1.0
    """How long a caller waits for room where that much waits; after that, at most 5 % of the time. Else its rollout is
    dropped, and counted. A thread that runs an event loop never waits."""
    segment_bytes: int = 64 * _MEGABYTE
    """How large a file grows before the next is begun and it is sealed."""

    def __post_init__(self) -> None:
        if self.level is not None:  # a name will do, and must not be taken for something else
            msgspec.structs.force_setattr(self, "level", as_level(self.level, "level"))
        if self.fraction is not None and not (_is_number(self.fraction) and 0 <= self.fraction <= 1):
            raise InputError(f"Expected a fraction of groups from 0 to 1, got {self.fraction!r}.")
        for name in ("tokens", "calls"):
            if not isinstance(getattr(self, name), bool | None):
                raise InputError(f"Expected {name} to be True or False, got {getattr(self, name)!r}.")
        if self.redact is not None and not callable(self.redact):
            raise InputError(f"Expected redact to be a function, got {self.redact!r}.")
        for name in ("queue_bytes", "segment_bytes"):
            if not (_is_number(getattr(self, name)) and getattr(self, name) >= 1):
                raise InputError(f"Expected {name} of 1 or more, got {getattr(self, name)!r}.")
        if not (_is_number(self.queue_seconds) and self.queue_seconds >= 0):
            raise InputError(f"Expected queue_seconds of 0 or more, got {self.queue_seconds!r}.")

    def level_for_group(self, key: GroupKey) -> Level:
        """How much of this group's rollouts is recorded."""
        level = self.level or Level.FULL
        if level is not Level.FULL or self.fraction is None or self.fraction >= 1:
            return level
        place = zlib.crc32("\0".join(map(str, msgspec.structs.astuple(key))).encode("utf-8", "replace"))
        return Level.FULL if place < self.fraction * _BUCKETS else Level.NUMBERS


def resolve_recording(given: Recording | Level | str | None) -> Recording:
    """The settings with nothing left open: what was given, else the environment's variables, else the defaults."""
    if not isinstance(given, Recording):
        given = Recording(level=None if given is None else as_level(given, "trace"))
    return msgspec.structs.replace(
        given,
        level=_first(given.level, LEVEL_VARIABLE, as_level, Level.FULL),
        fraction=_first(given.fraction, FRACTION_VARIABLE, _as_fraction, 1.0),
        tokens=_first(given.tokens, TOKENS_VARIABLE, _as_switch, False),
        calls=_first(given.calls, CALLS_VARIABLE, _as_switch, True),
    )


def describe_recording(recording: Recording) -> dict[str, Any]:
    """The settings as plain data for a run's config; of `redact`, the function's name."""
    plain = msgspec.structs.asdict(recording)
    redact = recording.redact
    plain["redact"] = None if redact is None else str(getattr(redact, "__qualname__", type(redact).__qualname__))
    return plain


def as_level(text: str, where: str) -> Level:
    """A level by its name."""
    try:
        return Level(text)
    except ValueError:
        raise InputError(f"Expected {where} to be one of {', '.join(Level)}, got {text!r}.") from None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _first(given: Value | None, variable: str, read: Callable[[str, str], Value], default: Value) -> Value:
    if given is not None:
        return given
    text = os.environ.get(variable, "")
    return read(text, variable) if text else default


def _as_fraction(text: str, where: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"Expected {where} to be a number from 0 to 1, got {text!r}.")
    return share


def _as_switch(text: str, where: str) -> bool:
    known: dict[str, Any] = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise InputError(f"Expected {where} to be 1 or 0, got {text!r}.")
    return bool(known[text.lower()])
