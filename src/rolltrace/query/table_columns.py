"""Columns of tables from lines of a run. Each line is decoded once, for all tables of its folder."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
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
from rolltrace.store.layout import ROLLOUTS
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.field_types import FORMAT_VERSION, Field, FieldKind, Timestamp, field_by_name, record_fields
from rolltrace.trace.freeform import check_nesting
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.limits import MAX_NESTING
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
Columns = dict[str, Sequence[Any]]

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
"""By the kind of a field, what it is decoded to; other kinds are not decoded."""


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
    return msgspec.defstruct(f"{record.__name__}Line", defined, kw_only=True, rename=renamed, gc=False)


class _RecordTable:
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
        self.free_form = [field.name for field in plain if field.kind is FieldKind.FREE_FORM]
        self._names = [field.name for field in plain]
        self._values = attrgetter(*self._names)
        self._counted = columns.counted
        self._flattened = {
            name: [(column, part.name) for column, part in shown.items()] for name, shown in flattened.items()
        }
        self._as_text = [field.name for field in plain if field.kind is FieldKind.NAME_OR_INTEGER]

    @staticmethod
    def _part_struct(columns: RecordColumns, name: str) -> Any:
        field = field_by_name(columns.record)[name]
        shown = [part.name for part in columns.parts(field).values()]
        return _line_struct(field.record, shown) | None  # type: ignore[arg-type]

    def columns(self, records: Sequence[Any]) -> Columns:
        """The columns of some records."""
        values = zip(*map(self._values, records), strict=True) if records else repeat((), len(self._names))
        columns: Columns = dict(zip(self._names, values, strict=True))
        for name in self._as_text:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
        for name in self._counted:
            columns[name] = [len(getattr(record, name)) for record in records]
        for name, shown in self._flattened.items():
            parts = [getattr(record, name) for record in records]
            for column, attribute in shown:
                columns[column] = [None if part is None else getattr(part, attribute) for part in parts]
        return columns


_steps = _RecordTable(STEP_FIELDS, ("sampling",), {"prompt": tuple[int, int], "response": int | _TextOnly})
_messages = _RecordTable(MESSAGE_FIELDS)
_calls = _RecordTable(CALL_FIELDS, (), {"reply": _TextOnly | None, "quotes": _Ignored})
_rollouts = _RecordTable(
    ROLLOUT_FIELDS,
    ("v",),
    {"steps": _steps.struct, "messages": _messages.struct, "calls": _calls.struct, "sampling": msgspec.Raw},
)
_scores = _RecordTable(SCORE_FIELDS, ("v",), {"calls": _calls.struct})
_GROUP_FIELDS = GroupKey.__struct_fields__

_rollout_decoder = msgspec.json.Decoder(_rollouts.struct)
_score_decoder = msgspec.json.Decoder(_scores.struct)


class RowStats(msgspec.Struct):
    """Counts over the lines of some tables; queries use them to skip joins."""

    rows: dict[str, int] = {}
    """By table, the number of rows."""
    sessions: set[str] = msgspec.field(default_factory=set)
    """The sessions of the rollouts."""
    has_retries: bool = False
    """Whether any rollout was retried."""
    shared_slots: int = 0
    """How many rollouts are of a place in a group that another session recorded, too."""
    rewards: int = 0
    """How many scores are rewards of rollouts."""
    lines: dict[str, int] = {}
    """By file, the number of its lines; likewise the next two, `part_writer` counts it when a part is written."""
    ids: tuple[str, str] = ("", "")
    """The first and the last id of a line, in alphabetical order."""
    repeats: int = 0
    """How many lines repeat the id of another one."""

    def merge(self, other: "RowStats") -> None:
        """Add the counts of other lines."""
        for table, rows in other.rows.items():
            self.rows[table] = self.rows.get(table, 0) + rows
        self.sessions |= other.sessions
        self.has_retries |= other.has_retries
        self.shared_slots += other.shared_slots
        self.rewards += other.rewards


class LineBatch:
    """Decoded lines of one folder on their way into columns."""

    def __init__(self, folder: str, stats: RowStats, decode_score: DecodeScore) -> None:
        self._is_rollouts = folder == ROLLOUTS
        self._stats = stats
        self._decode_score = decode_score
        self._records: list[Any] = []
        self._locations: list[LineLocation] = []

    def add(self, line: bytes, location: LineLocation) -> None:
        """Decode a line; raises `RecordError` if it is not a record of the folder. Free-form values are not decoded."""
        record = _read(_rollout_decoder if self._is_rollouts else _score_decoder, line)
        _check_nesting((record,), (_rollouts if self._is_rollouts else _scores).free_form)
        if self._is_rollouts:
            _check_nesting(record.steps, _steps.free_form)
        if record.calls and any(call.quotes for call in record.calls):
            decode: Callable[[bytes], Any] = decode_rollout if self._is_rollouts else self._decode_score
            _restore_quotes(record.calls, decode(line).calls)
        self._records.append(record)
        self._locations.append(location)

    def take(self) -> dict[str, Columns]:
        """By table, the columns of the lines that were added since the last call."""
        records, self._records = self._records, []
        locations, self._locations = self._locations, []
        return self._rollout_tables(records, locations) if self._is_rollouts else self._score_tables(records, locations)

    def _rollout_tables(self, records: Sequence[Any], locations: Sequence[LineLocation]) -> dict[str, Columns]:
        self._stats.sessions.update(record.session for record in records)
        self._stats.has_retries = self._stats.has_retries or any(record.attempt for record in records)
        usages = [[step.usage for step in record.steps if step.usage is not None] for record in records]
        rollouts = {
            **_rollouts.columns(records),
            "prompt_tokens": [_sum([usage.prompt_tokens for usage in own]) for own in usages],
            "completion_tokens": [_sum([usage.completion_tokens for usage in own]) for own in usages],
            **_location_columns(locations),
        }
        return {
            "rollouts": rollouts,
            "steps": _step_columns(records),
            "messages": _message_columns(records),
            "calls": _call_columns(records, {name: [getattr(one, name) for one in records] for name in _GROUP_FIELDS}),
        }

    def _score_tables(self, records: Sequence[Any], locations: Sequence[LineLocation]) -> dict[str, Columns]:
        self._stats.rewards += sum(record.name == "reward" and record.rollout is not None for record in records)
        written = list(map(write_position, locations))
        columns = _scores.columns(records)
        scores = {
            **columns,
            **_location_columns(locations),
            "_writer": [position.writer for position in written],
            "_sequence": [position.sequence for position in written],
        }
        return {"scores": scores, "score_calls": _call_columns(records, columns)}


def _location_columns(locations: Sequence[LineLocation]) -> Columns:
    return dict(zip(("_file", "_offset", "_length"), zip(*locations, strict=True), strict=True)) if locations else {}


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Each value as often as its count says."""
    return list(chain.from_iterable(map(repeat, values, counts)))


