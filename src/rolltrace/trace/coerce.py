"""Makes what others put into typed fields what those fields can hold, so that every line can be read back."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import NoneType
from typing import Any

import msgspec

from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note, as_text, describe, is_flat, is_valid_utf8
from rolltrace.trace.json_numbers import FAST_INT_LIMIT, Number, as_float, as_number
from rolltrace.trace.message import Sampling
from rolltrace.trace.rollout import Call, Grade, Header, Tokens, Usage
from rolltrace.trace.stop_reasons import Termination

_TEXTS = ("id", "run", "split", "env", "task", "group", "policy", "session")
_COUNTS = ("iteration", "attempt")
_NUMBERS_OR_NONE = ("seed", "index", "episode", "seat")


_TEXT = frozenset({str})
_PLAIN_HEADER = (
    (int,), (str,), (str,), (str,), (int,), (str,), (dict,), (int, NoneType), (str,), (dict,), (str,), (int, NoneType),
    (int,), (int, NoneType), (int, NoneType), (str,), (int, str, NoneType), (tuple,), (str,), (datetime,),
)  # fmt: skip


def is_encodable_header(header: Header) -> bool:
    """Whether a header can be encoded as it is: each field of its type, and nothing in its maps but plain values."""
    return (
        _is_plain_shape(tuple(map(type, msgspec.structs.astuple(header))))
        and header.started_at.tzinfo is UTC
        and is_flat(header.env_args)
        and is_flat(header.task_data)
        and _TEXT.issuperset(map(type, header.tags))
    )


@lru_cache(maxsize=64)
def _is_plain_shape(kinds: tuple[type, ...]) -> bool:
    return all(kind in plain for kind, plain in zip(kinds, _PLAIN_HEADER, strict=True))


def coerce_header(header: Header, notes: list[Note]) -> dict[str, Any]:
    """The fields of a header, each of its type."""
    fields = {name: getattr(header, name) for name in Header.__struct_fields__}
    for name in _TEXTS:
        if type(fields[name]) is not str:
            fields[name] = as_text(fields[name], name, notes)
    for name in _COUNTS:
        fields[name] = coerce_integer(fields[name], name, notes) or 0
    for name in _NUMBERS_OR_NONE:
        fields[name] = coerce_integer(fields[name], name, notes)
    fields["policy_version"] = coerce_policy_version(header.policy_version, "policy_version", notes)
    tags: Any = header.tags
    if type(tags) is not tuple or any(type(tag) is not str for tag in tags):
        listed = tags if isinstance(tags, tuple | list | set | frozenset) else (tags,)
        fields["tags"] = tuple(as_text(tag, "tags", notes) for tag in listed)
    fields["started_at"] = coerce_time(header.started_at)
    return fields


def coerce_time(time: datetime) -> datetime:
    """The same moment in UTC; a time that does not say where it was read is taken for local time, as Python does."""
    if time.tzinfo is UTC:
        return time
    try:
        return time.astimezone(UTC)
    except (OverflowError, ValueError, OSError):  # in the first or the last year that there is
        return time.replace(tzinfo=UTC)


def coerce_text(value: Any, path: str, notes: list[Note]) -> str | None:
    """Text or nothing."""
    return value if value is None or type(value) is str else as_text(value, path, notes)


def coerce_integer(value: Any, path: str, notes: list[Note]) -> int | None:
    """A whole number or nothing."""
    if value is None:
        return None
    number = as_number(value)
    if type(number) is int:
        return number
    if number is not None and number == number and abs(number) != float("inf") and number == int(number):
        return int(number)
    notes.append(Note(path, f"expected a whole number, got {describe(value)}: left out"))
    return None


def coerce_policy_version(value: Any, path: str, notes: list[Note]) -> int | str | None:
    """A policy's version: a whole number, a name or nothing."""
    if value is None or type(value) is str:
        return value
    number = as_number(value)
    if type(number) is int:
        return number
    return as_text(value, path, notes)


def coerce_float(value: Any, path: str, notes: list[Note]) -> float | None:
    """A number or nothing, as a float."""
    if value is None or type(value) is float:
        return value
    if (number := as_float(value)) is None:
        notes.append(Note(path, f"expected a number, got {describe(value)}: left out"))
    return number


