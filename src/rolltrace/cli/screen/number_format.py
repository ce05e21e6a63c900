"""Formats numbers, durations, sizes and other values for people to read."""

import json
from typing import Any

from rolltrace.terminal_text import escape_line


def to_one_line(value: Any) -> str:
    """Format any value of a record on one line."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return short_number(value)
    if isinstance(value, str):
        return escape_line(value)
    return escape_line(json.dumps(value, ensure_ascii=False, default=repr))


def short_number(value: float | None) -> str:
    """Format a number with at most six significant digits, or a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool | int):
        return json.dumps(value)
    return f"{value:.6g}"


def format_duration(seconds: float) -> str:
    """Format a duration in milliseconds or seconds."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def plural(count: int, what: str) -> str:
    """Format a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
