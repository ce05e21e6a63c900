"""The kinds of fields that records have.

The type of a field states its kind, once. Coercion, encoding, redaction, the SQL columns, the tables of the documents
and the viewer's types are derived from it with `record_fields`.
"""

from datetime import datetime
from enum import Enum, auto
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from rolltrace.trace.json_numbers import NON_FINITE, Float, Number

FORMAT_VERSION = 2
"""The version of the format that records are written in."""

FieldType = TypeVar("FieldType")

Range = tuple[int, int]
"""Half-open: the messages from the first index up to, not including, the second."""

Text = Annotated[str, msgspec.Meta(extra={"kind": "text"})]
"""Text that a policy, an environment or a grader wrote: it is hashed under `numbers`, and shown to `redact`.

A plain `str` is a name or an id, and stays.
"""
Label = Annotated[str, msgspec.Meta(extra={"kind": "label"})]
"""A short name that may hold words of an environment or grader: it stays under `numbers`, and is shown to `redact`."""
FreeForm = Annotated[dict[str, Any], msgspec.Meta(extra={"kind": "free_form"})]
"""A map of any values. Its text is handled as `Text` is."""
Numbers = Annotated[dict[str, Number], msgspec.Meta(extra={"kind": "numbers"})]
"""A flat map from names to numbers."""
Counts = Annotated[dict[str, int], msgspec.Meta(extra={"kind": "counts"})]
"""A flat map from names to counts."""
Duration = Annotated[Float, msgspec.Meta(extra={"kind": "duration"})]
"""Seconds; a negative duration, from a clock that was set back, is recorded as 0."""
Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone; records are written in UTC."""
Omittable = Annotated[FieldType, msgspec.Meta(extra={"omit_default": True})]
"""A field that is left out of the record while it has its default. New optional fields are of this type."""
DroppedWithText = Annotated[FieldType, msgspec.Meta(extra={"dropped_with_text": True})]
"""A field that gets its default where text is hashed or redacted, because the text can be restored from it."""


class FieldKind(Enum):
    """What a field can hold."""

    NAME = auto()
    """Text that stays when text is hashed."""
    LABEL = auto()
    """Text that stays when text is hashed, and is redacted."""
    TEXT = auto()
    NAME_OR_INTEGER = auto()
    CHOICE = auto()
    """A member of an enum."""
    INTEGER = auto()
    BOOLEAN = auto()
    NUMBER = auto()
    DURATION = auto()
    NUMBERS = auto()
    COUNTS = auto()
    FREE_FORM = auto()
    TIMESTAMP = auto()
    RECORD = auto()
    """A struct."""
    RESPONSE = auto()
    """A message, or the index of one."""
    CUSTOM = auto()
    """A `FrozenMap` or a `Blob`."""
    RANGE = auto()
    """A range of messages or characters."""


class Field(msgspec.Struct, frozen=True, eq=False):
    """One field of a record."""

    name: str
    """Its name in Python and in SQL."""
    written_name: str
    """Its name in JSON."""
    kind: FieldKind
    record: type[msgspec.Struct] | None
    """The type of its value, or of each of its values, if that is a record."""
    depth: int
    """0 for one value, 1 for a tuple of values, 2 for a tuple of tuples."""
    is_nullable: bool
    omits_default: bool
    """Whether the record leaves it out while it has its default."""
    is_dropped_with_text: bool
    """Whether it gets its default where text is hashed or redacted."""
    default: Any
    enum: Any = None
    """The enum whose members it can have."""

    @property
    def is_required(self) -> bool:
        """Whether the record must have it."""
        return self.default is msgspec.NODEFAULT


@cache
def record_fields(record: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields of a record, in their order."""
    described = inspect.type_info(record)
    assert isinstance(described, inspect.StructType)  # noqa: S101 - `type_info` of a struct is a `StructType`
    return tuple(_field(record, each) for each in described.fields)


def omits_default(record: type[msgspec.Struct], field: inspect.Field) -> bool:
    """Whether a record leaves out a field while it has its default."""
    is_marked = bool(_unwrapped(field.type)[2].get("omit_default"))
    return not field.required and (is_marked or record.__struct_config__.omit_defaults)


@cache
def field_by_name(record: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields of a record, by their name in Python."""
    return {field.name: field for field in record_fields(record)}


def _field(record: type[msgspec.Struct], described: inspect.Field) -> Field:
    kind, is_nullable, extra = _unwrapped(described.type)
    depth = 0
    while isinstance(kind, inspect.VarTupleType):
        kind, _, more = _unwrapped(kind.item_type)
        extra |= more
        depth += 1
    default = described.default
    if described.default_factory is not msgspec.NODEFAULT:
        default = described.default_factory()
    return Field(
        described.name,
        described.encode_name,
        _kind(kind, extra),
        _record_in(kind),
        depth,
        is_nullable,
        omits_default(record, described),
        bool(extra.get("dropped_with_text")),
        default,
        kind.cls if isinstance(kind, inspect.EnumType) else None,
    )


def _unwrapped(described: inspect.Type) -> tuple[inspect.Type, bool, dict[str, Any]]:
    """A type without its metadata and without None; whether it had None; and the metadata."""
    extra: dict[str, Any] = {}
    is_nullable = False
    while True:
        if isinstance(described, inspect.Metadata):
            extra |= described.extra or {}
            described = described.type
        elif isinstance(described, inspect.UnionType) and described.includes_none:
            is_nullable = True
            others = tuple(each for each in described.types if not isinstance(each, inspect.NoneType))
            described = others[0] if len(others) == 1 else inspect.UnionType(others)
        else:
            return described, is_nullable, extra


def _record_in(described: inspect.Type) -> type[msgspec.Struct] | None:
    types = described.types if isinstance(described, inspect.UnionType) else (described,)
    return next((each.cls for each in types if isinstance(each, inspect.StructType)), None)


_NAMED_KINDS = {
    "text": FieldKind.TEXT,
    "label": FieldKind.LABEL,
    "free_form": FieldKind.FREE_FORM,
    "numbers": FieldKind.NUMBERS,
    "counts": FieldKind.COUNTS,
    "duration": FieldKind.DURATION,
}
_PLAIN_KINDS: dict[type[inspect.Type], FieldKind] = {
    inspect.StrType: FieldKind.NAME,
    inspect.IntType: FieldKind.INTEGER,
    inspect.BoolType: FieldKind.BOOLEAN,
    inspect.FloatType: FieldKind.NUMBER,
    inspect.DateTimeType: FieldKind.TIMESTAMP,
    inspect.EnumType: FieldKind.CHOICE,
    inspect.StructType: FieldKind.RECORD,
    inspect.CustomType: FieldKind.CUSTOM,
    inspect.TupleType: FieldKind.RANGE,
}


def _kind(described: inspect.Type, extra: dict[str, Any]) -> FieldKind:
    if "kind" in extra:
        return _NAMED_KINDS[extra["kind"]]
    if type(described) in _PLAIN_KINDS:
        return _PLAIN_KINDS[type(described)]
    members = described.types if isinstance(described, inspect.UnionType) else ()
    types = {type(each) for each in members}
    if any(isinstance(each, inspect.LiteralType) and set(each.values) == set(NON_FINITE) for each in members):
        return FieldKind.NUMBER
    if types == {inspect.IntType, inspect.StrType}:
        return FieldKind.NAME_OR_INTEGER
    if types == {inspect.IntType, inspect.StructType}:
        return FieldKind.RESPONSE
    # A field of another type would be neither coerced nor redacted.
    raise TypeError(f"Expected a field of a type that `field_types` names, got {described}.")
