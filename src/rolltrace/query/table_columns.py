"""Columns of tables from lines of a run. Each line is decoded once, for all tables of its folder."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, compress, pairwise, repeat
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import astuple

from rolltrace.errors import RecordError
from rolltrace.query.score_order import write_position
from rolltrace.query.table_schema import (
    CALL_FIELDS,
    LOCATION_COLUMNS,
    MESSAGE_FIELDS,
    ROLLOUT_FIELDS,
    SCORE_FIELDS,
    STEP_CONTEXT,
    STEP_FIELDS,
    RecordColumns,
)
from rolltrace.store.cursor import LineLocation, record_read_error
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.parts import RowStats
from rolltrace.store.read_errors import ReadError
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
        return msgspec.Raw, _EMPTY if field.kind is FieldKind.FREE_FORM else None
    kind = list[str] if field.depth else _DECODED_TYPES[field.kind]
    default = list(field.default) if field.depth and not field.is_required else field.default
    return kind | None if field.is_nullable else kind, default


def _line_struct(record: type[msgspec.Struct], names: Sequence[str], parts: Mapping[str, Any] | None = None) -> Any:
    """A struct that decodes only these fields of a record; `parts` are the types of its fields that are records."""
    parts = parts or {}
    defined: list[Any] = []
    for name in [name for name in field_by_name(record) if name in names or name in parts]:  # decoded fastest in order
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
        self._names = self.struct.__struct_fields__
        self._counted = columns.counted
        self._flattened = {name: tuple(shown) for name, shown in flattened.items()}
        self._as_text = [field.name for field in plain if field.kind is FieldKind.NAME_OR_INTEGER]
        self._free_form = [field.name for field in plain if field.kind is FieldKind.FREE_FORM]

    @staticmethod
    def _part_struct(columns: RecordColumns, name: str) -> Any:
        field = field_by_name(columns.record)[name]
        shown = [part.name for part in columns.parts(field).values()]
        return _line_struct(field.record, shown) | None  # type: ignore[arg-type]

    def columns(self, records: Sequence[Any]) -> Columns:
        """The columns of some records; raises `RecordError` if a free-form value is nested too deeply."""
        columns: Columns = dict(zip(self._names, _transposed(records, len(self._names)), strict=True))
        for name in self._as_text:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
        for name in self._counted:
            columns[name] = list(map(len, columns[name]))
        for name, shown in self._flattened.items():
            columns |= zip(shown, _transposed(columns.pop(name), len(shown)), strict=True)
        for name in self._free_form:
            _check_nesting(columns[name])
        return columns


def _transposed(records: Sequence[Any], width: int) -> Iterable[Sequence[Any]]:
    """The values of each field; None where there is no record."""
    if not any(records):
        return repeat(records, width)
    return zip(*[(None,) * width if record is None else astuple(record) for record in records], strict=True)


_steps = _RecordTable(STEP_FIELDS, ("sampling",), {"prompt": tuple[int, int], "response": int | _TextOnly})
_messages = _RecordTable(MESSAGE_FIELDS)
_NO_MESSAGE = _messages.struct(role=None, content=None)
"""In place of the message of a step whose response is not one of the rollout's messages."""
_calls = _RecordTable(CALL_FIELDS, (), {"reply": _TextOnly | None, "quotes": _Ignored})
_rollouts = _RecordTable(
    ROLLOUT_FIELDS,
    ("v",),
    {"steps": _steps.struct, "messages": _messages.struct, "calls": _calls.struct, "sampling": msgspec.Raw},
)
_usage_only = _line_struct(Step, (), {"usage": _RecordTable._part_struct(STEP_FIELDS, "usage")})
_rollouts_only = _RecordTable(ROLLOUT_FIELDS, ("v",), {"steps": _usage_only})
_scores = _RecordTable(SCORE_FIELDS, ("v",), {"calls": _calls.struct})
_GROUP_FIELDS = GroupKey.__struct_fields__
_TOKENS = ("prompt_tokens", "completion_tokens")

