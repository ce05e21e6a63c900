"""How a rollout ended, as it is written."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from types import NoneType
from typing import Any

import msgspec

from rolltrace.trace.codec import wire_value
from rolltrace.trace.coerce import coerce_field
from rolltrace.trace.field_types import FieldKind, record_fields
from rolltrace.trace.freeform import Note
from rolltrace.trace.plain_values import plain_types
from rolltrace.trace.rollout import Outcome, Rollout
from rolltrace.trace.step_table import wire_struct
from rolltrace.trace.stop_reasons import StopReason
from rolltrace.trace.text_transform import TextTransform, text_fields, transform_wire_value

OutcomeRow = wire_struct(Rollout, "ended_at", before="messages")
OUTCOME_FIELDS = {
    field.written_name: field for field in record_fields(Rollout) if field.written_name in OutcomeRow.__struct_fields__
}
OUTCOME_LENGTH = len(Outcome.__annotations__)
"""An outcome with more fields also has some that are written elsewhere in the line."""
_TEXT_FIELDS = [field for field in text_fields(Rollout) if field.written_name in OUTCOME_FIELDS]
_numbers = attrgetter(*(name for name, field in OUTCOME_FIELDS.items() if field.kind is FieldKind.NUMBER))
_PLAIN_TYPES = {
    name: plain_types(field) - {int} | ({NoneType} if field.is_nullable else set())
    for name, field in OUTCOME_FIELDS.items()
}
"""By field, the types of values that are written as they are."""
_PLAIN_TYPES["stop_reason"] |= {StopReason}
_PLAIN_TYPES["ended_at"] |= {datetime}


def outcome_row(
    outcome: Outcome, grade: dict[str, Any] | None, notes: list[Note], transform: TextTransform | None
) -> Any:
    """The outcome and the grade of a rollout, coerced, with the text transformed."""
    known: Mapping[str, Any] = outcome
    if len(outcome) > OUTCOME_LENGTH:
        known = {name: value for name, value in outcome.items() if name in OUTCOME_FIELDS}
    row = OutcomeRow(**known, grade=grade)
    if not _is_plain(row):
        for name, value in known.items():
            field = OUTCOME_FIELDS[name]
            setattr(row, name, wire_value(field, coerce_field(field, value, "", notes), name, notes))
    if transform is not None:
        for field in _TEXT_FIELDS:
            if (value := getattr(row, field.written_name)) is not None and value is not msgspec.UNSET:
                setattr(row, field.written_name, transform_wire_value(field, value, transform))
    return row


def _is_plain(row: Any) -> bool:
    """Whether an outcome can be written as it is: each field has its type, numbers are finite, times are in UTC."""
    if not _has_plain_types(tuple(map(type, msgspec.structs.astuple(row)))):
        return False
    for number in _numbers(row):
        if number is not None and not isfinite(number):
            return False
    return row.ended_at.tzinfo is UTC


@lru_cache(maxsize=64)
def _has_plain_types(types: tuple[type, ...]) -> bool:
    return all(
        name == "grade" or kind in _PLAIN_TYPES[name]
        for name, kind in zip(OutcomeRow.__struct_fields__, types, strict=True)
    )
