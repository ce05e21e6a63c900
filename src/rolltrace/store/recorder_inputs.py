"""Validates and coerces arguments of the recorder: wrong use raises, unusual values become notes in the record."""

import contextlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Required, TypedDict, cast

from rolltrace.errors import InputError
from rolltrace.trace.failure import Failure, bounded_failure, failure_of
from rolltrace.trace.field_types import Field, FieldKind, field_by_name
from rolltrace.trace.freeform import Note, as_text, describe, object_fields
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import INT64_LIMIT, as_float
from rolltrace.trace.message import Sampling
from rolltrace.trace.rollout import Header, Step
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer, StoppedBy
from rolltrace.trace.tokens import Usage

_SETTINGS = tuple(name for name in Sampling.__struct_fields__ if name not in ("stop", "other"))
_NUMBERED = ("task", "group")
"""These may also be whole numbers, such as row numbers of a data set; they are recorded as digits."""
_NEGATIVE = ("seed",)
"""Whole numbers that may be negative."""
_REQUIRED = ("env", "task", "group", "index")
_SET_IN_HEADER = ("v", "run", "session")
_SET_IN_STEP = ("step", "env_reward")
"""Fields that the recorder sets itself."""


class RolloutFields(TypedDict, total=False):
    """The fields of a rollout that are known when it starts, named as in the record."""

    env: Required[str]
    task: Required[str | int]
    """A whole number is recorded as its digits."""
    group: Required[str | int]
    """As `task`."""
    index: Required[int | None]
    id: str
    """Unique everywhere; by default a new one is generated."""
    split: str
    iteration: int
    attempt: int
    episode: int | None
    seat: int | None
    seed: int | None
    env_args: Mapping[str, Any]
    task_data: Mapping[str, Any]
    policy: str
    policy_version: int | str | None
    tags: Sequence[str]
    started_at: datetime
    reward_min: float | None
    """The range of the rewards that the environment gives; `rolltrace check` reports others."""
    reward_max: float | None


def check_header(fields: dict[str, Any]) -> None:
    """Raise `InputError` for a missing or wrong field; numbers of other libraries become ints, tags a tuple."""
    known = field_by_name(Header)
    if missing := [name for name in _REQUIRED if name not in fields]:
        raise InputError(f"Expected {missing[0]}= of the rollout, got nothing: pass it, it identifies the rollout.")
    for name, value in fields.items():
        if name not in known or name in _SET_IN_HEADER:
            accepted = ", ".join(field for field in known if field not in _SET_IN_HEADER)
            raise InputError(f"Expected fields of a rollout, got {name}=. The fields are {accepted}.")
        if not (value is None and known[name].is_nullable):
            fields[name] = _checked(known[name], value)
    if not fields["id"]:
        raise InputError("Expected id= to be a text that is unique everywhere, got an empty text.")


def _checked(field: Field, value: Any) -> Any:
    """The value of a header's field, if it is of its kind."""
    name, kind = field.name, field.kind
    if field.depth:
        return _texts(name, value) if kind is FieldKind.NAME else value
    if kind in (FieldKind.NAME, FieldKind.TEXT):
        return _text(name, value)
    if kind is FieldKind.INTEGER:
        return _whole_number(name, value, least=None if name in _NEGATIVE else 0)
    if kind is FieldKind.NAME_OR_INTEGER:
        return _name_or_whole_number(name, value)
    if kind in (FieldKind.FREE_FORM, FieldKind.NUMBERS) and not isinstance(value, Mapping):
        raise _wrong(name, "a mapping", value)
    if kind is FieldKind.TIMESTAMP and not is_time(value):
        raise _wrong(name, "a datetime", value)
    if kind in (FieldKind.NUMBER, FieldKind.DURATION) and as_float(value) is None:
        raise _wrong(name, "a number", value)
    return value


def check_step_fields(fields: Mapping[str, Any]) -> None:
    """Raise `InputError` for a name that is not a field of a step, or that the recorder sets itself."""
    for name in fields:
        if name not in Step.__struct_fields__ or name in _SET_IN_STEP:
            known = ", ".join(field for field in Step.__struct_fields__ if field not in _SET_IN_STEP)
            raise InputError(f"Expected fields of a step, got {name}=. The fields are {known}.")


def _wrong(name: str, expected: str, value: Any) -> InputError:
    return InputError(f"Expected {name}= to be {expected}, got {describe(value)}.")


def _text(name: str, value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):  # for example numpy.str_
        return str.__str__(value)
    if name in _NUMBERED and not isinstance(value, bool):
        with contextlib.suppress(Exception):  # a foreign object may raise anything
            return str(operator.index(value))
    raise InputError(f"Expected {name}= to be a str, got {describe(value)}. Convert it with str().")


def _whole_number(name: str, value: Any, least: int | None = None) -> int:
    expected = "a whole number" if least is None else f"a whole number of {least} or more"
    if type(value) is not int:
        if isinstance(value, bool):
            raise _wrong(name, expected, value)
        try:
            value = int(operator.index(value))
        except Exception:  # noqa: BLE001 - a foreign object may raise anything
            raise _wrong(name, expected, value) from None
    if (least is not None and value < least) or not -INT64_LIMIT <= value < 2 * INT64_LIMIT:
        raise _wrong(name, f"{expected} that fits into 64 bits", value)
    return int(value)


