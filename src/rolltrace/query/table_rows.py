"""Rows of tables from lines of a run: flat JSON with the types of the columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec

from rolltrace.errors import RecordError
from rolltrace.query.score_order import write_position
from rolltrace.query.table_schema import (
    CALL_FIELDS,
    MESSAGE_FIELDS,
    ROLLOUT_FIELDS,
    SCORE_FIELDS,
    STEP_CONTEXT,
    STEP_FIELDS,
    RecordColumns,
)
from rolltrace.store.cursor import LineLocation
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout, decode_score
from rolltrace.trace.field_types import FORMAT_VERSION, Field, FieldKind, Timestamp, field_by_name, record_fields
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.strict_json import json_encoder

Integer = Annotated[int, msgspec.Meta(ge=-INT64_LIMIT, le=INT64_LIMIT - 1)] | None
"""What a column of 64 bits can hold; a larger integer is left out of the table, and stays in the record."""
Real = float | Literal["NaN", "Infinity", "-Infinity"] | None
NumberMap = dict[str, float | bool | Literal["NaN", "Infinity", "-Infinity"]]
Version = Annotated[int, msgspec.Meta(ge=FORMAT_VERSION, le=FORMAT_VERSION)]

DecodeScore = Callable[[bytes], Score]

_EMPTY = msgspec.Raw(b"{}")
_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()

_DECODED_TYPES: dict[FieldKind, Any] = {
    FieldKind.NAME: str,
    FieldKind.LABEL: str,
    FieldKind.TEXT: str,
    FieldKind.CHOICE: str,
    FieldKind.NAME_OR_INTEGER: int | str,
    FieldKind.INTEGER: Integer,
    FieldKind.BOOLEAN: bool,
    FieldKind.NUMBER: Real,
    FieldKind.DURATION: Real,
    FieldKind.NUMBERS: NumberMap,
    FieldKind.TIMESTAMP: Timestamp,
}
"""By the kind of a field, what it is decoded to for a row; other kinds are not decoded."""


class _Ignored(msgspec.Struct):
    pass


class _TextOnly(msgspec.Struct):
    content: str


def _decoded(field: Field) -> tuple[Any, Any]:
    """The type that a field is decoded to, and its default."""
    if field.kind not in _DECODED_TYPES or (field.depth and field.kind is not FieldKind.NAME):
        return msgspec.Raw, _EMPTY if field.kind is FieldKind.FREE_FORM else _NULL
    kind = list[str] if field.depth else _DECODED_TYPES[field.kind]
    default = list(field.default) if field.depth and not field.is_required else field.default
    return kind | None if field.is_nullable else kind, default


def _line_struct(record: type[msgspec.Struct], names: Sequence[str], parts: Mapping[str, Any] | None = None) -> Any:
    """A struct that decodes only these fields of a record; `parts` are the types of its fields that are records."""
    parts = parts or {}
    defined: list[Any] = []
    for name in (*names, *parts):
        field = field_by_name(record)[name]
        if name not in parts:
            kind, default = _decoded(field)
        elif field.depth:
            kind, default = GenericAlias(list, (parts[name],)), []
        else:
            kind, default = parts[name], None
        kind = Version if name == "v" else kind
        is_required = field.is_required or name == "v"
        defined.append((name, kind) if is_required else (name, kind, msgspec.field(default=default)))
    renamed = {name: field_by_name(record)[name].written_name for name in (*names, *parts)}
    return msgspec.defstruct(f"{record.__name__}Line", defined, kw_only=True, rename=renamed)


class _RecordRow:
    """Makes the columns that show the fields of a record from what `struct` decodes of it."""

    def __init__(
        self, columns: RecordColumns, before: Sequence[str] = (), parts: Mapping[str, Any] | None = None
    ) -> None:
        flattened = {name: columns.parts(field_by_name(columns.record)[name]) for name in columns.flattened}
        plain = [field for field in columns.fields if field.name not in flattened and field.name not in columns.counted]
        parts = {
            **dict.fromkeys(columns.counted, _Ignored),
            **{name: self._part_struct(columns, name) for name in flattened},
            **(parts or {}),
        }
        names = [*before, *(field.name for field in plain if field.name not in parts)]
        self.struct = _line_struct(columns.record, names, parts)
        """Decodes what the columns need, and the fields named in `before`."""
        self._names = [field.name for field in plain]
        self._values = attrgetter(*self._names)
        self._counted = columns.counted
        self._flattened = {
            name: [(column, part.name) for column, part in shown.items()] for name, shown in flattened.items()
        }
        self._converted = [(field.name, _CONVERSIONS[field.kind]) for field in plain if field.kind in _CONVERSIONS]

    @staticmethod
    def _part_struct(columns: RecordColumns, name: str) -> Any:
        field = field_by_name(columns.record)[name]
        shown = [part.name for part in columns.parts(field).values()]
        return _line_struct(field.record, shown) | None  # type: ignore[arg-type]

    def row(self, record: Any) -> dict[str, Any]:
        """The columns of one record."""
        row = dict(zip(self._names, self._values(record), strict=True))
        for name, convert in self._converted:
            if row[name] is not None:
                row[name] = convert(row[name])
        for name in self._counted:
            row[name] = len(getattr(record, name))
        for name, columns in self._flattened.items():
            part = getattr(record, name)
            for column, attribute in columns:
                row[column] = None if part is None else getattr(part, attribute)
        return row


def _timestamp(time: Timestamp) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat()


_CONVERSIONS: dict[FieldKind, Callable[[Any], str]] = {
    FieldKind.TIMESTAMP: _timestamp,
    FieldKind.NAME_OR_INTEGER: str,
}
"""By the kind of a field, how its column differs from the record."""

_Usage = field_by_name(Step)["usage"].record
assert _Usage is not None  # noqa: S101 - it is a record
_StepUsage = _line_struct(Step, (), {"usage": _line_struct(_Usage, _Usage.__struct_fields__) | None})

_rollouts = _RecordRow(ROLLOUT_FIELDS, ("v",), {"steps": _StepUsage})
_steps = _RecordRow(STEP_FIELDS, ("prompt", "sampling"), {"response": int | _TextOnly})
_messages = _RecordRow(MESSAGE_FIELDS)
_calls = _RecordRow(CALL_FIELDS, (), {"reply": _TextOnly | None, "quotes": _Ignored})
_scores = _RecordRow(SCORE_FIELDS, ("v",))

_StepsLine = _line_struct(
    Rollout,
    ("v", "id", *STEP_CONTEXT),
    {"messages": _TextOnly, "sampling": msgspec.Raw, "steps": _steps.struct},
)
_MessagesLine = _line_struct(
    Rollout,
    ("v", "id", "run"),
    {"messages": _messages.struct, "steps": _line_struct(Step, ("step",), {"response": int | _Ignored})},
)
_GROUP_FIELDS = GroupKey.__struct_fields__
_CallsLine = _line_struct(Rollout, ("v", "id", "run", *_GROUP_FIELDS), {"calls": _calls.struct})
_ScoreCallsLine = _line_struct(
    Score,
    ("v", "id", "run", "rollout"),
    {"group": _line_struct(GroupKey, _GROUP_FIELDS) | None, "calls": _calls.struct},
)


class RowStats(msgspec.Struct):
    """Counts over the rows made from some lines; queries use them to skip joins."""

    rows: int = 0
    sessions: set[str] = msgspec.field(default_factory=set)
    """The sessions of the rollouts."""
    has_retries: bool = False
    """Whether any rollout was retried."""
    shared_slots: int = 0
    """How many rollouts are of a place in a group that another session recorded, too."""
    rewards: int = 0
    """How many scores are rewards of rollouts."""

    def merge(self, other: "RowStats") -> None:
        """Add what another part met."""
        self.rows += other.rows
        self.sessions |= other.sessions
        self.has_retries |= other.has_retries
        self.shared_slots += other.shared_slots
        self.rewards += other.rewards


def rollout_rows(line: bytes, place: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for a rollout."""
    record = _read(_rollout_decoder, line)
    facts.rows += 1
    facts.sessions.add(record.session)
    facts.has_retries |= bool(record.attempt)
    usages = [step.usage for step in record.steps if step.usage is not None]
    yield _encoder.encode({
        **_rollouts.row(record),
        "prompt_tokens": _sum([usage.prompt_tokens for usage in usages]),
        "completion_tokens": _sum([usage.completion_tokens for usage in usages]),
        "_file": place.file, "_offset": place.offset, "_length": place.length,
    })  # fmt: skip


