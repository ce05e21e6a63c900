"""Structs with the fields of a record as they are written, derived from the record's type."""

from typing import Any

import msgspec

from rolltrace.trace.field_types import FieldKind, record_fields
from rolltrace.trace.rollout import Header, Rollout, Step

EMPTY_MAP = msgspec.Raw(b"{}")


def wire_struct(record: type[msgspec.Struct], first: str = "", before: str = "") -> Any:
    """A mutable struct with the fields of a record from `first` up to, not including, `before`.

    Its values are what the encoder is given: numbers that are not finite as text, maps as dicts or bytes. An omittable
    field that is not set is left out.
    """
    fields = record_fields(record)
    names = [field.name for field in fields]
    selected = fields[names.index(first) if first else 0 : names.index(before) if before else None]
    defined: list[tuple[str, Any, Any]] = []
    for field in selected:
        default = field.default
        if field.omits_default:
            default = msgspec.UNSET
        elif field.is_required:
            default = None
        elif field.kind in (FieldKind.FREE_FORM, FieldKind.NUMBERS):
            default = EMPTY_MAP
        defined.append((field.name, Any, default))
    renamed = {field.name: field.written_name for field in selected}
    return msgspec.defstruct(f"{record.__name__}Row", defined, rename=renamed, gc=False)


StepRow = wire_struct(Step)
OutcomeRow = wire_struct(Rollout, "ended_at", before="messages")
"""How a rollout ended."""
ConversationRow = wire_struct(Rollout, "messages", before="calls")
"""Its conversation and its steps."""
TrailingRow = wire_struct(Rollout, "calls")
"""What is known only when everything else is encoded, notes among it."""

assert OutcomeRow.__struct_fields__[0] == Rollout.__struct_fields__[len(Header.__struct_fields__)]  # noqa: S101
