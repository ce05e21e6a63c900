"""Tells values that need no coercion, which almost all are: one look at their types is enough."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from types import NoneType
from typing import Any

import msgspec

from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import Field, FieldKind, record_fields
from rolltrace.trace.freeform import is_flat
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Sampling
from rolltrace.trace.rollout import Header
from rolltrace.trace.tokens import Usage

_TEXT = frozenset({str})
_PLAIN_TYPES: dict[FieldKind, tuple[type, ...]] = {
    FieldKind.NAME: (str,),
    FieldKind.TEXT: (str,),
    FieldKind.NAME_OR_INTEGER: (int, str),
    FieldKind.INTEGER: (int,),
    FieldKind.BOOLEAN: (bool,),
    FieldKind.NUMBER: (float,),
    FieldKind.DURATION: (float,),
}
"""By kind, the types of values that are written as they are."""


def plain_types(field: Field) -> frozenset[type]:
    """The types of values that a field is written with as they are, if they are finite and fit into 64 bits."""
    if field.depth:
        return frozenset()
    if field.kind is FieldKind.CHOICE:
        return frozenset({field.enum})
    if field.record in (Usage, Failure):
        return frozenset({field.record})
    return frozenset(_PLAIN_TYPES.get(field.kind, ()))


def is_encodable_header(header: Header) -> bool:
    """Whether a header can be encoded as it is: each field has its type, and maps have only plain values."""
    if not _is_plain_header(tuple(map(type, msgspec.structs.astuple(header)))):
        return False
    for name, is_plain in _HEADER_CHECKS:
        value = getattr(header, name)
        if value and not is_plain(value):
            return False
    return True


_HEADER_TYPES = {
    **_PLAIN_TYPES, FieldKind.FREE_FORM: (dict,), FieldKind.TIMESTAMP: (datetime,),
    FieldKind.NUMBER: (), FieldKind.DURATION: (),
}  # fmt: skip


def _is_utc(time: datetime) -> bool:
    return time.tzinfo is UTC


def _are_texts(values: tuple[Any, ...]) -> bool:
    return not values or _TEXT.issuperset(map(type, values))


_HEADER_CHECKS: list[tuple[str, Callable[[Any], bool]]] = [
    (field.name, _are_texts if field.depth else is_flat if field.kind is FieldKind.FREE_FORM else _is_utc)
    for field in record_fields(Header)
    if field.depth or field.kind in (FieldKind.FREE_FORM, FieldKind.TIMESTAMP)
]
"""What is looked at beside the types of the fields."""


@lru_cache(maxsize=64)
def _is_plain_header(types: tuple[type, ...]) -> bool:
    return all(
        kind in ((tuple,) if field.depth else _HEADER_TYPES.get(field.kind, ()))
        or (kind is NoneType and field.is_nullable and field.kind is not FieldKind.TIMESTAMP)
        for field, kind in zip(record_fields(Header), types, strict=True)
    )


def is_encodable_sampling(sampling: Sampling) -> bool:
    """Whether each setting has its type; rollouts share their settings, so the last valid ones are remembered."""
    global _last_valid_sampling
    if sampling is _last_valid_sampling:
        return True
    if _are_settings_plain(sampling):
        _last_valid_sampling = sampling
        return True
    return False


_last_valid_sampling: Sampling | None = None


def _are_settings_plain(sampling: Sampling) -> bool:
    return _is_plain_sampling(tuple(map(type, msgspec.structs.astuple(sampling)))) and _TEXT.issuperset(
        map(type, sampling.stop)
    )


@lru_cache(maxsize=64)
def _is_plain_sampling(types: tuple[type, ...]) -> bool:
    return all(
        kind in ((tuple,) if field.depth else (FrozenMap,) if field.kind is FieldKind.CUSTOM else plain_types(field))
        or (kind is NoneType and field.is_nullable)
        for field, kind in zip(record_fields(Sampling), types, strict=True)
    )
