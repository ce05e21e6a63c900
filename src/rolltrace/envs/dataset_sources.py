"""Rows of data files and datasets, as dicts: JSONL, JSON, CSV, Parquet, and Hugging Face `datasets`."""

import csv
import glob
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rolltrace.envs.dataset_parquet import list_splits, read_dataset_folder, read_parquet
from rolltrace.errors import DataError, InputError
from rolltrace.trace.freeform import describe

MAX_ROW_CHARS = 64 << 20
"""The largest number of characters in a row."""
MAX_TOTAL_CHARS = 2 << 30
"""The largest number of characters in all rows, which are held in memory."""

NumberedRows = Iterator[tuple[int, Any]]
"""Each row with its number, from 1."""

UTF8_BOM = b"\xef\xbb\xbf"
"""The byte order mark that some editors write before UTF-8."""
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".zip"}
_EXPECTED = "a JSONL, CSV or Parquet file, or a directory made by `save_to_disk`"


class DataSource(NamedTuple):
    """A source of rows: a file or a dataset."""

    name: str
    unit: str
    """The unit of row numbers: `line` or `row`."""
    rows: NumberedRows

    def location(self, number: int) -> str:
        """The place of a row, for errors."""
        return f"{self.name}:{number}" if self.unit == "line" else f"{self.name}: row {number}"


def open_sources(data: Any, split: str | None = None) -> list[DataSource]:
    """The sources that `data` names: a path, a pattern of paths, a dataset, several splits, or a list of dicts.

    Rows are read lazily. Raises `DataError` if they cannot be read.
    """
    if isinstance(data, Mapping):
        return open_sources(data[choose_split("the dataset", data, split)])
    if isinstance(data, str | Path):
        paths = _matching(Path(data))
        return [_with_size_limit(_open_path(path, split)) for path in paths]
    if split is not None:
        raise InputError(f"Expected a dataset with several splits beside split={split}, got {describe(data)}.")
    return [_with_size_limit(_open_rows(data))]


def describe_data(data: Any) -> Any:
    """A description of `data` for the record: a path as it is, otherwise the type and size of the object."""
    if data is None or isinstance(data, str):
        return data
    if isinstance(data, Path):
        return str(data)
    kind = f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")
    fingerprint = getattr(data, "_fingerprint", None)
    known = f", fingerprint {fingerprint}" if isinstance(fingerprint, str) else ""
    return f"{kind} of {len(data)}{known}" if hasattr(data, "__len__") else f"{kind}{known}"


def choose_split(name: str, splits: Iterable[str], split: str | None) -> str:
    """The requested split, or the only one."""
    names = [str(each) for each in splits]
    if split in names:
        return split
    if split is None and len(names) == 1:
        return names[0]
    listed = ", ".join(names) or "none"
    raise DataError(f"{name}: expected one of its splits as split=NAME, got {split or 'none'}: it has {listed}.")


def _matching(path: Path) -> list[Path]:
    """The path itself; if it does not exist and is a pattern, all matching files, sorted."""
    text = str(path)
    try:
        if not glob.has_magic(text) or path.exists():
            return [path]
        matches = sorted(map(Path, glob.glob(text)))  # noqa: PTH207 - `Path.glob` takes no absolute patterns
    except (OSError, ValueError):
        return [path]
    if not matches:
        raise DataError(f"{path}: expected files that match this pattern, but no file does.")
    return matches


def _open_path(path: Path, split: str | None) -> DataSource:
    try:
        splits = list_splits(path)
        if splits is None and split is not None:
            raise InputError(f"Expected a directory with several splits beside split={split}, got {path}.")
        if path.is_dir():
            folder = path if splits is None else path / choose_split(str(path), splits, split)
            return DataSource(str(path), "row", read_dataset_folder(folder))
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: expected {_EXPECTED}, got a device or a pipe.")
        with path.open("rb") as file:
            start = file.read(8)
    except InputError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: expected {_EXPECTED}, but nothing is at this path.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected {_EXPECTED} that can be read, got {error}.") from error
    return _open_file(path, start.removeprefix(UTF8_BOM))


