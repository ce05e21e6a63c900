"""The command line: one file per verb, each calling one library function."""

from rolltrace.cli.app import main

__all__ = ["main"]
