"""What changed in an environment's state from one step to the next."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from rolltrace.cli.screen.detail_printer import format_pair
from rolltrace.cli.screen.number_format import to_one_line
from rolltrace.terminal_text import escape_line

_LONGEST = 60
"""Of a value that was replaced, so many characters are shown."""


def state_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Text:
    """The entries that are new, those that are gone, and what was in place of those that changed."""
    told: list[Text] = []
    same = 0
    for name, value in now.items():
        if name not in before:
            told.append(Text(format_pair(name, value)))
        elif same_value(before[name], value):
            same += 1
        else:
            told.append(Text(format_pair(name, value)).append(f" (was {_short(before[name])})", "dim"))
    told.extend(Text(f"{escape_line(str(name))} is gone", "dim") for name in before if name not in now)
    if same:
        told.append(Text("nothing changed" if not told else f"{same:,} unchanged", "dim"))
    return Text("  ").join(told)


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of a record are one; NaN is the same as NaN, and 1 is not true."""
    return type(one) is type(other) and (one == other or to_one_line(one) == to_one_line(other))


def _short(value: Any) -> str:
    text = to_one_line(value)
    return f"{text[:_LONGEST]}…" if len(text) > _LONGEST else text
