"""The two streams of the command line: data on standard output, everything else on standard error."""

import sys

from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from rolltrace.cli.screen.signs import use_ascii_fallback
from rolltrace.terminal_text import escape_json

NO_FOLD_WIDTH = 1_000_000
"""The width of what is no terminal: text that goes to a file or a program is not folded."""

MAX_CELL = 200
"""How many characters of a cell are shown."""


def stdout_console() -> Console:
    """Standard output."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """Standard error."""
    return _console(stderr=True)


def write_record(line: bytes) -> None:
    """Put a line of JSON on standard output.

    A program gets the bytes unchanged; a terminal gets the same JSON with control characters escaped.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(escape_json(line.decode()).encode() if sys.stdout.isatty() else line)
    sys.stdout.buffer.flush()


def wrap_lines(text: Text, console: Console, indent: str, width: int | None = None) -> list[Text]:
    """The lines of a text, folded at the console's width, each with the indent before it."""
    room = max(20, (width or console.width) - len(indent))
    if room > NO_FOLD_WIDTH // 2:
        lines = text.split("\n", allow_blank=True)
    else:
        lines = text.wrap(console, room, overflow="fold") if text.plain else Lines([Text()])
    for line in lines:
        line.rstrip()
    return [Text(indent).append_text(line) if line.plain else Text() for line in lines]


def table_cell(text: str, style: str = "", most: int = MAX_CELL) -> Text:
    """Visible text for a cell of a table, its end left out where it is long: every row is padded to the widest."""
    if len(text) <= most:
        return Text(text, style)
    return Text(text[:most], style).append(f"… {len(text) - most:,} characters more", "italic yellow")


def _console(*, stderr: bool) -> Console:
    use_ascii_fallback(sys.stderr if stderr else sys.stdout)
    # Markup, highlighting and emoji codes would interpret what a model wrote.
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = NO_FOLD_WIDTH
    return console
