"""Converts rows of data to records: maps columns to fields, with errors that name the row and the fix."""

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from rolltrace.envs.dataset_sources import DataSource, open_sources
from rolltrace.errors import DataError, InputError

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]

RowT = TypeVar("RowT", bound=msgspec.Struct)

ColumnName = str | Sequence[str] | None
"""The column that a field is read from: a name, several names (their values become a list), or None for the default."""

_MISSING = object()
_SYNONYMS = {
    "question": ("question", "problem", "query", "prompt", "input", "instruction", "text"),
    "answer": ("answer", "solution", "final_answer", "ground_truth", "target", "output", "label", "response"),
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input", "text"),
    "messages": ("messages", "conversation", "conversations", "chat"),
    "criteria": ("criteria", "rubric", "rubrics"),
    "id": ("id", "uid", "unique_id", "task_id", "question_id", "index", "idx"),
}
"""Other common names of a field, for suggestions."""


def read_rows(
    data: Any,
    row_type: type[RowT],
    *,
    columns: Mapping[str, ColumnName] = {},
    defaults: Mapping[str, tuple[str, ...]] = {},
    any_of: tuple[str, ...] = (),
    split: str | None = None,
    unique: str | None = None,
    content: Callable[[RowT], str] | None = None,
    accept: Callable[[RowT], RowT] | None = None,
) -> list[RowT]:
    """The rows of a file or dataset, in order, as records of `row_type`.

    A field is read from the column that `columns` names, as the argument FIELD or FIELD_column, otherwise from the
    first column of `defaults` that exists. The default is the column of the field's name; an empty tuple leaves the
    field out. A row needs one of the fields `any_of`. Other columns go into the record's field `other`, if it has one.
    `unique` names a field that must be different in each row. If a row has no `id`, it is derived from its `content`.
    `accept` checks and completes a record, or raises `DataError`.
    """
    reading = _RowDecoder(row_type, columns, defaults, any_of)
    rows: list[RowT] = []
    places: dict[str, str] = {}
    repeats: Counter[str] = Counter()
    for source in (sources := open_sources(data, split)):
        for number, values in source.rows:
            try:
                row = reading.row(values)
                row = row if accept is None else accept(row)
                row = _with_id(row, content(row), repeats) if content and getattr(row, "id", 0) is None else row
                if unique is not None:
                    _refuse_repeated(str(getattr(row, unique)), unique, source, number, places)
            except DataError as error:
                raise DataError(f"{source.location(number)}: {error}") from error.__cause__
            rows.append(row)
    if not rows:
        names = ", ".join(source.name for source in sources)
        raise DataError(f"{names}: expected at least one row, got an empty file.")
    return rows


class _RowDecoder:
    """Maps the columns of a row to the fields of a record."""

    def __init__(
        self,
        row_type: type[msgspec.Struct],
        columns: Mapping[str, ColumnName],
        defaults: Mapping[str, tuple[str, ...]],
        any_of: tuple[str, ...],
    ) -> None:
        self._type = row_type
        self._fields = {field.encode_name: field for field in msgspec.structs.fields(row_type)}
        self._keeps_other = self._fields.pop("other", None) is not None
        self._columns = {
            argument.removesuffix("_column"): (argument, column)
            for argument, column in columns.items()
            if column is not None
        }
        self._defaults = defaults
        self._any_of = any_of
        self._takes_text = {name for name, field in self._fields.items() if _takes_text(field.type)}

    def row(self, values: Any) -> Any:
        """Convert one row to a record."""
        if not isinstance(values, Mapping):
            raise DataError(f"expected a JSON object, got `{type(values).__name__}`.")
        fields: dict[str, Any] = {}
        used: set[str] = set()
        for name, field in self._fields.items():
            value = self._value(name, values, used)
            if value is not _MISSING:
                fields[name] = value if name in self._takes_text else _from_text(value, name)
            elif field.required:
                raise DataError(_missing([name], values))
        if self._any_of and all(fields.get(name) is None for name in self._any_of):
            raise DataError(_missing(self._any_of, values))
        other = {str(key): value for key, value in values.items() if key not in used}
        fields = {**fields, "other": other} if self._keeps_other else {**other, **fields}
        try:
            return msgspec.convert(fields, self._type)
        except msgspec.ValidationError as error:
            reason = str(error).replace("`$.", "`")
            raise DataError(f"{reason[:1].lower()}{reason[1:]}.") from error

    def _value(self, name: str, values: Mapping[str, Any], used: set[str]) -> Any:
        if name not in self._columns:
            column = next((each for each in self._defaults.get(name, (name,)) if each in values), None)
            used.add(column or name)
            return _MISSING if column is None else values[column]
        argument, columns = self._columns[name]
        names = _split_names(columns, values)
        if not names:
            return _MISSING
        column_values = []
        for column in names:
            value = _look_up(values, column)
            if value is _MISSING:
                raise DataError(_not_found(argument, column, values))
            used.add(column)
            column_values.append(value)
        return column_values[0] if len(column_values) == 1 else _flatten(column_values)