_rollout_decoder = msgspec.json.Decoder(_rollouts.struct)
_rollouts_only_decoder = msgspec.json.Decoder(_rollouts_only.struct)
_score_decoder = msgspec.json.Decoder(_scores.struct)


def read_tables(
    kinds: tuple[str, ...], lines: Iterable[tuple[bytes, LineLocation]], decode_score: DecodeScore
) -> tuple[dict[str, Columns], RowStats, list[ReadError]]:
    """Decode lines of a folder into the columns of its tables; the errors are those of lines that are not records.

    Raises `RecordError` if a free-form value in one of them is nested too deeply. For rollouts alone, their texts are
    skipped. Other kinds are of tables that need whole lines.
    """
    if kinds == (ROLLOUTS,):
        decoder, make_tables = _rollouts_only_decoder, _rollouts_only_tables
    elif kinds == (SCORES,):
        decoder, make_tables = _score_decoder, _score_tables
    else:
        decoder, make_tables = _rollout_decoder, _rollout_tables
    decode_whole: Callable[[bytes], Any] = decode_score if kinds == (SCORES,) else decode_rollout
    records, locations, errors = [], [], []
    for line, location in lines:
        try:
            record = _read(decoder, line)
            if kinds != (ROLLOUTS,) and record.calls and any(call.quotes for call in record.calls):
                _restore_quotes(record.calls, decode_whole(line).calls)
        except RecordError as error:
            errors.append(record_read_error(location, error))
        else:
            records.append(record)
            locations.append(location)
    stats = RowStats()
    return make_tables(records, locations, stats) if records else {}, stats, errors


def _rollouts_only_tables(
    records: Sequence[Any], locations: Sequence[LineLocation], stats: RowStats
) -> dict[str, Columns]:
    rollouts = _rollout_columns(_rollouts_only, records, locations, stats)
    usages = [step.usage for record in records for step in record.steps]
    for name in _TOKENS:
        values = [None if usage is None else getattr(usage, name) for usage in usages]
        rollouts[name] = _sums(values, rollouts["steps"])
    return {"rollouts": rollouts}


def _rollout_columns(
    table: _RecordTable, records: Sequence[Any], locations: Sequence[LineLocation], stats: RowStats
) -> Columns:
    rollouts = {**table.columns(records), **_location_columns(locations)}
    stats.sessions = set(rollouts["session"])
    stats.has_retries = any(rollouts["attempt"])
    return rollouts


def _rollout_tables(records: Sequence[Any], locations: Sequence[LineLocation], stats: RowStats) -> dict[str, Columns]:
    rollouts = _rollout_columns(_rollouts, records, locations, stats)
    steps, messages = _step_and_message_columns(records, rollouts)
    stats.responses = len(steps["_position"]) - steps["_position"].count(None)
    for name in _TOKENS:
        rollouts[name] = _sums(steps[name], rollouts["steps"])
    return {
        "rollouts": rollouts,
        "steps": steps,
        "other_messages": messages,
        "calls": _call_columns(records, rollouts["calls"], rollouts, rollout=rollouts["id"]),
    }


def _score_tables(records: Sequence[Any], locations: Sequence[LineLocation], stats: RowStats) -> dict[str, Columns]:
    scores = {**_scores.columns(records), **_location_columns(locations)}
    stats.rewards = sum(record.name == "reward" and record.rollout is not None for record in records)
    written = list(map(write_position, locations))
    scores["_writer"] = [position.writer for position in written]
    scores["_sequence"] = [position.sequence for position in written]
    counts = [len(record.calls) for record in records]
    calls = _call_columns(records, counts, scores, rollout=scores["rollout"], score=scores["id"])
    return {"scores": scores, "score_calls": calls}