def _step_columns(records: Sequence[Any]) -> Columns:
    steps = [step for record in records for step in record.steps]
    counts = [len(record.steps) for record in records]
    owners = _repeated(records, counts)
    return {
        "rollout": _repeated([record.id for record in records], counts),
        **{name: _repeated([getattr(record, name) for record in records], counts) for name in STEP_CONTEXT},
        **_steps.columns(steps),
        "sampling": [_at(owner.sampling, step.sampling) for owner, step in zip(owners, steps, strict=True)],
        "prompt_messages": [_sum([last - first for first, last in step.prompt]) for step in steps],
        "response": [_response_text(owner.messages, step.response) for owner, step in zip(owners, steps, strict=True)],
    }


def _message_columns(records: Sequence[Any]) -> Columns:
    counts = [len(record.messages) for record in records]
    steps: list[int | None] = []
    for record in records:
        by_response = {step.response: step.step for step in record.steps if type(step.response) is int}
        steps += map(by_response.get, range(len(record.messages)))
    return {
        "rollout": _repeated([record.id for record in records], counts),
        "run": _repeated([record.run for record in records], counts),
        "position": list(chain.from_iterable(map(range, counts))),
        "step": steps,
        **_messages.columns([message for record in records for message in record.messages]),
    }


def _call_columns(records: Sequence[Any], groups: Columns) -> Columns:
    """The model calls of rollouts or of scores; `groups` has the group of each."""
    calls = [call for record in records for call in record.calls]
    counts = [len(record.calls) for record in records]
    of_scores = bool(records) and hasattr(records[0], "rollout")
    ids = [record.id for record in records]
    return {
        "rollout": _repeated([record.rollout for record in records] if of_scores else ids, counts),
        "score": _repeated(ids if of_scores else [None] * len(ids), counts),
        "run": _repeated([record.run for record in records], counts),
        **{name: _repeated(groups[name], counts) for name in _GROUP_FIELDS},
        "position": list(chain.from_iterable(map(range, counts))),
        **_calls.columns(calls),
        "reply": [None if call.reply is None else call.reply.content for call in calls],
    }


def _restore_quotes(calls: Sequence[Any], whole: Sequence[Call]) -> None:
    """Give calls the text that they have in place of quotes."""
    for call, one in zip(calls, whole, strict=True):
        call.prompt = msgspec.Raw(json_encoder.encode(one.prompt))
        if call.reply is not None and one.reply is not None:
            call.reply.content = one.reply.content


def _read(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        try:  # numbers that a record may hold and a column cannot
            return decoder.decode(_encoder.encode(_with_fitting_integers(msgspec.json.decode(line), "")))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"Expected a record: {error}.") from error


def _check_nesting(records: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse free-form values that are nested too deeply, as decoding the whole record does."""
    for record in records:
        for name in names:
            value = getattr(record, name)
            if len(value) <= 2 * MAX_NESTING:  # too short to be nested so deeply
                continue
            data = bytes(value)
            if data.count(b"{") + data.count(b"[") > MAX_NESTING:
                try:
                    check_nesting(msgspec.json.decode(data))
                except (ValueError, RecursionError) as error:
                    raise RecordError(f"Expected a record that is nested at most {MAX_NESTING} deep.") from error


def with_valid_text(line: bytes) -> bytes:
    """The same record without escapes; raises `RecordError` if any text in it is not valid."""
    try:
        return _encoder.encode(msgspec.json.decode(line))
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


def _response_text(messages: list[Any], response: int | _TextOnly) -> str | None:
    message = _at(messages, response) if isinstance(response, int) else response
    return None if message is None else message.content
