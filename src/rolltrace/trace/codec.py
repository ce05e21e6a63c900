"""Records to lines of bytes and back: strict JSON, with a checksum at the end."""

import zlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from rolltrace.errors import ChecksumError, NewerVersionError, OlderVersionError, RecordError
from rolltrace.trace.field_types import FORMAT_VERSION, Field, FieldKind, Range, record_fields
from rolltrace.trace.freeform import Note, check_nesting, from_json_mapping, to_json_mapping
from rolltrace.trace.json_numbers import (
    Float,
    as_float,
    json_floats,
    json_number,
    json_numbers,
    parse_number,
    parse_numbers,
)
from rolltrace.trace.limits import MAX_LINE_BYTES, MAX_NESTING
from rolltrace.trace.message import decode_hook
from rolltrace.trace.quote import FindTextSource, TextSource, resolve_quotes, rollout_unavailable, text_source
from rolltrace.trace.quote_search import add_quotes
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade, Score
from rolltrace.trace.strict_json import encode_fields

_CRC = b',"crc":"'
_TAIL = len(_CRC) + len('01234567"}')

_rollout_decoder = msgspec.json.Decoder(Rollout, dec_hook=decode_hook)
_score_decoder = msgspec.json.Decoder(Score, dec_hook=decode_hook)

Record = TypeVar("Record", Rollout, Score)


class RecordVersion(msgspec.Struct):
    """What every record says first."""

    v: int


def utc_now() -> datetime:
    """The time, as records hold it."""
    return datetime.now(UTC)


def add_checksum(*pieces: bytes | memoryview) -> bytes:
    """A JSON object, in one piece or several, as a line: the checksum of its bytes put in last, then a line feed."""
    body = b"".join((*pieces[:-1], pieces[-1][:-1]))
    if len(body) + _TAIL >= MAX_LINE_BYTES:
        raise RecordError(f"Expected a record of less than {MAX_LINE_BYTES} bytes, got {len(body) + _TAIL}.")
    return b'%b%b%08x"}\n' % (body, _CRC, zlib.crc32(body))


def encode_rollout(rollout: Rollout) -> bytes:
    """A rollout as one line; its late scores are lines of their own, so `reward` is the `line_reward`.

    Its calls quote its messages.
    """
    fields = to_wire(rollout)
    if rollout.calls:
        fields["calls"] = [to_wire(call) for call in add_quotes(rollout.calls, [text_source(rollout)])]
    return add_checksum(encode_fields(fields, []))


class RolloutWithScores(Rollout, frozen=True, kw_only=True):
    """A rollout as `encode_with_scores` writes it, apart from `scores`: with the reward as it stands now."""

    reward: Float | None
    """The total as it stands now, late scores included."""
    line_reward: Float | None = msgspec.field(name="line_reward")
    """The total on the rollout's line; None while a group grade is pending, or if status is not ok."""
    group_grade: Grade | None
    """What the group's grader said; None if the reward is the line's, null, or a plain score without a grade."""


def encode_with_scores(rollout: Rollout, *, all_scores: bool = True) -> bytes:
    """A rollout as JSON for programs that read: `reward` as it stands now, then what it is made of.

    It is not a line of a run: it also has `line_reward`, `group_grade` and (unless left out) `scores`, and no checksum.
    """
    grade = rollout.group_grade
    fields = to_wire(rollout) | {
        "reward": json_number(rollout.reward),
        "line_reward": json_number(rollout.line_reward),
        "group_grade": None if grade is None else to_wire(grade),
    }
    if all_scores:
        fields["scores"] = [_wire_score(score) for score in rollout.scores]
    return encode_fields(fields, []) + b"\n"


def encode_score(score: Score, sources: Sequence[TextSource] = (), *, quotes: bool = True) -> bytes:
    """A score as one line; a value that is no number is moved to its `data`.

    Its calls quote each other and the `sources`; where `quotes` is False, they have their whole text.
    """
    fields = _wire_score(score)
    if quotes and score.calls:
        fields["calls"] = [to_wire(call) for call in add_quotes(score.calls, sources)]
    return add_checksum(encode_fields(fields, []))


def encode_whole_score(score: Score) -> bytes:
    """A score as JSON for programs that read: its calls have their whole text, and there is no checksum."""
    return encode_fields(_wire_score(score), [])


def _wire_score(score: Score) -> dict[str, Any]:
    value: Any = score.value
    if value is not None and type(value) is not float:
        number = as_float(value)
        data = score.data if number is not None else {**score.data, "value": value}
        score = replace(score, value=number, data=data)
    return to_wire(score)


