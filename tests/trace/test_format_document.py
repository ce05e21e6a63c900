"""`docs/format.md` says what the code does."""

import re
from datetime import UTC, datetime
from enum import EnumMeta
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from rollout_builders import one_step, outcome
from rolltrace.store.layout import FOLDERS, RunInfo, ledger_name, segment_name
from rolltrace.store.ledger import Ledger
from rolltrace.trace import freeform
from rolltrace.trace.blob import Blob
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import NON_FINITE
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec
from rolltrace.trace.rollout import (
    FORMAT_VERSION,
    Call,
    EndedBeforeFirstTurn,
    Failure,
    Grade,
    Quote,
    Rollout,
    Step,
    Tokens,
    Usage,
)
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import EnvFailure, Layer, Status, StoppedBy, StopReason, Termination

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
GOLDEN = Path(__file__).parents[1] / "golden" / "v2"

RECORDS = {
    "`run.json`": RunInfo, "A rollout": Rollout, "A step": Step, "A message": Message, "A part": Part,
    "A tool call": ToolCall, "A tool": ToolSpec, "Sampling": Sampling, "A grade": Grade, "A call": Call,
    "A quote": Quote, "Tokens": Tokens, "Ended before the first turn": EndedBeforeFirstTurn, "Usage": Usage,
    "A failure": Failure, "A note": freeform.Note, "A score": Score, "A group key": GroupKey, "A ledger line": Ledger,
}  # fmt: skip
WORDS = {
    "status": Status, "stopped by": StoppedBy, "stop reason": StopReason, "termination": Termination, "layer": Layer,
    "env failure": EnvFailure,
}  # fmt: skip
NAMES = {record: re.sub("^An? ", "", title).lower() for title, record in RECORDS.items()} | {
    words: name for name, words in WORDS.items()
}


def sections():
    """The tables of the document by the heading they stand under, each as rows of cells."""
    found, title = {}, None
    for line in DOCUMENT.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("|---"):
            found.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


SIMPLE = {
    inspect.StrType: "string", inspect.IntType: "integer", inspect.BoolType: "boolean", inspect.FloatType: "float",
    inspect.NoneType: "null", inspect.DateTimeType: "time",
}  # fmt: skip
SPELT = set(NON_FINITE)


def spelling(kind):
    """A type as the document names it."""
    if type(kind) in SIMPLE:
        return SIMPLE[type(kind)]
    if isinstance(kind, inspect.VarTupleType):
        return f"array of {spelling(kind.item_type)}"
    if isinstance(kind, inspect.TupleType):
        assert [spelling(item) for item in kind.item_types] == ["integer", "integer"]
        return "range"
    if isinstance(kind, inspect.DictType):
        inner = "anything" if isinstance(kind.value_type, inspect.AnyType) else spelling(kind.value_type)
        return "free-form" if inner == "anything" else f"map of {inner}"
    if isinstance(kind, inspect.CustomType):
        return {FrozenMap: "free-form", Blob: "blob"}[kind.cls]
    if isinstance(kind, inspect.UnionType):
        return union(kind)
    assert isinstance(kind, inspect.StructType | inspect.EnumType), kind
    return NAMES[kind.cls]


def union(kind):
    literals = [part for part in kind.types if isinstance(part, inspect.LiteralType)]
    parts = [spelling(part) for part in kind.types if not isinstance(part, inspect.LiteralType)]
    if literals:
        assert set(literals[0].values) == SPELT
        if {"boolean", "integer", "float"} <= set(parts):
            parts = ["number", *(part for part in parts if part not in ("boolean", "integer", "float"))]
    order = ["integer", "string", "number", "float"]
    parts.sort(key=lambda part: (part == "null", order.index(part) if part in order else len(order)))
    return " or ".join(parts)


@pytest.mark.parametrize("title", RECORDS)
def test_tables_have_every_field_with_its_type_and_no_other(title):
    """A record's table lists its fields in their order, each with the type that the decoder takes."""
    record = RECORDS[title]
    heading, *rows = sections()[title]
    assert heading == ["field", "type", "meaning"]
    fields = inspect.type_info(record).fields
    expected = [(f"`{field.encode_name}`", spelling(field.type)) for field in fields]
    assert [(row[0], row[1]) for row in rows] == expected


def test_no_record_is_left_out():
    """Every record that another refers to has a table."""
    referred = set()

    def walk(kind):
        if isinstance(kind, inspect.StructType) and kind.cls not in referred:
            referred.add(kind.cls)
            for field in kind.fields:
                walk(field.type)
        for inner in ("item_type", "value_type"):
            if hasattr(kind, inner):
                walk(getattr(kind, inner))
        for inner in getattr(kind, "types", ()):
            walk(inner)

    for record in (RunInfo, Rollout, Score, Ledger):
        walk(inspect.type_info(record))
    assert referred == set(RECORDS.values())


