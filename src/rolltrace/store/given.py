"""What a loop of somebody else's hands in: wrong use is told clearly, and odd values are noted and never raise."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

from rolltrace.errors import InputError
from rolltrace.trace.freeform import Note, describe, fields_of
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Sampling
from rolltrace.trace.outcome import StoppedBy
from rolltrace.trace.rollout import Usage

_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "max_tokens")


def check_header(fields: dict[str, Any]) -> None:
    """Refuse what would name the rollout wrongly; tags become a tuple."""
    kinds: dict[str, type] = {"id": str, "started_at": datetime}
    for name, kind in kinds.items():
        if not isinstance(fields[name], kind) or not fields[name]:
            raise InputError(f"Expected {name}= to be a {kind.__name__}, got {describe(fields[name])}.")
    tags = fields.get("tags", ())
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InputError(f"Expected tags= to be a list of texts, got {describe(tags)}.")
    fields["tags"] = tuple(tags)


def as_messages(given: Any, name: str) -> Iterable[Any]:
    """What can be gone through message by message."""
    if isinstance(given, str):
        return ({"role": "user", "content": given},)
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise InputError(f"Expected {name} to be a list of messages, got {describe(given)}.")
    return given


def as_tools(given: Any) -> Iterable[Any]:
    """What can be gone through tool by tool."""
    if given is None:
        return ()
    if isinstance(given, Mapping | str) or not isinstance(given, Iterable):
        raise InputError(f"Expected tools to be a list of tools, got {describe(given)}.")
    return given


def as_stopped_by(given: StoppedBy | str) -> StoppedBy:
    """Who ended the rollout."""
    try:
        return StoppedBy(given)
    except ValueError:
        raise InputError(f"Expected stopped_by to be one of {', '.join(StoppedBy)}, got {describe(given)}.") from None


def as_sampling(given: Any, notes: list[Note]) -> Sampling | None:
    """Settings of ours, or a map or an object with such fields; those that we do not know are kept as they came."""
    if given is None or type(given) is Sampling:
        return given
    try:
        fields = {str(name): value for name, value in (fields_of(given) or {}).items() if value is not None}
        known = {name: fields.pop(name) for name in _SETTINGS if name in fields}
        stop = fields.pop("stop", ())
        if known or stop or fields:
            texts = (stop,) if isinstance(stop, str) else tuple(stop)
            return Sampling(**known, stop=texts, other=FrozenMap.of(fields, "sampling", notes) if fields else None)
    except Exception as error:  # noqa: BLE001 - a foreign object may do anything when it is read
        notes.append(Note("sampling", f"{type(error).__name__} while reading {describe(given)}: left out"))
        return None
    notes.append(Note("sampling", f"expected settings, got {describe(given)}: left out"))
    return None


def as_usage(given: Any, notes: list[Note]) -> Usage | None:
    """Counts of ours, or a map or an object with such fields."""
    if given is None or type(given) is Usage:
        return given
    try:
        fields = fields_of(given) or {}
        if "prompt_tokens" in fields or "completion_tokens" in fields:
            return Usage(fields.get("prompt_tokens") or 0, fields.get("completion_tokens") or 0)
    except Exception as error:  # noqa: BLE001 - as above
        notes.append(Note("usage", f"{type(error).__name__} while reading {describe(given)}: left out"))
        return None
    notes.append(Note("usage", f"expected counts of tokens, got {describe(given)}: left out"))
    return None


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal and spelt alike (`1 == True`); what cannot be compared is not."""
    try:
        return bool(one == other) and repr(one) == repr(other)
    except Exception:  # noqa: BLE001 - as above
        return False


def copy_of(value: Any) -> Any:
    """A copy that shares nothing; of what cannot be copied, something that equals nothing."""
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - as above
        return object()
