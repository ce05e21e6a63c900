"""Checks SQL before it runs: exactly one SELECT over the tables of a run, without functions that reach outside.

This is the first of two barriers. The second is `duckdb_engine.SqlSandbox`, whose connection can open no other file.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rolltrace.errors import InputError, RolltraceError, StorageError
from rolltrace.query.iteration_bounds import iteration_bounds
from rolltrace.query.table_schema import TABLE_INPUTS
from rolltrace.store.parts import Bounds
from rolltrace.temp_folders import is_full_disk, temp_folder_error

if TYPE_CHECKING:
    import duckdb

Parameters = Sequence[Any] | Mapping[str, Any] | None
"""A list for `?`, `$1` and so on; a mapping for `$name`."""


TABLES = tuple(TABLE_INPUTS)
HINT = f"The tables are {', '.join(TABLES)}; docs/tables.md has their columns."

LOCATION_VIEWS = {"rollouts": "_places", "scores": "_score_places"}
"""By table, the view that also has the location of each line. A user's statement cannot name it."""

_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_SOURCES = {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "EMPTY_FROM"}
_TABLE_FUNCTIONS = {"unnest", "range", "generate_series", "json_each", "json_tree", "generate_subscripts"}
_REFUSED_FUNCTIONS = re.compile(
    r"read_.*|duckdb_.*|pragma_.*|parquet_.*|pg_(?!typeof$).*|query.*|glob|sniff_.*|json_(execute|de|serialize).*|.*_scan|"
    r"getenv|getvariable|current_setting|nextval|currval|setval|write_log|sleep.*|which_secret|.*_external_resource.*|"
    r"set_config|txid_current|has_.*_privilege|parse_duckdb_log_message|current_(connection|query|transaction)_id"
)
_PLAIN_NAME = re.compile(r"[^\W\d_]\w*")
_ENGINES_OWN = re.compile(r"(duckdb|pragma|sqlite|pg)_.*|information_schema")
"""Names of DuckDB's catalogue. A WITH query of such a name would let the name pass elsewhere in the statement."""
_EXPLAIN = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*explain\s+(?!analy[sz]e\b|\()(.*)", re.IGNORECASE | re.DOTALL)
_MAX_CHARACTERS = 1_000_000
_PARAMETER_LIMIT = 2**127
_MAX_PARAMETER_DEPTH = 16


class Statement(NamedTuple):
    """SQL that passed the check."""

    sql: str
    tables: frozenset[str]
    """The tables of the run that it reads."""
    parameters: Parameters = None
    """The values of `?` or `$name`."""
    iterations: Bounds | None = None
    """The first and the last iteration of the rows that it needs, see `iteration_bounds`."""


def check_statement(sql: str, connection: "duckdb.DuckDBPyConnection", parameters: Parameters = None) -> Statement:
    """Check that the SQL is one SELECT, or a plain EXPLAIN of one, and reads only tables of the run."""
    kind, text = _only_statement(sql, connection)
    values = check_parameters(connection.extract_statements(sql)[0].named_parameters, parameters)
    if kind == "EXPLAIN":
        explained = _EXPLAIN.fullmatch(text)
        if explained is None:
            raise _refused("an EXPLAIN that runs the statement, or with options")
        kind, explained_text = _only_statement(explained[1], connection)
        tree = _tree(explained_text, kind, connection)
    else:
        tree = _tree(text, kind, connection)
    return Statement(text, frozenset(_check_tree(tree)), values, iteration_bounds(_walk(tree), values))


def check_expressions(
    table: str, where: str | None, order_by: str | None, connection: "duckdb.DuckDBPyConnection"
) -> Statement:
    """Make a SELECT of a table, after checking that the condition and the order are only expressions.

    For a table of lines it selects the location of each line; for `groups`, the rows.
    """
    frame, ending = f"select id from {table}", ""
    for name, expression in (("where", where), ("order_by", order_by)):
        if expression is not None and not expression.strip():
            raise InputError(f"Expected an SQL expression over the columns of {table}, got {name} = {expression!r}.")
    if where is not None:
        _check_frame(frame, f"{frame} where (\n{where}\n)", ("where_clause",), f"where = {where!r}", connection)
        ending += f" where (\n{where}\n)"
    if order_by is not None:
        _check_frame(frame, f"{frame} order by \n{order_by}\n", ("modifiers",), f"order_by = {order_by!r}", connection)
        ending += f" order by \n{order_by}\n"
    checked = check_statement(frame + ending, connection)
    columns, view = "select run, id, _file, _offset, _length ", f"{LOCATION_VIEWS.get(table)} as {table}"
    sql = f"{columns}from {view}{ending}" if table in LOCATION_VIEWS else f"from {table}{ending}"
    return checked._replace(sql=sql)


def _check_frame(
    frame: str, filled: str, changed: tuple[str, ...], what: str, connection: "duckdb.DuckDBPyConnection"
) -> None:
    """Refuse an expression that changes more of the statement than its own clause."""
    table = frame.rpartition(" ")[2]
    error = InputError(f"Expected an SQL expression over the columns of {table}, got {what}. {HINT}")
    try:
        kind, text = _only_statement(filled, connection)
        actual, expected = _tree(text, kind, connection)["node"], _tree(frame, "SELECT", connection)["node"]
    except InputError as reason:
        raise InputError(f"{error} {reason}") from reason
    modifiers = actual.get("modifiers", [])
    orders_only = [modifier.get("type") for modifier in modifiers] in ([], ["ORDER_MODIFIER"])
    if not orders_only or _without(actual, changed) != _without(expected, changed):
        raise error
    if "where_clause" in changed and modifiers:
        raise error


def _without(node: Any, names: tuple[str, ...]) -> Any:
    """The tree without these fields of its root, and without positions in the text."""
    return _without_positions({name: value for name, value in node.items() if name not in names})


def _without_positions(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_positions(item) for name, item in value.items() if not name.startswith("query_location")}
    return [_without_positions(item) for item in value] if isinstance(value, list) else value


def _only_statement(sql: str, connection: "duckdb.DuckDBPyConnection") -> tuple[str, str]:
    import duckdb

    if len(sql) > _MAX_CHARACTERS:
        raise InputError(f"Expected a statement of at most {_MAX_CHARACTERS} characters, got {len(sql)}.")
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise sql_error(error) from error
    if len(statements) != 1:
        raise InputError(f"Expected exactly one SELECT, got {len(statements)} statements. {HINT}")
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        raise _refused(kind)
    return kind, statements[0].query.rstrip().rstrip(";")


def _tree(sql: str, kind: str, connection: "duckdb.DuckDBPyConnection") -> dict[str, Any]:
    import duckdb

    if kind != "SELECT":
        raise _refused(kind)
    try:
        row = connection.execute("select json_serialize_sql(?)", [sql]).fetchone()
    except duckdb.Error as error:
        raise sql_error(error) from error
    try:
        answer = msgspec.json.decode(row[0] if row else "{}")
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected a statement that is not nested so deeply. {HINT}") from error
    if answer.get("error") is not False or len(answer.get("statements", ())) != 1:
        raise InputError(f"{answer.get('error_message', 'The statement cannot be read.')} {HINT}")
    tree: dict[str, Any] = answer["statements"][0]
    return tree


def _check_tree(tree: dict[str, Any]) -> set[str]:
    parts = list(_walk(tree))
    own = {entry["key"].lower() for part in parts for entry in part.get("cte_map", {}).get("map", ())}
    own |= {part["cte_name"].lower() for part in parts if "cte_name" in part}
    for name in own:
        if not _PLAIN_NAME.fullmatch(name) or _ENGINES_OWN.fullmatch(name):
            raise InputError(f"Expected a plain name of your own for a WITH query, got {name!r}.")
    tables = set()
    for part in parts:
        kind = part.get("type", "")
        kind = kind if isinstance(kind, str) else ""  # in some parts, `type` is a tree
        if kind.endswith("_NODE") and kind not in _NODES:
            raise _refused(kind.removesuffix("_NODE").removesuffix("_QUERY"))
        if "sample" in part and "alias" in part and "class" not in part and kind not in _SOURCES:
            raise _refused({"SHOW_REF": "DESCRIBE, SHOW or SUMMARIZE"}.get(kind, kind))
        if kind == "BASE_TABLE":
            tables |= _check_table(part, own)
        elif kind == "TABLE_FUNCTION":
            _check_table_function(part)
        elif "function_name" in part:
            _check_function(part)
    return tables


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a tree."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _check_table(part: dict[str, Any], own: set[str]) -> set[str]:
    path = part.get("qualified_name", {}).get("path") or [part.get("table_name", "")]
    name = str(path[-1]).lower()
    if len(path) > 1 or part.get("schema_name") or part.get("catalog_name") or name not in {*own, *TABLES}:
        shown = ".".join(map(str, path))
        near = difflib.get_close_matches(name, TABLES, n=1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise InputError(f"There is no table {shown!r}.{meant} {HINT}")
    return {name} - own | ({name} & set(TABLES))


def _check_table_function(part: dict[str, Any]) -> None:
    name = _function_name(part.get("function", {}))
    if name not in _TABLE_FUNCTIONS:
        raise InputError(
            f"The function {name} is not allowed as a table: only {', '.join(sorted(_TABLE_FUNCTIONS))} are. "
            f"SQL here reads no file but the run's own, and no network. {HINT}"
        )


def _check_function(part: dict[str, Any]) -> None:
    name = _function_name(part)
    if _REFUSED_FUNCTIONS.fullmatch(name):
        raise InputError(f"The function {name} is not allowed: SQL here sees the tables and nothing else. {HINT}")


def _function_name(part: dict[str, Any]) -> str:
    path = part.get("qualified_name", {}).get("path") or [part.get("function_name", "")]
    return str(path[-1]).lower()


def _refused(what: str) -> InputError:
    return InputError(f"Expected one SELECT, or a plain EXPLAIN of one, got {what}: SQL here only reads. {HINT}")


def sql_error(error: Exception) -> RolltraceError:
    """Convert an error of DuckDB: a failure of the disk is a storage error, everything else a wrong statement."""
    import duckdb

    if isinstance(error, duckdb.IOException) and is_full_disk(str(error)):
        return temp_folder_error(error)
    if isinstance(error, duckdb.IOException):
        return StorageError(str(error).strip())
    return InputError(f"{str(error).strip()}\n{HINT}")


def check_parameters(expected: set[str], parameters: Parameters) -> Parameters:
    """Check that the parameters are those that the statement names, and of types that SQL has."""
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Mapping | Sequence | None):
        raise InputError(f"Expected the parameters as a list or a mapping, got {type(parameters).__name__}.")
    values: dict[str, Any] = (
        dict(parameters)
        if isinstance(parameters, Mapping)
        else {str(number): value for number, value in enumerate(parameters or (), 1)}
    )
    if set(values) != expected:
        raise InputError(
            f"Expected values for {_names(expected) or 'no parameters'}, got {_names(values) or 'none'}: "
            "give a list for ?, a mapping for $name."
        )
    for name, value in values.items():
        if not _is_value(value):
            raise InputError(
                f"Expected text, a number, a time, bytes, None or a list of these for the parameter {name!r}, "
                f"got {type(value).__name__}{' that is too large' if isinstance(value, int) else ''}."
            )
    if not values:
        return None
    return values if isinstance(parameters, Mapping) else list(values.values())


def _names(names: Any) -> str:
    return ", ".join(sorted(map(repr, names)))


def _is_value(value: Any, depth: int = 0) -> bool:
    if isinstance(value, list | tuple):
        return depth < _MAX_PARAMETER_DEPTH and all(_is_value(one, depth + 1) for one in value)
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, int):
        return -_PARAMETER_LIMIT <= value < _PARAMETER_LIMIT
    return value is None or isinstance(value, float | bytes | datetime | date)
