"""Columns of tables from lines of a run. Each line is decoded once, for all tables of its folder."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, chain, compress, count, pairwise, repeat
from types import GenericAlias
from typing import Any

import msgspec
from msgspec.structs import astuple

from rolltrace.query.score_order import write_position
from rolltrace.query.table_schema import (
    CALL_FIELDS,
    LOCATION_COLUMNS,
    MESSAGE_FIELDS,
    NUMBER_MAP,
    ROLLOUT_FIELDS,
    SCORE_FIELDS,
    STEP_CONTEXT,
    STEP_FIELDS,
    RecordColumns,
    sql_type,
)
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.parts import RowStats
from rolltrace.trace.call import Call
from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.field_types import Field, FieldKind, Timestamp, field_by_name, record_fields
from rolltrace.trace.freeform import check_nesting
from rolltrace.trace.json_numbers import Float, Number, parse_float
from rolltrace.trace.limits import MAX_NESTING
from rolltrace.trace.rollout import Step
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.strict_json import json_encoder

DecodeScore = Callable[[bytes], Score]
Columns = dict[str, Sequence[Any]]
Tables = dict[str, Columns]

_EMPTY, _NULL = msgspec.Raw(b"{}"), msgspec.Raw(b"null")

_DECODED_TYPES: dict[str, Any] = {
    "VARCHAR": str,
    "VARCHAR[]": list[str],
    "BIGINT": int | None,
    "BOOLEAN": bool,
    "DOUBLE": Float | None,
    "TIMESTAMP": Timestamp,
    NUMBER_MAP: dict[str, Number],
}
"""By the type of a column, what its field is decoded to; others are not decoded."""


class _Ignored(msgspec.Struct):
    pass


class _TextOnly(msgspec.Struct):
    content: str


def _decoded(field: Field) -> tuple[Any, Any]:
    """The type that a field is decoded to, and its default."""
    kind = int | str if field.kind is FieldKind.NAME_OR_INTEGER else _DECODED_TYPES.get(sql_type(field))
    if kind is None:
        return msgspec.Raw, _EMPTY if field.kind is FieldKind.FREE_FORM else None
    default = list(field.default) if field.depth and not field.is_required else field.default
    return kind | None if field.is_nullable else kind, default


def _line_struct(record: Any, names: Collection[str], **parts: Any) -> Any:
    """A struct that decodes only these fields of a record; `parts` are the types of its fields that are records."""
    defined: list[Any] = []
    fields = [field for field in record_fields(record) if field.name in names or field.name in parts]
    for field in fields:  # in their order, because that is decoded fastest
        if field.name not in parts:
            kind, default = _decoded(field)
        elif field.depth:
            kind, default = GenericAlias(list, (parts[field.name],)), []
        else:
            kind, default = parts[field.name], None
        defined.append((field.name, kind) if field.is_required else (field.name, kind, msgspec.field(default=default)))
    renamed = {field.name: field.written_name for field in fields}
    return msgspec.defstruct(f"{record.__name__}Line", defined, kw_only=True, rename=renamed, gc=False)


class _RecordTable:
    """Makes the columns that show the fields of a record from what `struct` decodes of it."""

    def __init__(self, columns: RecordColumns, **parts: Any) -> None:
        fields = field_by_name(columns.record)
        flattened = {name: columns.parts(fields[name]) for name in columns.flattened}
        plain = [field for field in columns.fields if field.name not in flattened and field.name not in columns.counted]
        parts = {
            **dict.fromkeys(columns.counted, _Ignored),
            **{
                name: _line_struct(fields[name].record, {part.name for part in shown.values()}) | None
                for name, shown in flattened.items()
            },
            **parts,
        }
        self.struct = _line_struct(columns.record, {field.name for field in plain}, **parts)
        """What the columns need of a record, and the `parts`."""
        self.decode = msgspec.json.Decoder(self.struct).decode
        self._names = self.struct.__struct_fields__
        self._counted = columns.counted
        self._flattened = {name: tuple(shown) for name, shown in flattened.items()}
        self._as_text = [field.name for field in plain if field.kind is FieldKind.NAME_OR_INTEGER]
        self._json = [name for name, kind in columns.sql_types.items() if kind == "JSON"]
        self._free_form = [field.name for field in plain if field.kind is FieldKind.FREE_FORM]

    def columns(self, records: Sequence[Any]) -> Columns:
        """The columns of some records; an error is raised if a value would be refused in the whole record."""
        columns: Columns = dict(zip(self._names, _transposed(records, len(self._names)), strict=True))
        for name in self._as_text:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
        for name in self._counted:
            columns[name] = list(map(len, columns[name]))
        for name, shown in self._flattened.items():
            columns |= zip(shown, _transposed(columns.pop(name), len(shown)), strict=True)
        for name in self._free_form:
            _check_nesting(columns[name])
        for name in self._json:
            columns[name] = _checked_json(columns[name])
        return columns


def _transposed(records: Sequence[Any], width: int) -> Iterable[Sequence[Any]]:
    """The values of each field; None where there is no record."""
    if not any(records):
        return repeat(records, width)
    nothing = (None,) * width
    rows = map(astuple, records) if all(records) else [astuple(record) if record else nothing for record in records]
    values = [*chain.from_iterable(rows)]
    return [values[first::width] for first in range(width)]


_steps = _RecordTable(STEP_FIELDS, prompt=tuple[int, int], response=int | _TextOnly, sampling=int | None)
_messages = _RecordTable(MESSAGE_FIELDS)
_NO_MESSAGE = _messages.struct(role=None, content=None)
"""In place of the message of a step whose response is not one of the rollout's messages."""
_calls = _RecordTable(CALL_FIELDS, reply=_TextOnly | None, quotes=_Ignored)
_rollouts = _RecordTable(
    ROLLOUT_FIELDS, steps=_steps.struct, messages=_messages.struct, calls=_calls.struct, sampling=msgspec.Raw
)
_step_numbers = _RecordTable(
    RecordColumns(Step, set(Step.__struct_fields__) - {"reward_data", "metrics", "usage"}, (), STEP_FIELDS.flattened)
)
_rollouts_only = _RecordTable(ROLLOUT_FIELDS, steps=_step_numbers.struct)
_scores = _RecordTable(SCORE_FIELDS, calls=_calls.struct)


