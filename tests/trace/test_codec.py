"""Lines: every fault is detected and named, and encoding inverts decoding."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_builders import ANSWER, ENDED, QUESTION, header, one_step, outcome, strict
from rolltrace.errors import ChecksumError, NewerVersionError, OlderVersionError, RecordError
from rolltrace.trace.codec import (
    add_checksum,
    decode_rollout,
    decode_score,
    encode_rollout,
    encode_score,
    verify_checksum,
)
from rolltrace.trace.failure import Failure
from rolltrace.trace.field_types import record_fields
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score

LINE = one_step(reward_data={"a": 1}, env_state={"b": [None]}).encode(outcome()).data
SCORE = Score(
    id="s", run="r", rollout="rollout", name="advantage", value=0.5, data={"n": 4}, producer="me", created_at=ENDED
)


def changed(line=LINE, **fields):
    """The line with other fields and a matching checksum."""
    record = json.loads(line)
    del record["crc"]
    return add_checksum(json.dumps({**record, **fields}, separators=(",", ":")).encode())


@given(st.integers(0, len(LINE) - 1), st.integers(1, 255))
def test_every_changed_byte_is_detected(position, difference):
    """A line in which any one byte differs is refused."""
    damaged = bytearray(LINE)
    damaged[position] ^= difference
    with pytest.raises(RecordError):
        decode_rollout(bytes(damaged))


def test_every_truncation_is_detected():
    """A line that lost anything but its line feed is refused; without that it is still complete."""
    for length in range(len(LINE) - 1):
        with pytest.raises(RecordError):
            decode_rollout(LINE[:length])
    assert decode_rollout(LINE[:-1]) == decode_rollout(LINE)


@given(st.integers(0, len(LINE) - 1), st.binary(min_size=1, max_size=3))
def test_inserted_bytes_are_detected(position, extra):
    """A line with inserted bytes is refused."""
    with pytest.raises(RecordError):
        decode_rollout(LINE[:position] + extra + LINE[position:])


@pytest.mark.parametrize("line", [b"", b"\n", b"{}", b"null\n", LINE + LINE, LINE + b"\n", b"\x00" * 100])
def test_invalid_lines_are_refused(line):
    """Empty lines, zeros left by a power loss and two lines at once are refused."""
    with pytest.raises(RecordError):
        decode_rollout(line)


def test_a_wrong_checksum_is_told_from_a_torn_line():
    """Changed bytes are a `ChecksumError` with both checksums; an incomplete line is not."""
    with pytest.raises(ChecksumError, match=r"Expected checksum [0-9a-f]{8}, the bytes have [0-9a-f]{8}"):
        decode_rollout(LINE.replace(b"arithmetic", b"Arithmetic"))
    with pytest.raises(RecordError, match="ends in its checksum") as caught:
        decode_rollout(LINE[:-20])
    assert not isinstance(caught.value, ChecksumError)


def test_the_checksum_is_crc32_of_the_bytes_before_it():
    """The checksum is the one that the format specifies."""
    body, _, tail = LINE.rpartition(b',"crc":"')
    assert tail == b'%08x"}\n' % zlib.crc32(body)
    assert verify_checksum(LINE) == LINE[:-1]
    assert list(strict(LINE))[-1] == "crc"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"reward": "0.5"}, "$.reward"),
        ({"reward": "nan"}, "$.reward"),
        ({"index": 0.5}, "$.index"),
        ({"status": "fine"}, "$.status"),
        ({"messages": [{"role": "user"}]}, "$.messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "$.messages[0].content"),
        ({"messages": [{"role": "u", "content": "", "other": 5}]}, "$.messages[0].other"),
        ({"messages": [{"role": "u", "content": "", "parts": [{"type": "image", "blob": "../x"}]}]}, "blob"),
        ({"final": [[0, 3]]}, "$.final"),
        ({"final": [[1, 1]]}, "$.final"),
        ({"pending_prompt": [[-1, 1]]}, "$.pending_prompt"),
        ({"started_at": "yesterday"}, "$.started_at"),
        ({"v": 0}, "$.v"),
        ({"v": "1"}, "$.v"),
    ],
)
def test_errors_point_at_the_fault(fields, path):
    """The error of an invalid record names the path."""
    with pytest.raises(RecordError) as caught:
        decode_rollout(changed(**fields))
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"reward_data": {"a": "0.5"}}, "$.steps[0].reward_data"),
        ({"response": 9}, "$.steps[0].response"),
        ({"tools": 0}, "$.steps[0].tools"),
        ({"sampling": 0}, "$.steps[0].sampling"),
        ({"prompt": [[0, 9]]}, "$.steps[0].prompt"),
        ({"termination": "tired"}, "$.steps[0].termination"),
    ],
)
def test_errors_point_into_steps(fields, path):
    """A step that refers to something that the rollout lacks is refused when it is read, not when it is used."""
    [step] = json.loads(LINE)["steps"]
    with pytest.raises(RecordError) as caught:
        decode_rollout(changed(steps=[{**step, **fields}]))
    assert path in str(caught.value)


@pytest.mark.parametrize(
    "body", [b'{"v":2,"id":"\xff"}', b'{"v":2,"id":"\xed\xa0\x80"}', b'{"v":2,', b"[1]", b'{"v":2,"index":1e999}']
)
def test_bytes_that_are_not_json_are_refused(body):
    """Bad UTF-8 and bad JSON with a matching checksum are record errors like any other."""
    with pytest.raises(RecordError):
        decode_rollout(add_checksum(body))


@pytest.mark.parametrize("fields", [{"v": 3}, {"v": 3, "messages": "elsewhere"}, {"v": 99, "id": None}])
@pytest.mark.parametrize(("decode", "line"), [(decode_rollout, LINE), (decode_score, encode_score(SCORE))])
def test_a_newer_version_is_refused_by_name(decode, line, fields):
    """A record of a newer version is refused with its version, whatever else it holds."""
    with pytest.raises(NewerVersionError, match=f"got version {fields['v']}"):
        decode(changed(line, **fields))


@pytest.mark.parametrize("fields", [{"v": 1}, {"v": 1, "messages": "elsewhere"}])
@pytest.mark.parametrize(("decode", "line"), [(decode_rollout, LINE), (decode_score, encode_score(SCORE))])
def test_version_1_is_refused_by_name(decode, line, fields):
    """A record of version 1, whose fields have other names, is refused and not misread."""
    with pytest.raises(OlderVersionError, match="format version 1 was never released; record the run again"):
        decode(changed(line, **fields))


def test_fields_of_a_later_release_are_ignored():
    """A line of the same version with unknown fields is read."""
    record = json.loads(LINE)
    step = {**record["steps"][0], "mood": "good"}
    message = {**record["messages"][0], "weight": 3}
    line = changed(novelty=[1], steps=[step], messages=[message, *record["messages"][1:]])
    assert decode_rollout(line) == decode_rollout(LINE)


@pytest.mark.parametrize("depth", [100, 300, 900, 100_000])
@pytest.mark.parametrize("place", ["task_data", "novelty", "messages"])
@pytest.mark.parametrize("leaf", ["1", '{"$float":"NaN"}'])
def test_deep_nesting_does_not_crash(depth, place, leaf):
    """A line nested more deeply than any writer's is read or refused, and does not crash the process."""
    nested = '{"a":' + "[" * depth + leaf + "]" * depth + "}"
    body = json.loads(LINE)
    del body["crc"], body["notes"]
    if place == "messages":
        nested = f'[{{"role":"user","content":"","other":{nested}}},{{"role":"user","content":""}}]'
    body.pop(place, None)
    line = add_checksum(f'{json.dumps(body)[:-1]},"{place}":{nested}}}'.encode())
    try:
        rollout = decode_rollout(line)
    except RecordError as error:
        assert "nested" in str(error) or "recursion" in str(error)  # noqa: PT017 - both ways out are good
    else:
        repr(rollout.messages[0].other and rollout.messages[0].other.to_dict())