def _location_columns(locations: Sequence[LineLocation]) -> Columns:
    return dict(zip(LOCATION_COLUMNS, zip(*locations, strict=True), strict=True))


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Each value as often as its count says."""
    if values.count(values[0]) == len(values):
        return [values[0]] * sum(counts)
    return list(chain.from_iterable(map(repeat, values, counts)))


def _step_and_message_columns(records: Sequence[Any], rollouts: Columns) -> tuple[Columns, Columns]:
    """The steps with the messages that are their responses, and the other messages: no text is stored twice."""
    counts, sizes = rollouts["steps"], [len(record.messages) for record in records]
    messages = [message for record in records for message in record.messages]
    columns = _steps.columns([step for record in records for step in record.steps])
    ranges = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    numbers = [  # by step, that of the message that is its response
        _at(own, response) if type(response) is int else None
        for own, response in zip(_repeated(ranges, counts), columns["response"], strict=True)
    ]
    step_of = {number: step for step, number in enumerate(numbers)}  # the last one, if several have the same response
    stored = [
        _NO_MESSAGE if number is None or step_of[number] != step else messages[number]
        for step, number in enumerate(numbers)
    ]
    steps = {
        **columns,
        "rollout": _repeated(rollouts["id"], counts),
        **{name: _repeated(rollouts[name], counts) for name in STEP_CONTEXT},
        "sampling": list(map(_at, _repeated([record.sampling for record in records], counts), columns["sampling"])),
        "prompt_messages": _sums(
            [last - first for prompt in columns["prompt"] for first, last in prompt], map(len, columns["prompt"])
        ),
        **{f"_{name}": column for name, column in _messages.columns(stored).items()},
        "response": [
            messages[number].content if number is not None else None if type(response) is int else response.content
            for number, response in zip(numbers, columns["response"], strict=True)
        ],
        "_position": [
            None if message is _NO_MESSAGE else position
            for position, message in zip(columns["response"], stored, strict=True)
        ],
    }
    is_other = [number not in step_of for number in range(len(messages))]
    return steps, {
        **_messages.columns(list(compress(messages, is_other))),
        "rollout": list(compress(_repeated(rollouts["id"], sizes), is_other)),
        "run": list(compress(_repeated(rollouts["run"], sizes), is_other)),
        "position": list(compress(chain.from_iterable(map(range, sizes)), is_other)),
        "step": [None] * sum(is_other),
    }


def _call_columns(
    records: Sequence[Any], counts: Sequence[int], owners: Columns, **ids: Sequence[str | None]
) -> Columns:
    """The model calls of rollouts or of scores; `ids` are the rollout and the score of each."""
    calls = [call for record in records for call in record.calls]
    if not calls:
        return {}
    return {
        **_calls.columns(calls),
        "rollout": _repeated(ids["rollout"], counts),
        "score": _repeated(ids.get("score", [None]), counts),
        **{name: _repeated(owners[name], counts) for name in ("run", *_GROUP_FIELDS)},
        "position": list(chain.from_iterable(map(range, counts))),
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


def _check_nesting(values: Sequence[Any]) -> None:
    """Refuse free-form values that are nested too deeply, as decoding the whole record does."""
    if max(map(len, values), default=0) <= 2 * MAX_NESTING:  # shorter ones are not nested so deeply
        return
    for data in map(bytes, values):
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


def _sums(values: Iterable[int | None], counts: Iterable[int]) -> list[int | None]:
    """The sums of so many values each, one after the other; None if a column cannot hold it."""
    totals = list(accumulate([value or 0 for value in values], initial=0))
    sums = [totals[last] - totals[first] for first, last in pairwise(accumulate(counts, initial=0))]
    return [total if -INT64_LIMIT <= total < INT64_LIMIT else None for total in sums]


def _at(items: Sequence[Any], index: int | None) -> Any:
    return items[index] if index is not None and 0 <= index < len(items) else None
