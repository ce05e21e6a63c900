"""The `rolltrace` command: imports each verb when it is used, and turns errors into messages and exit codes."""

import importlib
import os
import sys
from typing import Any

import click

from rolltrace.cli.signals import InterruptedExit
from rolltrace.errors import InputError, RolltraceError, RunNotFoundError
from rolltrace.version import __version__

COMMANDS = (
    "demo", "envs", "run", "proxy", "ls", "summary", "show", "view", "query", "check", "regrade", "replay", "check-env",
    "report", "compact",
)  # fmt: skip
"""Each is a command in the module of that name, with `_` for `-`."""


class LazyCommands(click.Group):
    """Imports a verb's module when that verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"rolltrace.cli.{name}"), name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; expected errors become a message and an exit code."""
        try:
            return super().invoke(ctx)
        except RolltraceError as error:
            kind = WrongUsage if isinstance(error, InputError | RunNotFoundError) else JobFailed
            raise kind(str(error)) from error
        except BrokenPipeError:  # the reader has closed the pipe; click handles it
            raise
        except OSError as error:  # such as a full disk under standard output
            raise JobFailed(str(error)) from error


class JobFailed(click.ClickException):
    """A message on standard error, and exit code 1: the job failed."""

    def __init__(self, message: str) -> None:
        # Lazy, because no command that succeeds needs it.
        from rolltrace.terminal_text import escape_text

        super().__init__(escape_text(message))


class WrongUsage(JobFailed):
    """A message on standard error, and exit code 2: the command was used wrongly."""

    exit_code = 2


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=LazyCommands, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="rolltrace")
def cli() -> None:
    """Play language models in environments, and read the trace of every rollout.

    A RUN or DIR may also be in an object store: s3://bucket/folder.

    Exit codes: 0, 1 (the job failed), 2 (wrong usage), 143 (ended by SIGTERM).
    """


def main() -> None:
    """Run the command line, with the current directory on `sys.path` for the user's environments and policies."""
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109 - compared as text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # do not fail if the terminal lacks a character
    try:
        cli()
    except InterruptedExit as interrupted:
        interrupted.exit_soon()
        raise