def line_decoder(kinds: tuple[str, ...], decode_score: DecodeScore) -> Callable[[bytes], Any]:
    """A function that decodes what the tables of these kinds need of a verified line.

    It raises `ValueError` or `RecursionError` if the line is not a record. For rollouts alone, texts are skipped.
    """
    table = _record_table(kinds)
    decode_whole: Callable[[bytes], Any] = decode_score if table is _scores else decode_rollout

    def decode(line: bytes) -> Any:
        record = table.decode(line)
        if table is not _rollouts_only and record.calls and any(call.quotes for call in record.calls):
            _restore_quotes(record.calls, decode_whole(line).calls)
        return record

    return decode


def make_tables(
    kinds: tuple[str, ...], records: Sequence[Any], locations: Sequence[LineLocation]
) -> tuple[Tables, RowStats]:
    """The columns of the tables of these kinds, and statistics of them, from one or more decoded lines.

    Raises `RecursionError` if a free-form value in one of them is nested too deeply.
    """
    table = _record_table(kinds)
    rows = {**table.columns(records), **dict(zip(LOCATION_COLUMNS, zip(*locations, strict=True), strict=True))}
    stats = RowStats(lines=Counter(rows["_file"]), ids=(min(rows["id"]), max(rows["id"])))
    if table is _scores:
        tables = _score_tables(records, locations, rows, stats)
    else:
        tables = _rollout_tables(table, records, rows, stats)
    stats.rows = {name: len(columns["run"]) for name, columns in tables.items()}
    return tables, stats