@pytest.mark.parametrize(
    "score",
    [
        SCORE,
        Score(id="s", run="r", group=GroupKey("train", 1, "e", "g"), name="reward", value=None, created_at=ENDED,
              error=Failure("grader", "ValueError", "no", "Traceback")),
    ],
)  # fmt: skip
def test_scores_come_back(score):
    """A score and its line are the same after writing and reading."""
    line = encode_score(score)
    strict(line)
    assert decode_score(line) == score
    assert encode_score(decode_score(line)) == line


def test_records_made_by_hand_are_encoded_lossily():
    """A rollout with text that UTF-8 cannot hold is encoded with replacement characters."""
    fields = {name: getattr(decode_rollout(LINE), name) for name in Rollout.__struct_fields__}
    line = encode_rollout(
        Rollout(**{**fields, "messages": (QUESTION, Message("assistant", "\ud800")), "task": "\udc00"})
    )
    assert decode_rollout(line).messages[1].content == "\ufffd"


def test_the_line_of_a_builder_is_the_line_of_its_rollout():
    """A builder writes all fields, in the order of the record."""
    assert encode_rollout(decode_rollout(LINE)) == LINE
    record = strict(LINE)
    assert list(record) == [
        *(field.written_name for field in record_fields(Rollout) if not field.omits_default),
        "crc",
    ]
    assert record["messages"] == [{"role": m.role, "content": m.content} for m in (QUESTION, ANSWER)]
    assert header().started_at == decode_rollout(LINE).started_at