def decode_rollout(line: bytes) -> Rollout:
    """The rollout of one line; the error says what is wrong and where."""
    return _decode(line, _rollout_decoder, "rollout")


def decode_score(line: bytes, find: FindTextSource = rollout_unavailable) -> Score:
    """The score of one line; the error says what is wrong and where.

    `find` gives the rollouts that its calls quote; text of others is replaced by a placeholder.
    """
    score = decode_stored_score(line)
    force_setattr(score, "calls", resolve_quotes(score.calls, None, find))
    return score


def copy_score(score: Score) -> Score:
    """A copy that shares nothing with the original, as it would be read back from a run."""
    return decode_score(encode_score(score, quotes=False))


def decode_stored_score(line: bytes) -> Score:
    """The score of one line as it is stored: its calls have quotes."""
    return _decode(line, _score_decoder, "score")


def verify_checksum(line: bytes) -> bytes:
    """The line without its line feed, if it is whole and its bytes are those that were written."""
    check_checksum(line)
    return line.removesuffix(b"\n")


def has_checksum(line: bytes, end: int) -> bool:
    """Whether a line is whole, with the bytes that were written; `end` is where its line feed is, or would be.

    It is not copied: it may be long.
    """
    start = max(end - _TAIL, 0)
    return line.startswith(b'%b%08x"}' % (_CRC, zlib.crc32(memoryview(line)[:start])), start)


def check_checksum(line: bytes) -> None:
    """Raise unless the line is whole and its bytes are those that were written."""
    end = len(line) - line.endswith(b"\n")
    if has_checksum(line, end):
        return
    start = max(end - _TAIL, 0)
    if line[start : start + len(_CRC)] != _CRC or not line.endswith(b'"}', 0, end):
        raise RecordError(f"Expected a record that ends in its checksum, got {end} bytes that do not.")
    written = line[end - 10 : end - 2].decode(errors="replace")
    raise ChecksumError(f"Expected checksum {written}, the bytes have {zlib.crc32(memoryview(line)[:start]):08x}.")


def _decode(line: bytes, decoder: msgspec.json.Decoder[Record], kind: str) -> Record:
    check_checksum(line)
    try:
        record = decoder.decode(line)
        if record.v == FORMAT_VERSION:
            _check_nesting(record)
            if _holds_markers(line):
                _restore(record)
    except RecursionError as error:
        raise RecordError(f"Expected a {kind} record that is nested at most {MAX_NESTING} deep.") from error
    except ValueError as error:  # msgspec's own are among them, and so is what it lets through about bad UTF-8
        _refuse_other_version(line, kind)
        raise RecordError(f"Expected a {kind} record: {error}.") from error
    if record.v != FORMAT_VERSION:
        raise version_error(kind, record.v)
    if isinstance(record, Rollout):
        _check_references(record)
        if record.calls:
            force_setattr(record, "calls", resolve_quotes(record.calls, text_source(record)))
    return record


def _check_nesting(record: msgspec.Struct) -> None:
    """Raise `RecursionError` if a free-form map of the record, or of a record in it, is nested too deeply."""
    free_form, records = _free_form_fields(type(record))
    for name in free_form:
        if value := getattr(record, name):
            check_nesting(value)
    for name in records:
        value = getattr(record, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, msgspec.Struct):
                _check_nesting(part)


@cache
def _free_form_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a record's free-form fields, and of the fields with records that have such."""
    fields = record_fields(kind)
    free_form = tuple(field.name for field in fields if field.kind is FieldKind.FREE_FORM)
    records = ((field.name, field.record) for field in fields if field.record is not None)
    return free_form, tuple(name for name, record in records if any(_free_form_fields(record)))


def _check_references(rollout: Rollout) -> None:
    """Refuse a rollout whose steps speak of messages, tools or settings that it does not hold."""
    count = len(rollout.messages)
    _check_ranges(rollout.final, count, "$.final")
    _check_ranges(rollout.pending_prompt or (), count, "$.pending_prompt")
    for step in rollout.steps:
        path = f"$.steps[{step.step}]"
        _check_ranges(step.prompt, count, f"{path}.prompt")
        _check_index(step.response if type(step.response) is int else None, count, f"{path}.response")
        _check_index(step.tools, len(rollout.tools), f"{path}.tools")
        _check_index(step.sampling, len(rollout.sampling), f"{path}.sampling")


