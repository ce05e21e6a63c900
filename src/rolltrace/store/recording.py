"""How much of a run to record: settings from code, the command line or environment variables."""

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
    """Everything, but each text is replaced by its length and hash."""
    OFF = "off"
    """Nothing."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer records, and the sizes of its queue and files.

    If `level`, `fraction`, `tokens` or `calls` is None, its environment variable decides, otherwise the default.
    """

    level: Level | None = None
    """Default: `full`."""
    fraction: float | None = None
    """The fraction of groups to record in full, by a hash of the group: whole groups, the same in every process. The
    others are recorded as numbers. Default: 1."""
    tokens: bool | None = None
    """Whether token ids and log-probabilities are recorded if a policy returns them. Default: no."""
    calls: bool | None = None
    """Whether the calls of graders, answerers and opponents are recorded. Default: yes."""
    redact: Redact | None = None
    """Called with each message and each free-form map before it is recorded; returns what to record instead. If it
    raises, the rollout is recorded as numbers, and counted."""
    queue_bytes: int = 64 * _MEGABYTE
    """How many bytes of lines may wait to be written."""
    queue_seconds: float = 1.0
    """How long a caller waits if the queue is full; after that, at most 5 % of the time. Then its rollout is dropped,
    and counted. A thread that runs an event loop never waits."""
    segment_bytes: int = 64 * _MEGABYTE
    """The size at which a segment is compressed and the next one starts."""

    def __post_init__(self) -> None:
        if self.level is not None:  # may be the name of a level
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
        bucket = zlib.crc32("\0".join(map(str, msgspec.structs.astuple(key))).encode("utf-8", "replace"))
        return Level.FULL if bucket < self.fraction * _BUCKETS else Level.NUMBERS


def resolve_recording(trace: Recording | Level | str | None) -> Recording:
    """Fill in the settings that are None, from environment variables or else the defaults."""
    if not isinstance(trace, Recording):
        trace = Recording(level=None if trace is None else as_level(trace, "trace"))
    return msgspec.structs.replace(
        trace,
        level=_resolve(trace.level, LEVEL_VARIABLE, as_level, Level.FULL),
        fraction=_resolve(trace.fraction, FRACTION_VARIABLE, _as_fraction, 1.0),
        tokens=_resolve(trace.tokens, TOKENS_VARIABLE, _as_bool, False),
        calls=_resolve(trace.calls, CALLS_VARIABLE, _as_bool, True),
    )


def describe_recording(recording: Recording) -> dict[str, Any]:
    """The settings as plain data for a run's config; `redact` becomes the function's name."""
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


def _resolve(value: Value | None, variable: str, parse: Callable[[str, str], Value], default: Value) -> Value:
    if value is not None:
        return value
    text = os.environ.get(variable, "")
    return parse(text, variable) if text else default


def _as_fraction(text: str, where: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise InputError(f"Expected {where} to be a number from 0 to 1, got {text!r}.")
    return fraction


def _as_bool(text: str, where: str) -> bool:
    known: dict[str, Any] = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in known:
        raise InputError(f"Expected {where} to be 1 or 0, got {text!r}.")
    return bool(known[text.lower()])
