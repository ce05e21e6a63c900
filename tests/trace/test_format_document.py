"""`docs/format.md` agrees with the code."""

import importlib
import re
import sys
from datetime import UTC, datetime
from enum import EnumMeta
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from rollout_builders import one_step, outcome
from rolltrace.store.layout import FOLDERS, RunInfo, ledger_name, segment_name
from rolltrace.store.ledger import Ledger
from rolltrace.trace import freeform, limits
from rolltrace.trace.blob import Blob
from rolltrace.trace.field_types import FORMAT_VERSION
from rolltrace.trace.message import Part, ToolCall
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "format.md").read_text()
GOLDEN = Path(__file__).parents[1] / "golden" / "v2"

sys.path.insert(0, str(DOCS))
record_tables = importlib.import_module("record_tables")
sys.path.remove(str(DOCS))
RECORDS, WORDS = record_tables.RECORDS, record_tables.CHOICES


def sections():
    """The tables of the page, by heading."""
    found, title = {}, None
    for line in DOCUMENT.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("| ") and not line.startswith("|---"):
            found.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@pytest.mark.parametrize(("name", "page"), [("format.md", "format_page"), ("tables.md", "tables_page")])
def test_tables_are_those_of_the_records(name, page):
    """The tables list every field with its type and meaning, as in the records: run `make docs`."""
    assert getattr(record_tables, page)() == (DOCS / name).read_text()


def test_bounds_are_those_of_the_code():
    """The page states each bound that readers enforce."""
    stated = {row[0]: int(re.search(r"[0-9,]+", row[1])[0].replace(",", "")) for row in sections()["Bounds"][1:]}
    assert list(stated.values()) == [
        limits.MAX_LINE_BYTES, limits.MAX_NESTING, limits.MAX_FRAME_BYTES, limits.MAX_FRAMES, limits.MAX_RATIO,
        limits.MAX_DAMAGED_LINES, limits.MAX_INFO_BYTES, limits.MAX_BLOB_BYTES,
    ]  # fmt: skip


def test_every_record_has_a_table():
    """Every heading of a record has its table."""
    assert {title for title, rows in sections().items() if rows[0] == ["field", "type", "meaning"]} == set(RECORDS)


def test_no_record_is_left_out():
    """Every record that another refers to has a table."""
    referred = set()

    def walk(kind):
        if isinstance(kind, inspect.StructType) and kind.cls not in referred:
            referred.add(kind.cls)
            for field in kind.fields:
                walk(field.type)
        for inner in ("item_type", "value_type", "type"):
            if hasattr(kind, inner):
                walk(getattr(kind, inner))
        for inner in getattr(kind, "types", ()):
            walk(inner)

    for record in (RunInfo, Rollout, Score, Ledger):
        walk(inspect.type_info(record))
    assert referred == set(RECORDS.values())


def test_words_are_those_of_the_code():
    """The page has every value of status, stop reason and so on."""
    rows = {row[0]: re.findall("`([^`]+)`", row[1]) for row in sections()["Words"][1:]}
    assert rows == {name: list(words) for name, words in WORDS.items()}
    assert all(isinstance(words, EnumMeta) for words in WORDS.values())


def test_columns_are_those_of_a_rollout():
    """The column types for other readers name each field of a line once."""
    columns = [row[0].strip("`") for row in sections()["Columns"][1:]]
    assert columns == [*Rollout.__struct_encode_fields__, "crc"]


def test_constants_are_those_of_the_code():
    """Numbers and names in the text are those of the code."""
    assert f"version {FORMAT_VERSION}" in DOCUMENT.splitlines()[0]
    assert f"deeper than {freeform.MAX_DEPTH}, more than {freeform.MAX_VALUES:,} values" in DOCUMENT
    assert f"{freeform.MAX_TEXT:,} characters" in DOCUMENT
    for folder in FOLDERS:
        assert f"  {folder}/" in DOCUMENT
    assert segment_name("WRITER", 0) == "WRITER-000000.jsonl"
    assert (ledger_name("WRITER", 0), ledger_name("WRITER", 1)) == ("WRITER.jsonl", "WRITER.1.jsonl")


def test_left_out_fields_have_the_defaults_that_are_said():
    """Only the named records omit fields, and only with the stated defaults."""
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
    """The names that the document's Python code defines."""
    defined = {}
    plain = DOCUMENT.partition("## Columns")[0]  # the rest is run by tests/store/test_outside_readers.py
    blocks = re.findall(r"```python\n(.*?)```", plain, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/format.md", "exec"), defined)
    return defined


def test_the_shown_python_checks_a_line(shown):
    """The short reader of the document accepts written lines and refuses any change."""
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
    """Lines have no white space between tokens."""
    line = one_step(reward_data={"a": 1.0}).encode(outcome()).data
    assert b'"reward_data":{"a":1.0},' in line
    assert not re.search(rb"[,:{\[]\s", line)
