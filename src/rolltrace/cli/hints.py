"""Command lines to suggest to the user."""

import shlex
import shutil
import sys
from pathlib import Path

from rolltrace.terminal_text import escape_line


def command(*words: str) -> str:
    """A command line for this program that works from the current directory."""
    return " ".join([_program(), *(escape_line(shlex.quote(word)) for word in words)])


def _program() -> str:
    if shutil.which("rolltrace"):
        return "rolltrace"
    beside = Path(sys.executable).with_name("rolltrace")
    if beside.exists():
        here = Path.cwd()
        return shlex.quote(str(beside.relative_to(here) if beside.is_relative_to(here) else beside))
    return f"{shlex.quote(sys.executable)} -m rolltrace"
