from typing import Any

import msgspec
import pytest

from rolltrace.envs.dataset_rows import read_rows
from rolltrace.errors import DataError


class Plain(msgspec.Struct):
    id: str
    size: int


class Keeping(msgspec.Struct):
    id: str
    other: dict[str, Any] = {}


def write(tmp_path, data):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


GOOD = '{"id": "a", "size": 1}\n'


def test_rows_come_in_order(tmp_path):
    """Blank lines, a byte-order mark, Windows line ends and a missing last line feed do not matter."""
    path = write(tmp_path, "\ufeff" + GOOD + '\n  \r\n{"id": "b", "size": 2, "more": 3}\r\n{"id": "é", "size": 3}')
    assert read_rows(path, Plain) == [Plain("a", 1), Plain("b", 2), Plain("é", 3)]


def test_other_keys_are_kept_where_there_is_a_place(tmp_path):
    """A row type with a field `other` gets the unknown keys, also one that is named `other`."""
    path = write(tmp_path, '{"id": "a", "level": 2, "other": null}')
    assert read_rows(path, Keeping) == [Keeping("a", {"level": 2, "other": None})]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json", "expected a JSON object, got something that is not JSON"),
        (b"[" * 100_000, "expected a JSON object, got something that is not JSON"),
        (b'{"id": "b", "size": NaN}', "expected a JSON object, got something that is not JSON"),
        (b"[1]", "expected a JSON object, got `list`."),
        (b'{"id": "b"}', "expected a column `size`, got the columns `id`."),
        (b"{}", "expected a column `id`, got the columns none"),
        (b'{"id": "b", "size": "2"}', "expected `int`, got `str` - at `size`."),
        (b'{"id": null, "size": 2}', "expected `str`, got `null` - at `id`."),
        (b'{"id": "\xff", "size": 2}', "expected UTF-8 text, got byte 0xff at byte 9."),
        (b'{"id": "a", "size": 2}', "expected a new `id`, got 'a', which line 1 has."),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, message):
    """Whatever is wrong with a line, the error names file and line, what was expected and what came."""
    path = write(tmp_path, GOOD.encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError) as caught:
        read_rows(path, Plain, unique="id")
    assert str(caught.value).startswith(f"{path}:3: {message}")


def test_a_caller_can_refuse_a_row(tmp_path):
    """An error that a caller raises for a row is named by file and line too."""

    def refuse(row):
        raise DataError("expected something else.")

    path = write(tmp_path, GOOD)
    with pytest.raises(DataError, match=r"rows.jsonl:1: expected something else\.$"):
        read_rows(path, Plain, accept=refuse)


@pytest.mark.parametrize("data", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_an_error(tmp_path, data):
    """A file without rows is refused."""
    with pytest.raises(DataError, match=r"rows\.jsonl: expected at least one row, got an empty file"):
        read_rows(write(tmp_path, data), Plain)


def test_what_is_no_file_is_an_error(tmp_path):
    """A path that is missing, a directory or no path at all is named in the error."""
    with pytest.raises(
        DataError, match=r"none\.jsonl: expected a JSONL, CSV or Parquet file, or .* but nothing is at this path"
    ):
        read_rows(tmp_path / "none.jsonl", Plain)
    with pytest.raises(DataError, match=r"expected a directory made by `save_to_disk`, got one without state\.json"):
        read_rows(tmp_path, Plain)
    with pytest.raises(DataError, match="that can be read, got embedded null byte"):
        read_rows("a\0b", Plain)


def test_a_device_is_no_file():
    """A device, which may never end, is not read."""
    with pytest.raises(DataError, match="a device"):
        read_rows("/dev/zero", Plain)
