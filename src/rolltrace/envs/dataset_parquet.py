"""Rows of Parquet files, and of datasets that `save_to_disk` of Hugging Face `datasets` wrote."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import DataError, InputError

Rows = Iterator[tuple[int, Any]]

_AT_ONCE = 16
"""Rows that are read at a time."""
_MEMORY = "1GB"
_CONFIG: dict[str, str | int | float | list[str]] = {
    "threads": 1,
    "memory_limit": _MEMORY,
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_READ = "read_parquet(?, hive_partitioning = false)"


def read_parquet(path: Path, most_in_a_row: int, most_in_all: int) -> Rows:
    """The rows of a Parquet file, read in order; lists, structs and maps come as lists and dicts."""
    import duckdb  # it takes 100 ms to import

    # DuckDB treats some characters of a file name as a pattern.
    name = re.sub(r"[\[\]*?{}]", r"[\g<0>]", str(path))
    number = 0
    try:
        with duckdb.connect(":memory:", config=_CONFIG.copy()) as connection:
            relation = connection.execute(f"select * from {_READ} limit 0", [name])  # noqa: S608 - a constant
            types = [(column[0], column[1]) for column in relation.description or ()]
            _refuse_large(connection, path, name, types, most_in_a_row, most_in_all)
            connection.execute(f"select * from {_READ}", [name])  # noqa: S608 - a constant
            columns = [column for column, _ in types]
            while batch := connection.fetchmany(_AT_ONCE):
                for values in batch:
                    number += 1
                    yield number, dict(zip(columns, values, strict=True))
    except DataError:
        raise
    except (duckdb.Error, ValueError, RecursionError, OverflowError) as error:  # a damaged name is a UnicodeDecodeError
        where = f"{path}: row {number + 1}" if number else f"{path}"
        reason = str(error).partition("\n")[0]
        raise DataError(f"{where}: expected a Parquet file that can be read, got: {reason}") from error


def _refuse_large(
    connection: Any, path: Path, name: str, types: list[tuple[str, Any]], most_in_a_row: int, most_in_all: int
) -> None:
    """Raise `DataError` if the text is too large, before it is copied: a small file can expand to many gigabytes."""
    sizes = [size for column, kind in types if (size := _size(_quoted(column), kind)) is not None]
    if not sizes:
        return
    statement = (
        f"select max(size), sum(size), arg_max(row, size) from "  # noqa: S608 - only columns' names, quoted
        f"(select {' + '.join(sizes)} as size, file_row_number + 1 as row "
        "from read_parquet(?, hive_partitioning = false, file_row_number = true))"
    )
    largest, total, row = connection.execute(statement, [name]).fetchone()
    if largest is not None and largest > most_in_a_row:
        raise DataError(f"{path}: row {row}: expected at most {most_in_a_row} characters in a row, got {largest}.")
    if total is not None and total > most_in_all:
        raise DataError(f"{path}: expected at most {most_in_all} characters in all rows, got {total}.")


def _size(value: str, kind: Any, depth: int = 0) -> str | None:
    """An SQL expression for the amount of text in a value; None if its type has no text."""
    each = f"x{depth}"
    if kind.id in ("varchar", "blob"):
        function = "strlen" if kind.id == "varchar" else "octet_length"
        return f"coalesce({function}({value}), 0)"
    if kind.id in ("list", "array"):
        inner = _size(each, kind.children[0][1], depth + 1)
        return inner and _sum_of(value, each, inner)
    if kind.id == "struct":
        fields = [_size(f"{value}.{_quoted(name)}", child, depth + 1) for name, child in kind.children]
        return " + ".join(field for field in fields if field is not None) or None
    if kind.id == "map":
        children = dict(kind.children)
        parts = [(f"map_{part}s({value})", children[part]) for part in ("key", "value")]
        inner_sizes = [(part, _size(each, child, depth + 1)) for part, child in parts]
        sizes = [_sum_of(part, each, size) for part, size in inner_sizes if size]
        return " + ".join(sizes) or None
    return None


def _sum_of(values: str, each: str, size: str) -> str:
    return f"coalesce(list_sum(list_transform({values}, lambda {each}: {size})), 0)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _State(msgspec.Struct):
    """The files of a saved dataset, from its `state.json`."""

    files: list[dict[str, str]] = msgspec.field(name="_data_files")


def list_splits(folder: Path) -> list[str] | None:
    """The splits of a saved `DatasetDict`; None if the folder is not one."""
    file = folder / "dataset_dict.json"
    if not file.is_file():
        return None
    splits: list[str] = _decoded(file, dict[str, list[str]]).get("splits", [])
    for split in splits:
        _check_name(file, split)
    return splits


def read_dataset_folder(folder: Path) -> Rows:
    """The rows of a dataset that `Dataset.save_to_disk` wrote: Arrow streams, named in `state.json`."""
    if not (folder / "state.json").is_file():
        shown = sorted(path.name for path in folder.glob("*.parquet"))
        hint = f": give a pattern, such as data='{folder}/*.parquet'" if shown else ""
        raise DataError(f"{folder}: expected a directory made by `save_to_disk`, got one without state.json{hint}.")
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError("A directory made by `save_to_disk` needs pyarrow: pip install 'rolltrace[frames]'.")
    state = folder / "state.json"
    names = [file.get("filename", "") for file in _decoded(state, _State).files]
    number = 0
    for name in names:
        _check_name(state, name)
        for row in _read_arrow(folder / name, number):
            number += 1
            yield number, row


def _read_arrow(file: Path, before: int) -> Iterator[Any]:
    pyarrow: Any = importlib.import_module("pyarrow")
    number = before
    try:
        with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
            for batch in stream:
                batch.validate(full=True)  # damaged data could crash the process
                for start in range(0, batch.num_rows, _AT_ONCE):
                    for row in batch.slice(start, _AT_ONCE).to_pylist():
                        number += 1
                        yield row
    except FileNotFoundError:
        raise DataError(f"{file}: expected the file that state.json names, but it is missing.") from None
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file}: row {number + 1}: expected an Arrow stream, got: {reason}") from error


def _decoded(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file}: expected what `save_to_disk` writes, got: {error}.") from error


def _check_name(file: Path, name: str) -> None:
    """Raise `DataError` if a file name leads out of its folder."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise DataError(f"{file}: expected names inside its directory, got {name!r}.")
