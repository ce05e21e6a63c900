"""Rows of a JSONL file as records, with errors that name file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolltrace.errors import DataError

Row = TypeVar("Row", bound=msgspec.Struct)


def read_rows(
    path: str | Path, row_type: type[Row], *, unique: str | None = None, accept: Callable[[Row], None] | None = None
) -> list[Row]:
    """The rows of a file, in order; blank lines are skipped.

    Keys that the row type does not have go into its field `other`, where it has one, and are left out where it has
    not. `unique` names a field that no two rows may share. `accept` raises `DataError` for a row that will not do.
    """
    rows: list[Row] = []
    lines_by_key: dict[str, int] = {}
    for number, line in enumerate(_read(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = _row(line, row_type)
            if accept is not None:
                accept(row)
            if unique is not None:
                _refuse_repeated(str(getattr(row, unique)), unique, number, lines_by_key)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from error.__cause__
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: expected at least one row, got an empty file.")
    return rows


def _read(path: str | Path) -> bytes:
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        raise DataError(f"{path}: expected a JSONL file, got a device or a pipe.")
    try:
        return Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf")
    except FileNotFoundError:
        raise DataError(f"{path}: expected a JSONL file, there is none at this path.") from None
    except IsADirectoryError:
        raise DataError(f"{path}: expected a JSONL file, got a directory.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a JSONL file that can be read, got {error}.") from error


def _row(line: bytes, row_type: type[Row]) -> Row:
    values = _object(line)
    fields = msgspec.structs.fields(row_type)
    missing = [field.encode_name for field in fields if field.required and field.encode_name not in values]
    if missing:
        raise DataError(f"expected the keys {_keys(fields)}, got an object without {_quoted(missing)}.")
    if any(field.encode_name == "other" for field in fields):
        names = {field.encode_name for field in fields} - {"other"}
        other = {key: value for key, value in values.items() if key not in names}
        values = {**{key: value for key, value in values.items() if key in names}, "other": other}
    try:
        return msgspec.convert(values, row_type)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`$.", "`")
        raise DataError(f"{reason[:1].lower()}{reason[1:]}.") from error


def _object(line: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(
            f"expected UTF-8 text, got byte 0x{line[error.start]:02x} at byte {error.start + 1}."
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"expected a JSON object, got something that is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise DataError(f"expected a JSON object, got `{type(values).__name__}`.")
    return values


def _refuse_repeated(key: str, name: str, number: int, lines_by_key: dict[str, int]) -> None:
    if key in lines_by_key:
        raise DataError(f"expected a new `{name}`, got {key!r}, which line {lines_by_key[key]} has.")
    lines_by_key[key] = number


def _keys(fields: tuple[msgspec.structs.FieldInfo, ...]) -> str:
    return _quoted([field.encode_name for field in fields if field.required])


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
