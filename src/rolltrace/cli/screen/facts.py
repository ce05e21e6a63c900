"""Lines on a screen: text that folds, and facts with their labels, set apart from what was said."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import folded
from rolltrace.cli.screen.visible import compact, number, visible_line, visible_text
from rolltrace.trace.rollout import Failure

INDENT = "  "
_BAR = "  │ "
_LABEL = 15
_MOST_CHARACTERS = 300
_MOST_NUMBERS = 40


class FactSheet:
    """Prints lines; `full` leaves nothing folded."""

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self.console = console
        self.full = full

    def line(self, line: Text | None = None) -> None:
        """Print one line as it is."""
        self.console.print(line or Text(), soft_wrap=True)

    def lines(self, lines: Iterable[Text]) -> None:
        """Print lines as they are."""
        for line in lines:
            self.line(line)

    def folded(self, text: Text, indent: str = "") -> None:
        """Print text, folded at the console's width."""
        self.lines(folded(text, self.console, indent))

    def fact(self, label: str, value: Text) -> None:
        """A label and what it says, with the lines after the first set below the first."""
        lines = folded(value, self.console, "", self.console.width - len(_BAR) - _LABEL)
        short = label if len(label) <= _LABEL - 1 else f"{label[: _LABEL - 2]}…"
        for heading, line in zip((short, *("" for _ in lines[1:])), lines, strict=True):
            self.line(Text().append(f"{_BAR}{heading:{_LABEL}}", "dim").append_text(line))

    def numbers(self, label: str, values: Mapping[str, Any], style: str = "") -> None:
        """Numbers by name, where there are some."""
        if not values:
            return
        most = len(values) if self.full else _MOST_NUMBERS
        pairs = islice(values.items(), most)
        text = Text("  ".join(f"{visible_line(name)} {number(value)}" for name, value in pairs), style)
        if len(values) > most:
            text.append(f"  … {len(values) - most:,} more: --full shows all", "italic yellow")
        self.fact(label, text)

    def mapping(self, label: str, values: Mapping[str, Any]) -> None:
        """Values of any kind by name, where there are some."""
        if values:
            self.fact(label, self.cut("  ".join(pair_text(name, value) for name, value in values.items())))

    def changes(self, label: str, value: Text) -> None:
        """What changed; one that is too long is cut, and loses its colours."""
        if value.plain:
            self.fact(label, value if len(value.plain) <= _MOST_CHARACTERS else self.cut(value.plain))

    def failure(self, label: str, failure: Failure) -> None:
        """What went wrong; of a traceback only the last line unless all is asked for."""
        what = f"{failure.layer.value} · {visible_line(failure.type)}: {visible_text(failure.message)}"
        self.fact(label, Text(what, "red"))
        lines = failure.traceback.strip().splitlines()
        if lines and self.full:
            self.fact("traceback", Text(visible_text(failure.traceback.strip()), "dim"))
        elif lines:
            last = Text(visible_line(lines[-1].strip()), "dim")
            self.fact("traceback", last.append(f"  ({len(lines)} lines; --full shows all)", "italic"))

    def cut(self, text: str, most: int = _MOST_CHARACTERS) -> Text:
        """Text that is already visible; the end of a long one is left out unless all is asked for."""
        if self.full or len(text) <= most:
            return Text(text)
        return Text(text[:most]).append(f"… {len(text) - most:,} characters more: --full shows all", "italic yellow")


def pair_text(name: Any, value: Any) -> str:
    """A name and its value on one line."""
    return f"{visible_line(str(name))}={compact(value)}"
