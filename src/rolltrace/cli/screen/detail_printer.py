"""Prints wrapped text, and labelled facts that are set apart from the conversation."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import print_wrapped, wrap_lines
from rolltrace.cli.screen.number_format import short_number, to_one_line
from rolltrace.terminal_text import escape_line, escape_text
from rolltrace.trace.failure import Failure

INDENT = "  "
_BAR = "  │ "
_LABEL = 15
_MAX_CHARACTERS = 300
_MAX_NUMBERS = 40


class DetailPrinter:
    """Prints lines; with `full` nothing is cut."""

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self.console = console
        self.full = full

    def line(self, line: Text | None = None) -> None:
        """Print one line as it is."""
        self.console.print(line or Text(), soft_wrap=True)

    def wrapped(self, text: Text, indent: str = "") -> None:
        """Print text wrapped at the width of the console."""
        print_wrapped(self.console, text, indent)

    def labelled(self, label: str, value: Text) -> None:
        """Print a label and its value, whose lines are aligned below each other."""
        lines = wrap_lines(value, self.console, "", self.console.width - len(_BAR) - _LABEL)
        short = label if len(label) <= _LABEL - 1 else f"{label[: _LABEL - 2]}…"
        for heading, line in zip((short, *("" for _ in lines[1:])), lines, strict=True):
            self.line(Text().append(f"{_BAR}{heading:{_LABEL}}", "dim").append_text(line))

    def numbers(self, label: str, values: Mapping[str, Any], style: str = "") -> None:
        """Print numbers by name, if there are any."""
        if not values:
            return
        most = len(values) if self.full else _MAX_NUMBERS
        pairs = islice(values.items(), most)
        text = Text("  ".join(f"{escape_line(name)} {short_number(value)}" for name, value in pairs), style)
        if len(values) > most:
            text.append(f"  … {len(values) - most:,} more: --full shows all", "italic yellow")
        self.labelled(label, text)

    def mapping(self, label: str, values: Mapping[str, Any]) -> None:
        """Print values of any kind by name, if there are any."""
        if values:
            self.labelled(label, self.cut("  ".join(format_pair(name, value) for name, value in values.items())))

    def changes(self, label: str, value: Text) -> None:
        """Print changes. Text that is too long is cut, and loses its colours."""
        if value.plain:
            self.labelled(label, value if len(value.plain) <= _MAX_CHARACTERS else self.cut(value.plain))

    def failure(self, label: str, failure: Failure) -> None:
        """Print an error, with its whole traceback if `full`, otherwise with the last line."""
        what = f"{failure.layer.value} · {escape_line(failure.type)}: {escape_text(failure.message)}"
        self.labelled(label, Text(what, "red"))
        lines = failure.traceback.strip().splitlines()
        if lines and self.full:
            self.labelled("traceback", Text(escape_text(failure.traceback.strip()), "dim"))
        elif lines:
            last = Text(escape_line(lines[-1].strip()), "dim")
            self.labelled("traceback", last.append(f"  ({len(lines)} lines; --full shows all)", "italic"))

    def cut(self, text: str, most: int = _MAX_CHARACTERS) -> Text:
        """Cut text, already escaped, that is longer than `most`, unless `full`."""
        if self.full or len(text) <= most:
            return Text(text)
        return Text(text[:most]).append(f"… {len(text) - most:,} characters more: --full shows all", "italic yellow")


def format_pair(name: Any, value: Any) -> str:
    """A name and its value on one line."""
    return f"{escape_line(str(name))}={to_one_line(value)}"