def coerce_seconds(value: Any, path: str, notes: list[Note]) -> float | None:
    """A duration or nothing; a negative one, for which a clock was set back, is 0."""
    seconds = coerce_float(value, path, notes)
    if seconds is None or not seconds < 0.0:
        return seconds
    notes.append(Note(path, f"expected a duration, got {describe(value)}: 0 in its place"))
    return 0.0


def coerce_termination(value: Any, path: str, notes: list[Note]) -> Termination | None:
    """How a completion ended, in our words."""
    if value is None or type(value) is Termination:
        return value
    try:
        return Termination(value)
    except Exception:  # noqa: BLE001 - a foreign object may do anything when compared
        notes.append(Note(path, f"expected one of {', '.join(Termination)}, got {describe(value)}: left out"))
        return None


def coerce_usage(usage: Any, path: str, notes: list[Note]) -> Usage | None:
    """Counts of tokens."""
    if usage is None:
        return None
    if type(usage) is not Usage:
        notes.append(Note(path, f"expected a Usage, got {describe(usage)}: left out"))
        return None
    if _is_count(usage.prompt_tokens) and _is_count(usage.completion_tokens):
        return usage
    prompt = coerce_integer(usage.prompt_tokens, f"{path}.prompt_tokens", notes) or 0
    completion = coerce_integer(usage.completion_tokens, f"{path}.completion_tokens", notes) or 0
    return Usage(prompt, completion)


def _is_count(value: Any) -> bool:
    return type(value) is int and -FAST_INT_LIMIT < value < FAST_INT_LIMIT


def coerce_tokens(tokens: Any, path: str, notes: list[Note]) -> Tokens | None:
    """Token ids and log-probabilities as tuples of Python numbers, or nothing where they are not."""
    if tokens is None:
        return None
    try:
        logprobs = None if tokens.logprobs is None else _row(tokens.logprobs, as_float)
        sound = Tokens(_row(tokens.prompt, _whole), _row(tokens.response, _whole), logprobs)
    except Exception as error:  # noqa: BLE001 - a foreign array may do anything when walked
        notes.append(Note(path, f"expected rows of numbers, got {describe(tokens)} ({error}): left out"))
        return None
    if (char_lengths := getattr(tokens, "char_lengths", None)) is None:
        return sound
    try:
        return msgspec.structs.replace(sound, char_lengths=_row(char_lengths, _whole))
    except Exception as error:  # noqa: BLE001 - as above; the ids stand without them
        notes.append(
            Note(f"{path}.char_lengths", f"expected a row of numbers, got {describe(char_lengths)} ({error}): left out")
        )
        return sound


def matching_char_lengths(tokens: Tokens, text: Any, path: str, notes: list[Note]) -> tuple[int, ...] | None:
    """The lengths of the response tokens' texts if they add up to the recorded text, else None."""
    char_lengths = tokens.char_lengths
    if char_lengths is None:
        return None
    if len(char_lengths) != len(tokens.response):
        notes.append(
            Note(path, f"expected {len(tokens.response)}, one for each token, got {len(char_lengths)}: left out")
        )
        return None
    if (
        type(text) is not str
        or not is_valid_utf8(text)
        or any(width < 0 for width in char_lengths)
        or sum(char_lengths) != len(text)
    ):
        notes.append(Note(path, "expected lengths that add up to the step's text, got others: left out"))
        return None
    return char_lengths


def _row(values: Any, convert: Any) -> tuple[Any, ...]:
    row = tuple(convert(value) for value in values)
    if None in row:
        raise TypeError(f"no number at {row.index(None)}")
    return row


def _whole(value: Any) -> int | None:
    return value if type(value) is int else coerce_integer(value, "", [])


def is_encodable_sampling(sampling: Sampling) -> bool:
    """Whether each setting is of its type."""
    try:
        return _is_sound_sampling(sampling)
    except TypeError:  # it holds something that can change, and so has no hash
        return False


@lru_cache(maxsize=64)
def _is_sound_sampling(sampling: Sampling) -> bool:
    floats = (sampling.temperature, sampling.top_p, sampling.min_p)
    integers = (sampling.top_k, sampling.max_tokens)
    return (
        all(value is None or type(value) is float for value in floats)
        and all(value is None or (type(value) is int and as_number(value) is not None) for value in integers)
        and type(sampling.stop) is tuple
        and all(type(text) is str for text in sampling.stop)
    )