def _check_ranges(ranges: Sequence[Range], count: int, path: str) -> None:
    for first, last in ranges:
        if not 0 <= first < last <= count:
            raise RecordError(f"Expected ranges of {count} messages, got [{first},{last}] - at `{path}`.")


def _check_index(index: int | None, count: int, path: str) -> None:
    if index is not None and not 0 <= index < count:
        raise RecordError(f"Expected an index below {count}, got {index} - at `{path}`.")


def _refuse_other_version(line: bytes, kind: str) -> None:
    try:
        version = msgspec.json.decode(line, type=RecordVersion).v
    except (ValueError, RecursionError):
        return
    if version != FORMAT_VERSION:
        raise version_error(kind, version)


def version_error(kind: str, version: int) -> RecordError:
    """The error that names a version of the format which this reader does not read."""
    expected = f"Expected a {kind} of format version {FORMAT_VERSION}, got version {version}"
    if version > FORMAT_VERSION:
        return NewerVersionError(f"{expected}: it was written by a newer Rolltrace; upgrade to read it.")
    if version == 1:
        return OlderVersionError(f"{expected}: format version 1 was never released; record the run again.")
    return RecordError(f"{expected} - at `$.v`.")


def _holds_markers(line: bytes) -> bool:
    return b'"$' in line or b'"NaN"' in line or b'Infinity"' in line


def _restore(record: msgspec.Struct) -> None:
    """Turn the text of non-finite numbers and the markers of free-form maps back into values, in a decoded record."""
    for field in record_fields(type(record)):
        value = getattr(record, field.name)
        if value is None or not is_converted(field):
            continue
        if field.kind is FieldKind.NUMBERS:
            parse_numbers(value)
        elif field.kind is FieldKind.FREE_FORM:
            force_setattr(record, field.name, from_json_mapping(value))
        elif field.record is not None:
            _restore_records(value)
        else:
            force_setattr(record, field.name, tuple(map(parse_number, value)) if field.depth else parse_number(value))


def _restore_records(value: Any) -> None:
    """Do that in a record, or in tuples of records; the index of a message stays."""
    if isinstance(value, tuple):
        for part in value:
            _restore_records(part)
    elif isinstance(value, msgspec.Struct):
        _restore(value)


def to_wire(record: msgspec.Struct, path: str = "", notes: list[Note] | None = None) -> dict[str, Any]:
    """A record as the encoder must be given it.

    Non-finite numbers become text, markers stand for what JSON lacks, and omittable fields with their default are
    left out. `notes` says what could not be kept of free-form maps; in a record that was read, everything can.
    """
    notes = [] if notes is None else notes
    wire: dict[str, Any] = {}
    for field in record_fields(type(record)):
        value = getattr(record, field.name)
        if not (field.omits_default and value == field.default):
            wire[field.written_name] = wire_value(field, value, f"{path}.{field.name}".lstrip("."), notes)
    return wire


def wire_value(field: Field, value: Any, path: str, notes: list[Note]) -> Any:
    """The value of the field at `path` as the encoder must be given it."""
    if not is_converted(field) or (value is None and field.kind is not FieldKind.FREE_FORM):
        return value
    if field.kind is FieldKind.NUMBERS:
        return json_numbers(value)
    if field.kind is FieldKind.FREE_FORM:
        return to_json_mapping(value, path, notes)
    if field.record is not None:
        return _wire_records(value, path, notes)
    return json_floats(value) if field.depth else json_number(value)


def _wire_records(value: Any, path: str, notes: list[Note]) -> Any:
    if isinstance(value, tuple | list):
        return [_wire_records(part, f"{path}[{index}]", notes) for index, part in enumerate(value)]
    return to_wire(value, path, notes) if isinstance(value, msgspec.Struct) else value


_CONVERTED = {FieldKind.NUMBER, FieldKind.DURATION, FieldKind.NUMBERS, FieldKind.FREE_FORM}


@cache
def is_converted(field: Field) -> bool:
    """Whether the values of a field are converted for the encoder; records that need no conversion are not."""
    if field.record is None:
        return field.kind in _CONVERTED
    return any(
        is_converted(part) or (part.omits_default and not field.record.__struct_config__.omit_defaults)
        for part in record_fields(field.record)
    )


def wire_free_form(values: Mapping[str, Any]) -> dict[str, Any]:
    """A free-form map as the encoder must be given it; for maps from a record, which need no notes."""
    notes: list[Note] = []
    return to_json_mapping(values, "", notes)