def test_words_are_those_of_the_code():
    """The words for status, stop reason and so on are all there."""
    rows = {row[0]: re.findall("`([^`]+)`", row[1]) for row in sections()["Words"][1:]}
    assert rows == {name: list(words) for name, words in WORDS.items()}
    assert all(isinstance(words, EnumMeta) for words in WORDS.values())


def test_columns_are_those_of_a_rollout():
    """The column types for other readers name each field of a line once."""
    columns = [row[0].strip("`") for row in sections()["Columns"][1:]]
    assert columns == [*Rollout.__struct_encode_fields__, "crc"]


def test_constants_are_those_of_the_code():
    """Numbers and names in the text are the ones in force."""
    assert f"version {FORMAT_VERSION}" in DOCUMENT.splitlines()[0]
    assert f"deeper than {freeform.MAX_DEPTH}, more than {freeform.MAX_VALUES:,} values" in DOCUMENT
    assert f"{freeform.MAX_TEXT:,} characters" in DOCUMENT
    for folder in FOLDERS:
        assert f"  {folder}/" in DOCUMENT
    assert segment_name("WRITER", 0) == "WRITER-000000.jsonl"
    assert (ledger_name("WRITER", 0), ledger_name("WRITER", 1)) == ("WRITER.jsonl", "WRITER.1.jsonl")


def test_left_out_fields_have_the_defaults_that_are_said():
    """Only the records that are named leave out fields, and only those of the stated defaults."""
    for title, record in RECORDS.items():
        omits = title in ("A message", "A part", "A tool call", "A tool", "Sampling", "A quote")
        assert record.__struct_config__.omit_defaults == omits, title
        if omits:
            said = {(record, name) for record, name in ((Part, "offset"), (ToolCall, "arguments"))}
            for field in inspect.type_info(record).fields:
                if not field.required and (record, field.name) not in said:
                    assert field.default in (None, ())
    assert msgspec.json.encode([Part("image"), ToolCall("f")]) == b'[{"type":"image"},{"name":"f"}]'


@pytest.fixture(scope="module")
def shown():
    """What the document's Python defines."""
    defined = {}
    plain = DOCUMENT.partition("## Columns")[0]  # the rest is run by tests/store/test_outside_readers.py
    blocks = re.findall(r"```python\n(.*?)```", plain, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/format.md", "exec"), defined)
    return defined


def test_the_shown_python_checks_a_line(shown):
    """The reader of a few lines accepts what is written and refuses any change."""
    for path in GOLDEN.glob("*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            assert shown["read_line"](line)["v"] == 2
            for position in range(0, len(line) - 1, 7):
                damaged = line[:position] + bytes([line[position] ^ 1]) + line[position + 1 :]
                with pytest.raises(ValueError, match="not the bytes"):
                    shown["read_line"](damaged)


def test_the_shown_python_reads_prompts(shown):
    """Ranges and responses are read as the document says."""
    rollout = shown["read_line"]((GOLDEN / "edited.jsonl").read_bytes())
    first, second = rollout["steps"]
    assert [message["content"] for message in shown["prompt"](rollout, first)] == ["Turn 1.", "Think of a number."]
    assert shown["response"](rollout, first)["content"] == "<think>seven</think>Done."
    assert [message["content"] for message in shown["prompt"](rollout, second)] == [
        "Turn 2.", "Think of a number.", "Done.", "Is it odd?",
    ]  # fmt: skip
    assert shown["response"](rollout, second)["content"] == "Yes."


def test_the_shown_python_reads_blobs(shown, tmp_path):
    """A blob is checked by its name."""
    blob = Blob.of(b"bytes")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / blob.name).write_bytes(b"bytes")
    assert shown["read_blob"](tmp_path, blob.name) == b"bytes"
    (tmp_path / "blobs" / blob.name).write_bytes(b"others")
    with pytest.raises(ValueError, match="not the bytes"):
        shown["read_blob"](tmp_path, blob.name)


@pytest.mark.parametrize(("microseconds", "written"), [(0, "07Z"), (500_000, "07.500000Z"), (1, "07.000001Z")])
def test_times_are_written_as_said(microseconds, written):
    """A time has six decimals, or none."""
    ended = datetime(2026, 1, 2, 3, 4, 7, microseconds, tzinfo=UTC)
    assert f'"ended_at":"2026-01-02T03:04:{written}"'.encode() in one_step().encode(outcome(ended_at=ended)).data


def test_lines_have_no_white_space_between_tokens():
    """The bytes are as few as the document says."""
    line = one_step(reward_data={"a": 1.0}).encode(outcome()).data
    assert b'"reward_data":{"a":1.0},' in line
    assert not re.search(rb"[,:{\[]\s", line)