def coerce_sampling(sampling: Sampling, path: str, notes: list[Note]) -> Sampling:
    """Settings of sampling, each of its type, so that equal ones are one entry of the record's table."""
    changes: dict[str, Any] = {
        name: coerce_float(getattr(sampling, name), f"{path}.{name}", notes)
        for name in ("temperature", "top_p", "min_p")
    }
    for name in ("top_k", "max_tokens"):
        changes[name] = coerce_integer(getattr(sampling, name), f"{path}.{name}", notes)
    stop: Any = sampling.stop
    listed = stop if isinstance(stop, tuple | list) else () if stop is None else (stop,)
    changes["stop"] = tuple(as_text(text, f"{path}.stop", notes) for text in listed)
    return msgspec.structs.replace(sampling, **changes)


def coerce_call(call: Call, path: str, notes: list[Note]) -> Call:
    """A call of a model that shares nothing that can change, with its messages as a record can hold them."""
    return Call(
        role=as_text(call.role, f"{path}.role", notes),
        policy=as_text(call.policy, f"{path}.policy", notes),
        prompt=tuple(as_message(message, f"{path}.prompt[{at}]", notes) for at, message in enumerate(call.prompt)),
        reply=None if call.reply is None else as_message(call.reply, f"{path}.reply", notes),
        step=coerce_integer(call.step, f"{path}.step", notes),
        policy_version=coerce_policy_version(call.policy_version, f"{path}.policy_version", notes),
        raw=coerce_text(call.raw, f"{path}.raw", notes),
        error=call.error,
        usage=coerce_usage(call.usage, f"{path}.usage", notes),
        seconds=coerce_seconds(call.seconds, f"{path}.seconds", notes),
        continues_call=coerce_integer(call.continues_call, f"{path}.continues_call", notes),
        about=coerce_text(call.about, f"{path}.about", notes),
        termination=coerce_termination(call.termination, f"{path}.termination", notes),
    )


def coerce_grade(grade: Grade, path: str, notes: list[Note]) -> Grade:
    """A grade whose numbers are numbers; what is none is moved to its `extra`."""
    non_numeric: dict[str, Any] = {}
    numbers = coerce_numbers(grade.reward_data, path, "reward_data", non_numeric, notes)
    reward = coerce_reward(grade.reward, path, non_numeric, notes)
    return Grade(reward, numbers, with_non_numeric(grade.extra, non_numeric))


def coerce_reward(reward: Any, path: str, non_numeric: dict[str, Any], notes: list[Note]) -> float:
    """A reward as a float; what is no number is put among the strays, and NaN stands for it."""
    if type(reward) is float:
        return reward
    number = as_float(reward)
    if number is None:
        non_numeric["reward"] = reward
        notes.append(Note(f"{path}.reward", "not a number: moved to extra, NaN in its place"))
        return float("nan")
    return number


def coerce_numbers(
    values: Any, path: str, place: str, non_numeric: dict[str, Any], notes: list[Note]
) -> dict[str, Number]:
    """A flat map of numbers, as Python numbers in a fresh dict; what is no number is put among the strays."""
    if type(values) is dict and not values:
        return {}
    numbers: dict[str, Number] = {}
    try:
        for name, value in values.items():
            key = as_text(name, f"{path}.{place}", notes)
            if (number := as_number(value)) is None:
                non_numeric[f"{place}.{key}"] = value
                notes.append(Note(f"{path}.{place}.{key}", "not a number: moved to extra"))
            else:
                numbers[key] = number
    except Exception as error:  # noqa: BLE001 - a hostile mapping may raise anywhere
        non_numeric[place] = values
        notes.append(Note(f"{path}.{place}", f"expected a map of numbers, got {type(error).__name__}: moved to extra"))
    return numbers


def with_non_numeric(extra: Any, non_numeric: Mapping[str, Any]) -> Any:
    """What is free-form anyway, and what had to be moved there."""
    if not non_numeric:
        return extra
    try:
        return (
            {**non_numeric, **extra}
            if not non_numeric.keys() & extra.keys()
            else {**extra, "non_numeric": dict(non_numeric)}
        )
    except Exception:  # noqa: BLE001 - as above; walking it later says what is wrong with it
        return {"value": extra, **non_numeric}