def _open_file(path: Path, start: bytes) -> DataSource:
    """Choose a reader by the file's suffix; Parquet is also recognised by its first bytes."""
    name, suffix = str(path), path.suffix.lower()
    if suffix in _COMPRESSED:
        raise DataError(f"{path}: expected {_EXPECTED}, got a compressed file: decompress it first.")
    if start.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return DataSource(name, "row", read_parquet(path, MAX_ROW_CHARS, MAX_TOTAL_CHARS))
    if suffix in (".csv", ".tsv"):
        return DataSource(name, "line", _read_csv(path))
    if start.lstrip()[:1] == b"[":
        return DataSource(name, "row", _read_json_list(path))
    return DataSource(name, "line", _read_jsonl(path))


def _with_size_limit(source: DataSource) -> DataSource:
    """The same source with a size check: raises `DataError` for rows that are too large."""

    def rows() -> NumberedRows:
        total = 0
        for number, row in source.rows:
            size = _size(row)
            total += size
            if size > MAX_ROW_CHARS or total > MAX_TOTAL_CHARS:
                limit, scope = (MAX_ROW_CHARS, "a row") if size > MAX_ROW_CHARS else (MAX_TOTAL_CHARS, "all rows")
                raise DataError(f"{source.location(number)}: expected at most {limit} characters in {scope}, got more.")
            yield number, row

    return source._replace(rows=rows())


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def _open_rows(data: Any) -> DataSource:
    """A `datasets.Dataset`, or a list of dicts."""
    if not hasattr(data, "__len__") or not isinstance(data, Iterable) or isinstance(data, bytes):
        raise InputError(
            f"Expected a path, a Dataset or a list of dicts as data, got {describe(data)}. "
            "Of a dataset that is streamed, take rows first: list(dataset.take(1000))."
        )
    with_format = getattr(data, "with_format", None)
    return DataSource(describe_data(data), "row", enumerate(with_format(None) if callable(with_format) else data, 1))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, decoded, with their numbers."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW_CHARS + 1):
            number += 1
            if len(line) > MAX_ROW_CHARS:
                raise DataError(f"{path}:{number}: expected a line of at most {MAX_ROW_CHARS} bytes, got more.")
            line = line.removeprefix(UTF8_BOM) if number == 1 else line
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                what = f"byte 0x{line[error.start]:02x} at byte {error.start + 1}"
                raise DataError(f"{path}:{number}: expected UTF-8 text, got {what}.") from error
            yield number, text


def _read_jsonl(path: Path) -> NumberedRows:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            what = f"expected a JSON object, got something that is not JSON: {error}."
            raise DataError(f"{path}:{number}: {what}") from error


def _read_json_list(path: Path) -> NumberedRows:
    if path.stat().st_size > MAX_TOTAL_CHARS:
        raise DataError(f"{path}: expected a JSON file of at most {MAX_TOTAL_CHARS} bytes, got more: use JSONL.")
    try:
        rows = msgspec.json.decode(path.read_bytes().removeprefix(UTF8_BOM), type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: expected a JSON list of objects, or one object per line: {error}.") from error
    yield from enumerate(rows, 1)


def _read_csv(path: Path) -> NumberedRows:
    """Rows of a CSV file. Cells are text, or None if empty; the first line names the columns."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        return
    if csv.field_size_limit() < MAX_ROW_CHARS:  # a setting of the process; the default refuses long solutions
        csv.field_size_limit(MAX_ROW_CHARS)
    reader = csv.reader((text for _, text in chain([first], lines)), delimiter=_delimiter(path, first[1]), strict=True)
    start = 1
    try:
        header = next(reader)
        if len(set(header)) < len(header):
            raise DataError(f"{path}:1: expected a first line of column names, got a name twice.")
        while True:
            start = reader.line_num + 1
            cells = next(reader)
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(f"{path}:{start}: expected {len(header)} cells as in the first line, got {len(cells)}.")
            yield start, {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except StopIteration:
        return
    except csv.Error as error:
        raise DataError(f"{path}:{start}: expected CSV, got a row that cannot be read: {error}.") from error


def _delimiter(path: Path, header: str) -> str:
    """Tab in a TSV file; otherwise comma, or semicolon if the first line has no comma."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","