def step_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each step of a rollout."""
    record = _read(_steps_decoder, line)
    context = {"rollout": record.id, **{name: getattr(record, name) for name in STEP_CONTEXT}}
    for step in record.steps:
        facts.rows += 1
        yield _encoder.encode({
            **context,
            **_steps.row(step),
            "sampling": _at(record.sampling, step.sampling),
            "prompt_messages": _sum([last - first for first, last in msgspec.json.decode(step.prompt)]),
            "response": _response_text(record.messages, step.response),
        })  # fmt: skip


def message_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each message of a rollout."""
    record = _read(_messages_decoder, line)
    steps = {step.response: step.step for step in record.steps if isinstance(step.response, int)}
    for position, message in enumerate(record.messages):
        facts.rows += 1
        context = {"rollout": record.id, "run": record.run, "position": position, "step": steps.get(position)}
        yield _encoder.encode({**context, **_messages.row(message)})


def call_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each model call of a rollout that is not a turn of the policy."""
    record = _read(_calls_decoder, line)
    if any(call.quotes for call in record.calls):
        _restore(record.calls, decode_rollout(line).calls)
    context = {"rollout": record.id, "run": record.run, **{name: getattr(record, name) for name in _GROUP_FIELDS}}
    yield from _call_rows(context, record.calls, facts)


def score_call_rows(
    line: bytes, _: LineLocation, facts: RowStats, decode: DecodeScore = decode_score
) -> Iterator[bytes]:
    """One row for each model call that was made for a score; `decode` knows the rollouts that they quote."""
    if b'"calls":' not in line:  # most scores are made without any
        return
    record = _read(_score_calls_decoder, line)
    if any(call.quotes for call in record.calls):
        _restore(record.calls, decode(line).calls)
    context = {"rollout": record.rollout, "score": record.id, "run": record.run}
    if record.group is not None:
        context |= {name: getattr(record.group, name) for name in _GROUP_FIELDS}
    yield from _call_rows(context, record.calls, facts)


def _restore(calls: Sequence[Any], whole: Sequence[Call]) -> None:
    """Give calls the text that they have in place of quotes."""
    for call, one in zip(calls, whole, strict=True):
        call.prompt = msgspec.Raw(json_encoder.encode(one.prompt))
        if call.reply is not None and one.reply is not None:
            call.reply.content = one.reply.content


def _call_rows(context: dict[str, Any], calls: Sequence[Any], facts: RowStats) -> Iterator[bytes]:
    for position, call in enumerate(calls):
        facts.rows += 1
        reply = None if call.reply is None else call.reply.content
        yield _encoder.encode({**context, "position": position, **_calls.row(call), "reply": reply})


def score_rows(line: bytes, place: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for a score."""
    record = _read(_score_decoder, line)
    facts.rows += 1
    facts.rewards += record.name == "reward" and record.rollout is not None
    written = write_position(place)
    yield _encoder.encode({
        **_scores.row(record),
        "_file": place.file, "_offset": place.offset, "_length": place.length,
        "_writer": written.writer, "_sequence": written.sequence,
    })  # fmt: skip