def _record_table(kinds: tuple[str, ...]) -> _RecordTable:
    return _scores if kinds == (SCORES,) else _rollouts_only if kinds == (ROLLOUTS,) else _rollouts


def _rollout_tables(table: _RecordTable, records: Sequence[Any], rollouts: Columns, stats: RowStats) -> Tables:
    """The tables of rollouts that were decoded for `table`."""
    iterations = [number for number in rollouts["iteration"] if number is not None]
    stats.iterations = (min(iterations), max(iterations)) if iterations else None
    stats.sessions = set(rollouts["session"])
    stats.has_retries = any(rollouts["attempt"])
    steps = (_steps if table is _rollouts else _step_numbers).columns(
        [one for record in records for one in record.steps]
    )
    _add_numbers_of_steps(rollouts, steps)
    if table is _rollouts_only:
        return {"rollouts": rollouts}
    steps, messages = _step_and_message_columns(records, rollouts, steps)
    calls = _call_columns(records, rollouts, rollout=rollouts["id"])
    return {"rollouts": rollouts, "steps": steps, "other_messages": messages, "calls": calls}


def _score_tables(
    records: Sequence[Any], locations: Sequence[LineLocation], scores: Columns, stats: RowStats
) -> Tables:
    stats.rewards = sum(record.name == "reward" and record.rollout is not None for record in records)
    scores["_writer"], scores["_sequence"], _ = zip(*map(write_position, locations), strict=True)
    calls = _call_columns(records, scores, rollout=scores["rollout"], score=scores["id"])
    return {"scores": scores, "score_calls": calls}


def _owners(counts: Iterable[int]) -> list[int]:
    """By item, the number of the record that has it; `counts` are how many items each record has."""
    return [*chain.from_iterable(map(repeat, count(), counts))]


def _repeated(values: Sequence[Any], owners: Sequence[int]) -> list[Any]:
    """For each item, the value of the record that has it."""
    if values.count(values[0]) == len(values):
        return [values[0]] * len(owners)
    return list(map(values.__getitem__, owners))


def _at(items: Sequence[Any], index: int | None) -> Any:
    """The item at an index; None without an index, or if it is out of range."""
    return items[index] if index is not None and 0 <= index < len(items) else None


def _step_and_message_columns(records: Sequence[Any], rollouts: Columns, steps: Columns) -> tuple[Columns, Columns]:
    """The steps with the messages that are their responses, and the other messages: no text is stored twice."""
    sizes = [len(record.messages) for record in records]
    starts = list(accumulate(sizes, initial=0))
    owners, message_owners = _owners(rollouts["steps"]), _owners(sizes)
    messages = [message for record in records for message in record.messages]
    numbers = [  # by step, that of the message that is its response
        starts[owner] + response if type(response) is int and 0 <= response < sizes[owner] else None
        for owner, response in zip(owners, steps["response"], strict=True)
    ]
    step_of = {number: step for step, number in enumerate(numbers)}  # the last one, if several have the same response
    stored = [
        _NO_MESSAGE if number is None or step_of[number] != step else messages[number]
        for step, number in enumerate(numbers)
    ]
    is_other = [number not in step_of for number in range(len(messages))]
    return {
        **steps,
        "rollout": _repeated(rollouts["id"], owners),
        **{name: _repeated(rollouts[name], owners) for name in STEP_CONTEXT},
        "sampling": _checked_json(
            [_at(records[owner].sampling, index) for owner, index in zip(owners, steps["sampling"], strict=True)]
        ),
        "prompt_messages": [
            prompt[0][1] - prompt[0][0] if len(prompt) == 1 else sum([last - first for first, last in prompt])
            for prompt in steps["prompt"]
        ],
        **{f"_{name}": column for name, column in _messages.columns(stored).items()},
        "response": [
            messages[number].content if number is not None else None if type(response) is int else response.content
            for number, response in zip(numbers, steps["response"], strict=True)
        ],
        "_position": [
            None if message is _NO_MESSAGE else position
            for position, message in zip(steps["response"], stored, strict=True)
        ],
    }, {
        **_messages.columns(list(compress(messages, is_other))),
        "rollout": list(compress(_repeated(rollouts["id"], message_owners), is_other)),
        "run": list(compress(_repeated(rollouts["run"], message_owners), is_other)),
        "position": list(compress(chain.from_iterable(map(range, sizes)), is_other)),
        "step": [None] * sum(is_other),
    }


