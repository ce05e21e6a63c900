"""The two streams of the command line: data on standard output, everything else on standard error."""

import codecs
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click
from rich.console import Console
from rich.containers import Lines
from rich.text import Text

from rolltrace.store.read_errors import ReadError
from rolltrace.terminal_text import escape_json, escape_line
from rolltrace.trace.strict_json import encode_json

NO_FOLD_WIDTH = 1_000_000
"""The width if the output is not a terminal: text for a file or a program is not wrapped."""

MAX_CELL = 200
"""How many characters of a cell are shown."""
_MAX_READ_ERRORS = 20

_ASCII = {
    "│": "|", "┊": ":", "─": "-", "└": "+", "┤": "+", "┬": "+",
    "·": "-", "…": "~", "–": "-", "−": "-", "±": "~", "×": "x", "→": ">", "■": "#", "✓": "+", "✗": "x",
    "▁": "_", "▂": "_", "▃": "o", "▄": "o", "▅": "O", "▆": "O", "▇": "#", "█": "#",
}  # fmt: skip
"""Replacements on terminals without Unicode: one character each, so that columns stay aligned."""
_ASCII_ERRORS = "rolltrace.ascii_fallback"


def stdout_console() -> Console:
    """Standard output."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """Standard error."""
    return _console(stderr=True)


def write_record(line: bytes) -> None:
    """Write a line of JSON to standard output.

    A program gets the bytes unchanged; a terminal gets the same JSON with control characters escaped.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(escape_json(line.decode()).encode() if sys.stdout.isatty() else line)
    sys.stdout.buffer.flush()


def write_json(value: Any) -> None:
    """Write a value as a line of JSON to standard output."""
    write_record(encode_json(value) + b"\n")


def wrap_lines(text: Text, console: Console, indent: str, width: int | None = None) -> list[Text]:
    """Wrap a text at `width`, by default the width of the console, with the indent before each line."""
    room = max(20, (width or console.width) - len(indent))
    if room > NO_FOLD_WIDTH // 2:
        lines = text.split("\n", allow_blank=True)
    else:
        lines = text.wrap(console, room, overflow="fold") if text.plain else Lines([Text()])
    for line in lines:
        line.rstrip()
    return [Text(indent).append_text(line) if line.plain else Text() for line in lines]


def print_wrapped(console: Console, text: Text, indent: str = "") -> None:
    """Print text wrapped at the width of the terminal, with the indent before each line."""
    for line in wrap_lines(text, console, indent):
        console.print(line, soft_wrap=True)


def table_cell(text: str, style: str = "", most: int = MAX_CELL) -> Text:
    """Text, already escaped, for a cell of a table; cut if it is long, because every row is padded to the widest."""
    if len(text) <= most:
        return Text(text, style)
    return Text(text[:most], style).append(f"… {len(text) - most:,} characters more", "italic yellow")


def show_read_errors(errors: Sequence[ReadError | str], count: int | None = None, run: str | None = None) -> None:
    """Print on standard error which parts of a run could not be read: the first of them, and how many more.

    `count` is the number of all, if `errors` are not all; with `run`, each line names it.
    """
    prefix = "Not read: " if run is None else f"Not read: {escape_line(run)}: "
    shown = errors[:_MAX_READ_ERRORS]
    for error in shown:
        click.echo(f"{prefix}{escape_line(str(error))}", err=True)
    if more := (len(errors) if count is None else count) - len(shown):
        click.echo(f"{prefix}{more:,} more places; `rolltrace check` names them.", err=True)


def _console(*, stderr: bool) -> Console:
    _use_ascii_fallback(sys.stderr if stderr else sys.stdout)
    # Markup, highlighting and emoji codes would interpret what a model wrote.
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = NO_FOLD_WIDTH
    return console


def _use_ascii_fallback(stream: TextIO) -> None:
    """Make a stream without Unicode write ASCII replacements, and escapes of other characters that it cannot encode."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_ASCII_ERRORS)


def _to_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if character in _ASCII:
        return _ASCII[character], error.start + 1
    first = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(first)


codecs.register_error(_ASCII_ERRORS, _to_ascii)
