"""Counts and sizes as people like to read them, and text that folds at the width of the terminal."""

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import wrap_lines


def plural(count: int, what: str) -> str:
    """So many of something, in the plural where there is not one."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def format_bytes(count: int) -> str:
    """A number of bytes."""
    value, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


def print_wrapped(console: Console, text: Text, indent: str = "") -> None:
    """Print text, folded, each line with the indent before it."""
    for line in wrap_lines(text, console, indent):
        console.print(line, soft_wrap=True)