def _split_names(columns: str | Sequence[str], values: Mapping[str, Any]) -> Sequence[str]:
    """The columns that an argument names: one, or several separated by commas."""
    if not isinstance(columns, str):
        return columns
    return [columns] if columns in values or "," not in columns else [name.strip() for name in columns.split(",")]


def _look_up(values: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a field inside one, as `column.field`."""
    if column in values:
        return values[column]
    value: Any = values
    for name in column.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    return value


def _flatten(values: Iterable[Any]) -> list[Any]:
    """The values of several columns as one list, without those that are empty."""
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, list | tuple) else [] if value is None else [value])
    return flat


def _takes_text(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return any(isinstance(each, msgspec.inspect.StrType | msgspec.inspect.AnyType) for each in kinds) or not any(
        isinstance(each, msgspec.inspect.ListType | msgspec.inspect.VarTupleType) for each in kinds
    )


def _from_text(value: Any, name: str) -> Any:
    """Convert a value to a list: parse JSON text, as in a CSV file, and drop the nulls that Parquet adds to objects."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"expected JSON text as `{name}`, got something that is not JSON: {error}.") from error
    if not isinstance(value, list | tuple):
        return value
    return [
        {key: item for key, item in each.items() if item is not None or key == "content"}
        if isinstance(each, Mapping)
        else each
        for each in value
    ]


def _not_found(argument: str, column: str, values: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(column, map(str, values), n=1)
    hint = f" Did you mean {argument}={near[0]}?" if near else ""
    return f"expected the column `{column}` that {argument}={column} names, got the columns {_listed(values)}.{hint}"


def _missing(fields: Sequence[str], values: Mapping[str, Any]) -> str:
    wanted = " or ".join(f"`{field}`" for field in fields)
    known = ((field, name) for field in fields for name in _SYNONYMS.get(field, ()) if name in values)
    field, name = next(known, (fields[0], "COLUMN"))
    hint = f": say which one it is, such as --arg {field}={name}" if field in _SYNONYMS else ""
    return f"expected a column {wanted}, got the columns {_listed(values)}{hint}."


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in values) or "none"


def _with_id(row: RowT, content: str, repeats: Counter[str]) -> RowT:
    """The row with an id derived only from its content, not from its file and position. Equal rows are numbered."""
    digest = hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:12]
    repeats[digest] += 1
    return msgspec.structs.replace(row, id=digest if repeats[digest] == 1 else f"{digest}-{repeats[digest]}")


def _refuse_repeated(key: str, name: str, source: DataSource, number: int, places: dict[str, str]) -> None:
    if key in places:
        raise DataError(f"expected a new `{name}`, got {key!r}, which {places[key]} has.")
    places[key] = f"{source.unit} {number}"


def column_arguments(**columns: ColumnName) -> dict[str, Any]:
    """The column arguments that are set, for the record. Raises `InputError` if a name is not text."""
    for field, column in columns.items():
        names: Any = column if isinstance(column, list | tuple) else [column]
        if column is not None and not (names and all(isinstance(name, str) and name for name in names)):
            raise InputError(f"Expected the name of a column as {field}, got {column!r}.")
    return {field: column for field, column in columns.items() if column is not None}
