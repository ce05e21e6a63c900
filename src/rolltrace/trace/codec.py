"""Records to lines of bytes and back: strict JSON, with a checksum at the end."""

import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from rolltrace.errors import ChecksumError, NewerVersionError, RecordError
from rolltrace.trace.freeform import Note, plain_mapping, restore_value
from rolltrace.trace.message import decode_hook, encode_hook
from rolltrace.trace.numbers import restore_number, restore_numbers, wire_number
from rolltrace.trace.rollout import FORMAT_VERSION, Grade, Rollout, Step, Tokens
from rolltrace.trace.score import Score

_CRC = b',"crc":"'
_TAIL = len(_CRC) + len('01234567"}')

json_encoder = msgspec.json.Encoder(enc_hook=encode_hook)
_rollout_decoder = msgspec.json.Decoder(Rollout, dec_hook=decode_hook)
_score_decoder = msgspec.json.Decoder(Score, dec_hook=decode_hook)

_NUMBERS = {"reward", "env_reward", "reward_so_far", "unclamped_reward", "seconds", "value"}
_NUMBER_MAPS = {"reward_data", "metrics"}
_FREE_FORM = {"env_args", "task_data", "env_state", "extra", "logs", "data"}

Record = TypeVar("Record", Rollout, Score)


class _Version(msgspec.Struct):
    v: int


def utc_now() -> datetime:
    """The time, as records hold it."""
    return datetime.now(UTC)


def seal(body: bytes) -> bytes:
    """A JSON object as a line: the same bytes, then the checksum of all that is before it, then a line feed."""
    open_body = body[:-1]
    return b'%b%b%08x"}\n' % (open_body, _CRC, zlib.crc32(open_body))


def encode_rollout(rollout: Rollout) -> bytes:
    """A rollout as one line."""
    return seal(json_encoder.encode(_wire(rollout)))


def encode_score(score: Score) -> bytes:
    """A score as one line."""
    return seal(json_encoder.encode(_wire(score)))


def decode_rollout(line: bytes) -> Rollout:
    """The rollout of one line; the error says what is wrong and where."""
    rollout = _decode(line, _rollout_decoder, "rollout")
    if _holds_markers(line):
        _restore(rollout)
        for step in rollout.steps:
            _restore(step)
            if step.tokens is not None and step.tokens.logprobs is not None:
                logprobs = tuple(restore_number(value) for value in step.tokens.logprobs)
                force_setattr(step.tokens, "logprobs", logprobs)
        if rollout.grade is not None:
            _restore(rollout.grade)
    return rollout


def decode_score(line: bytes) -> Score:
    """The score of one line; the error says what is wrong and where."""
    score = _decode(line, _score_decoder, "score")
    if _holds_markers(line):
        _restore(score)
    return score


def verify(line: bytes) -> bytes:
    """The line without its line feed, if it is whole and its bytes are those that were written."""
    line = line.removesuffix(b"\n")
    if line[-_TAIL : -_TAIL + len(_CRC)] != _CRC or not line.endswith(b'"}'):
        raise RecordError(f"Expected a record that ends in its checksum, got {len(line)} bytes that do not.")
    written = line[-10:-2]
    found = b"%08x" % zlib.crc32(memoryview(line)[:-_TAIL])
    if written != found:
        raise ChecksumError(f"Expected checksum {written.decode(errors='replace')}, the bytes have {found.decode()}.")
    return line


def _decode(line: bytes, decoder: msgspec.json.Decoder[Record], kind: str) -> Record:
    line = verify(line)
    try:
        record = decoder.decode(line)
    except msgspec.MsgspecError as error:
        _refuse_newer(line, kind)
        raise RecordError(f"Expected a {kind} record: {error}.") from error
    except RecursionError as error:
        raise RecordError(f"Expected a {kind} record, got one that is nested too deeply to read.") from error
    if record.v > FORMAT_VERSION:
        _refuse_newer(line, kind)
    return record


def _refuse_newer(line: bytes, kind: str) -> None:
    try:
        version = msgspec.json.decode(line, type=_Version).v
    except (msgspec.MsgspecError, RecursionError):
        return
    if version > FORMAT_VERSION:
        raise NewerVersionError(
            f"Expected a {kind} of format version {FORMAT_VERSION} or older, got version {version}: "
            "it was written by a newer Rolltrace; upgrade to read it."
        )


def _holds_markers(line: bytes) -> bool:
    return b'"$' in line or b'"NaN"' in line or b'Infinity"' in line


def _restore(record: Rollout | Step | Grade | Score) -> None:
    """Turn spelt-out numbers and markers back into values, in a record that was just decoded."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in _NUMBERS:
            force_setattr(record, name, restore_number(value))
        elif name in _NUMBER_MAPS:
            restore_numbers(value)
        elif name in _FREE_FORM:
            force_setattr(record, name, restore_value(value))


def _wire(record: Any) -> Any:
    """A record as the encoder must be given it: numbers spelt out, markers in place of what JSON lacks."""
    fields = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name in _NUMBERS:
            value = wire_number(value)
        elif name in _NUMBER_MAPS:
            value = wire_numbers(value)
        elif name in _FREE_FORM:
            value = wire_free_form(value)
        elif isinstance(value, Grade | Tokens):
            value = _wire(value)
        elif name == "logprobs" and value is not None:
            value = [wire_number(item) for item in value]
        elif name == "steps":
            value = [_wire(step) for step in value]
        fields[name] = value
    return fields


def wire_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """A flat map of numbers as the encoder must be given it."""
    return {name: wire_number(value) for name, value in values.items()}


def wire_free_form(values: Mapping[str, Any]) -> dict[str, Any]:
    """A free-form map as the encoder must be given it; for what is already in a record, so nothing is to note."""
    notes: list[Note] = []
    return plain_mapping(values, "", notes)