def _name_or_whole_number(name: str, value: Any) -> int | str:
    try:
        return _text(name, value) if isinstance(value, str) else _whole_number(name, value)
    except InputError:
        raise _wrong(name, "a whole number, a str or None", value) from None


def _texts(name: str, values: Any) -> tuple[str, ...]:
    try:
        listed = None if isinstance(values, str | Mapping) else tuple(values)
    except Exception:  # noqa: BLE001 - as above
        listed = None
    if listed is None or not all(isinstance(text, str) for text in listed):
        raise _wrong(name, "a list of str", values)
    return tuple(_text(name, text) for text in listed)


def is_group_key(value: Any) -> bool:
    """Whether it is a `GroupKey` whose fields have their types."""
    if not isinstance(value, GroupKey):
        return False
    return type(value.iteration) is int and all(type(text) is str for text in (value.split, value.env, value.group))


def as_messages(value: Any, name: str) -> Iterable[Any]:
    """Messages as an iterable; raises `InputError` for anything else."""
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise InputError(f"Expected {name} to be a list of messages, got {describe(value)}.")
    return value


def as_assistant(response: Any) -> Any:
    """A response that is a text, None or a dict without a role as the assistant's message."""
    if isinstance(response, str):
        return {"role": "assistant", "content": response}
    if response is None:
        return {"role": "assistant", "content": ""}
    if isinstance(response, Mapping):
        with contextlib.suppress(Exception):  # a foreign mapping may raise anything: it is noted when it is converted
            return response if "role" in response else {"content": "", **response, "role": "assistant"}
    return response


def as_tools(value: Any) -> Iterable[Any]:
    """Tools as an iterable; raises `InputError` for anything else."""
    if value is None:
        return ()
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise InputError(f"Expected tools to be a list of tools, got {describe(value)}.")
    return value


def as_stopped_by(value: StoppedBy | str) -> StoppedBy:
    """The enum member of this name; raises `InputError` for any other name."""
    try:
        return StoppedBy(value)
    except ValueError:
        raise InputError(f"Expected stopped_by to be one of {', '.join(StoppedBy)}, got {describe(value)}.") from None


def as_time(name: str, value: Any) -> datetime | None:
    """A time or None; raises `InputError` for anything else."""
    if value is not None and not is_time(value):
        raise _wrong(name, "a datetime", value)
    return cast("datetime | None", value)


def is_time(value: Any) -> bool:
    """Whether it is a time: `pandas.NaT` is a datetime, but not a time."""
    return isinstance(value, datetime) and type(value.year) is int


def as_failure(error: Any) -> Failure | None:
    """A failure from an exception, a `Failure` or a mapping of its fields; raises `InputError` for anything else."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        return failure_of(Layer.CALLER, error)
    names = Failure.__struct_fields__
    try:
        fields = dict(error) if isinstance(error, Mapping) else {name: getattr(error, name) for name in names}
    except Exception:  # noqa: BLE001 - a foreign object may raise anything
        fields = {}
    if not set(fields) <= set(names) or fields.get("type") is None:
        raise _wrong("error", f"an exception, a Failure or a mapping with type and perhaps {', '.join(names)}", error)
    try:
        layer = Layer(fields.pop("layer", Layer.CALLER))
    except ValueError:
        raise _wrong("error", f"a failure whose layer is one of {', '.join(Layer)}", error) from None
    texts = {name: as_text(value, "error", []) for name, value in fields.items() if value is not None}
    return bounded_failure(layer, **{"message": "", **texts})


def as_sampling(value: Any, notes: list[Note]) -> Sampling | None:
    """Sampling settings from a `Sampling`, a map or an object with such fields. Unknown fields go to `other`."""
    if value is None or type(value) is Sampling:
        return value
    try:
        fields = {str(name): value for name, value in (object_fields(value) or {}).items() if value is not None}
        known = {name: fields.pop(name) for name in _SETTINGS if name in fields}
        stop = fields.pop("stop", ())
        if known or stop or fields:
            texts = (stop,) if isinstance(stop, str) else tuple(stop)
            return Sampling(**known, stop=texts, other=FrozenMap.of(fields, "sampling", notes) if fields else None)
    except Exception as error:  # noqa: BLE001 - a foreign object may do anything when it is read
        notes.append(Note("sampling", f"{type(error).__name__} while reading {describe(value)}: left out"))
        return None
    notes.append(Note("sampling", f"expected settings, got {describe(value)}: left out"))
    return None


def as_score_value(value: Any) -> float | None:
    """The value of a score as a float; raises `InputError` for anything but a number or None."""
    number = as_float(value)
    if number is None and value is not None:
        raise InputError(f"Expected the value of a score to be a number or None, got {describe(value)}.")
    return number


_USAGE_NAMES = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))


def as_usage(value: Any, notes: list[Note]) -> Usage | None:
    """Token counts from a `Usage`, a map or an object, with the field names of either OpenAI API."""
    if value is None or type(value) is Usage:
        return value
    try:
        fields = object_fields(value) or {}
        for prompt, completion in _USAGE_NAMES:
            if prompt in fields or completion in fields:
                return Usage(fields.get(prompt) or 0, fields.get(completion) or 0)
    except Exception as error:  # noqa: BLE001 - as above
        notes.append(Note("usage", f"{type(error).__name__} while reading {describe(value)}: left out"))
        return None
    notes.append(Note("usage", f"expected counts of tokens, got {describe(value)}: left out"))
    return None
