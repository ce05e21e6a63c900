"""Runs SQL of users, bounded in time, rows and bytes."""

import time
from typing import Any

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.viewer.json_response import to_browser_types
from rolltrace.viewer.schemas import SqlColumn, SqlResponse

SQL_TIMEOUT_SECONDS = 10.0
MAX_ROWS = 10_000
MAX_BYTES = 20_000_000
MAX_CELL_CHARS = 100_000
_FETCH_ROWS = 100


def run_user_sql(run: Run, sql: str, limit: int) -> SqlResponse:
    """The rows of one SELECT, at most `limit`."""
    if not 1 <= limit <= MAX_ROWS:
        raise InputError(f"Expected a limit from 1 to {MAX_ROWS}, got {limit}.")
    started = time.perf_counter()
    result = run.sql(sql, timeout=SQL_TIMEOUT_SECONDS)
    rows: list[tuple[Any, ...]] = []
    size = 0
    while len(rows) <= limit and size <= MAX_BYTES:
        batch = result.fetchmany(min(_FETCH_ROWS, limit + 1 - len(rows)))
        if not batch:
            break
        for row in batch:
            cells = tuple(_cell(value) for value in row)
            size += sum(map(_size, cells))
            rows.append(cells)
            if size > MAX_BYTES:
                break
    return SqlResponse(
        columns=tuple(map(SqlColumn, result.columns, result.types)),
        rows=tuple(rows[:limit]),
        more=len(rows) > limit or size > MAX_BYTES,
        seconds=time.perf_counter() - started,
    )


def _cell(value: Any) -> Any:
    """A value as JSON; a long text is truncated."""
    cell = to_browser_types(value)
    if isinstance(cell, str) and len(cell) > MAX_CELL_CHARS:
        return f"{cell[:MAX_CELL_CHARS]}… ({len(cell) - MAX_CELL_CHARS:,} more characters)"
    return cell


def _size(value: Any) -> int:
    """The approximate number of bytes of a value as JSON."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(len(name) + 4 + _size(item) for name, item in value.items())
    return 2 + sum(map(_size, value)) if isinstance(value, list) else 8
