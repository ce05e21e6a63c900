"""The command as a whole: help, version, speed of starting, exit codes."""

import subprocess
import sys

import click
import pytest

import rolltrace as package
from rolltrace.cli.app import VERBS, cli


def all_commands():
    context = click.Context(cli)
    return [cli, *(cli.get_command(context, name) for name in VERBS)]


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.name)
def test_every_command_and_option_has_help(command):
    """A command or option without a help text is not finished."""
    assert command.help
    assert [
        parameter.name for parameter in command.params if isinstance(parameter, click.Option) and not parameter.help
    ] == []


def test_help_lists_every_verb(rolltrace):
    """`rolltrace --help` names each verb with a line."""
    shown = rolltrace("--help")
    assert shown.exit_code == 0
    for verb in VERBS:
        assert f"  {verb} " in shown.stdout


def test_version(rolltrace):
    """`rolltrace --version` says which."""
    assert rolltrace("--version").stdout.split() == ["rolltrace,", "version", package.__version__]


def test_unknown_verb_is_wrong_usage(rolltrace):
    """An unknown verb ends with 2 and a message on standard error."""
    shown = rolltrace("dance")
    assert shown.exit_code == 2
    assert "dance" in shown.stderr
    assert shown.stdout == ""


def test_module_is_the_command():
    """`python -m rolltrace` works."""
    ended = subprocess.run([sys.executable, "-m", "rolltrace", "--version"], capture_output=True, check=True, text=True)
    assert package.__version__ in ended.stdout


def test_help_imports_no_engine():
    """Help needs neither the jobs nor the terminal library, so that it is quick."""
    script = """
import sys
from rolltrace.cli.app import cli
cli(["--help"], standalone_mode=False)
heavy = [name for name in ("rich", "rolltrace.jobs", "rolltrace.cli.screen") if name in sys.modules]
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
