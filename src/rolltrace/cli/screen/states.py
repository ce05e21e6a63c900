"""What changed in an environment's state from one step to the next."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from rolltrace.cli.screen.facts import pair_text
from rolltrace.cli.screen.visible import compact, visible_line

_LONGEST = 60
"""Of a value that was replaced, so many characters are shown."""


def changes_text(before: Mapping[str, Any], now: Mapping[str, Any]) -> Text:
    """The entries that are new, those that are gone, and what was in place of those that changed."""
    told: list[Text] = []
    same = 0
    for name, value in now.items():
        if name not in before:
            told.append(Text(pair_text(name, value)))
        elif is_same(before[name], value):
            same += 1
        else:
            told.append(Text(pair_text(name, value)).append(f" (was {_short(before[name])})", "dim"))
    told.extend(Text(f"{visible_line(str(name))} is gone", "dim") for name in before if name not in now)
    if same:
        told.append(Text("nothing changed" if not told else f"{same:,} unchanged", "dim"))
    return Text("  ").join(told)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values of a record are one; NaN is the same as NaN, and 1 is not true."""
    return type(one) is type(other) and (one == other or compact(one) == compact(other))


def _short(value: Any) -> str:
    text = compact(value)
    return f"{text[:_LONGEST]}…" if len(text) > _LONGEST else text