def _call_columns(records: Sequence[Any], of: Columns, **ids: Sequence[str | None]) -> Columns:
    """The model calls of rollouts or of scores; `ids` are the rollout and the score of each."""
    calls = [call for record in records for call in record.calls]
    if not calls:
        return {"run": []}
    counts = [len(record.calls) for record in records]
    owners = _owners(counts)
    return {
        **_calls.columns(calls),
        "rollout": _repeated(ids["rollout"], owners),
        "score": _repeated(ids.get("score", [None]), owners),
        **{name: _repeated(of[name], owners) for name in ("run", *GroupKey.__struct_fields__)},
        "position": list(chain.from_iterable(map(range, counts))),
        "reply": [None if call.reply is None else call.reply.content for call in calls],
    }


def _restore_quotes(calls: Sequence[Any], whole: Sequence[Call]) -> None:
    """Give calls the text that they have in place of quotes."""
    for call, one in zip(calls, whole, strict=True):
        call.prompt = msgspec.Raw(json_encoder.encode(one.prompt))
        if call.reply is not None and one.reply is not None:
            call.reply.content = one.reply.content


def _checked_json(values: Sequence[Any]) -> Sequence[Any]:
    """JSON with None for null; raises `ValueError` if it is not UTF-8, which msgspec does not check in raw values."""
    data = b"".join(filter(None, values))
    if not data.isascii():
        data.decode()
    return [None if value == _NULL else value for value in values] if b"null" in data else values


def _check_nesting(values: Sequence[Any]) -> None:
    """Refuse free-form values that are nested too deeply, as decoding the whole record does."""
    if max(map(len, values), default=0) <= 2 * MAX_NESTING:  # shorter ones are not nested so deeply
        return
    for data in map(bytes, values):
        if data.count(b"{") + data.count(b"[") > MAX_NESTING:
            check_nesting(msgspec.json.decode(data))


def _add_numbers_of_steps(rollouts: Columns, steps: Columns) -> None:
    """Add what rollouts show of their steps; `steps` are the columns of those of all of them."""
    rewards, metrics = steps["reward_data"], steps["metrics"]
    ranges = list(pairwise(accumulate(rollouts["steps"], initial=0)))
    for name in ("prompt_tokens", "completion_tokens"):
        totals = list(accumulate([value or 0 for value in steps[name]], initial=0))
        rollouts[name] = [totals[last] - totals[first] for first, last in ranges]
    rollouts["step_reward_data"] = [
        rewards[first] if last - first == 1 else _sum_by_name(rewards[first:last]) for first, last in ranges
    ]
    rollouts["step_metrics"] = [
        _mean_by_name(metrics[first:last], own) for own, (first, last) in zip(rollouts["metrics"], ranges, strict=True)
    ]


def _sum_by_name(maps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if not maps:
        return {}
    try:
        sums = {name: 0.0 + value for name, value in maps[0].items()}  # text and huge integers raise here
        for numbers in maps[1:]:
            for name, value in numbers.items():
                sums[name] = sums.get(name, 0.0) + value
    except (TypeError, OverflowError):
        return _sum_by_name([{name: parse_float(value) for name, value in one.items()} for one in maps])
    return sums


def _mean_by_name(maps: Sequence[Mapping[str, Any]], without: Mapping[str, Any]) -> dict[str, float]:
    """The mean of each name that `without` does not have, over the maps that have it."""
    names = set().union(*maps).difference(without)
    if not names:
        return {}
    counts, sums = Counter(chain.from_iterable(maps)), _sum_by_name(maps)
    return {name: total / counts[name] for name, total in sums.items() if name in names}
