"""SQL that people write: bounded in time, memory, rows and bytes."""

import time
from typing import Any

from rolltrace.errors import InputError
from rolltrace.query.run import Run
from rolltrace.viewer.answers import SqlAnswer, SqlColumn
from rolltrace.viewer.wire import plain

SECONDS = 10.0
MOST_ROWS = 10_000
MOST_BYTES = 20_000_000
LONGEST_CELL = 100_000
_AT_ONCE = 100


def ask_sql(run: Run, sql: str, limit: int) -> SqlAnswer:
    """The rows of one SELECT, no more than are asked for."""
    if not 1 <= limit <= MOST_ROWS:
        raise InputError(f"Expected a limit from 1 to {MOST_ROWS}, got {limit}.")
    started = time.perf_counter()
    result = run.sql(sql, timeout=SECONDS)
    rows: list[tuple[Any, ...]] = []
    size = 0
    while len(rows) <= limit and size <= MOST_BYTES:
        some = result.fetchmany(min(_AT_ONCE, limit + 1 - len(rows)))
        if not some:
            break
        for row in some:
            cells = tuple(_cell(value) for value in row)
            size += sum(map(_size, cells))
            rows.append(cells)
            if size > MOST_BYTES:
                break
    return SqlAnswer(
        columns=tuple(map(SqlColumn, result.columns, result.types)),
        rows=tuple(rows[:limit]),
        more=len(rows) > limit or size > MOST_BYTES,
        seconds=time.perf_counter() - started,
    )


def _cell(value: Any) -> Any:
    """A value as JSON has it; a long text is cut."""
    told = plain(value)
    if isinstance(told, str) and len(told) > LONGEST_CELL:
        return f"{told[:LONGEST_CELL]}… ({len(told) - LONGEST_CELL:,} more characters)"
    return told


def _size(value: Any) -> int:
    """About how many bytes a value takes as JSON."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, dict):
        return 2 + sum(len(name) + 4 + _size(item) for name, item in value.items())
    return 2 + sum(map(_size, value)) if isinstance(value, list) else 8