MAKE_ROWS: dict[str, Callable[[bytes, LineLocation, RowStats], Iterator[bytes]]] = {
    "rollouts": rollout_rows,
    "steps": step_rows,
    "messages": message_rows,
    "calls": call_rows,
    "scores": score_rows,
    "score_calls": score_call_rows,
}

_rollout_decoder = msgspec.json.Decoder(_rollouts.struct)
_steps_decoder = msgspec.json.Decoder(_StepsLine)
_messages_decoder = msgspec.json.Decoder(_MessagesLine)
_calls_decoder = msgspec.json.Decoder(_CallsLine)
_score_calls_decoder = msgspec.json.Decoder(_ScoreCallsLine)
_score_decoder = msgspec.json.Decoder(_scores.struct)


def _read(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        try:  # numbers that a record may hold and a column cannot
            return decoder.decode(_encoder.encode(_with_fitting_integers(msgspec.json.decode(line), "")))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"Expected a record: {error}.") from error


def _names_of(*kinds: FieldKind) -> frozenset[str]:
    """The names, in a line, of all fields of these kinds."""
    records = (Rollout, Step, Message, Call, Score, *(field.record for field in record_fields(Rollout) if field.record))
    return frozenset(field.written_name for record in records for field in record_fields(record) if field.kind in kinds)


_FREE_FORM = _names_of(FieldKind.FREE_FORM, FieldKind.CUSTOM)
_MAPS = _names_of(FieldKind.NUMBERS)
_UNCHANGED = _names_of(FieldKind.RESPONSE, FieldKind.NAME_OR_INTEGER) | {"v"}


def _with_fitting_integers(value: Any, name: str) -> Any:
    """The record with integers that fit: in maps of numbers as floats, elsewhere left out."""
    if name in _FREE_FORM or (name in _UNCHANGED and isinstance(value, int | str)):
        return value
    if isinstance(value, dict):
        return {key: _with_fitting_integers(item, name if name in _MAPS else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_fitting_integers(item, name) for item in value]
    if type(value) is not int or -INT64_LIMIT <= value < INT64_LIMIT:
        return value
    if name not in _MAPS:
        return None
    try:
        return float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"


def _sum(values: list[Any]) -> int | None:
    total = sum(value for value in values if value is not None)
    return total if -INT64_LIMIT <= total < INT64_LIMIT else None


def _at(items: list[Any], index: int | None) -> Any:
    return items[index] if index is not None and 0 <= index < len(items) else None


def _response_text(messages: list[_TextOnly], response: int | _TextOnly) -> str | None:
    message = _at(messages, response) if isinstance(response, int) else response
    return None if message is None else message.content
