"""The command as a whole: help, version, start-up time, exit codes."""

import inspect
import subprocess
import sys

import click
import pytest

import rolltrace as package
from rolltrace.cli.app import COMMANDS, cli
from rolltrace.errors import (
    ChecksumError,
    DataError,
    EnvError,
    GraderError,
    InputError,
    PolicyError,
    QueryTimeoutError,
    RecordError,
    RunExistsError,
    RunNotFoundError,
    StorageError,
    UnknownNameError,
)
from rolltrace.jobs.plan import Plan
from rolltrace.jobs.replay_compare import ALSO

pytestmark = pytest.mark.core


def all_commands():
    context = click.Context(cli)
    return [cli, *(cli.get_command(context, name) for name in COMMANDS)]


@pytest.mark.parametrize("command", all_commands(), ids=lambda command: command.name)
def test_every_command_and_option_has_help(command):
    """Every command and option has a help text."""
    assert command.help
    assert [
        parameter.name for parameter in command.params if isinstance(parameter, click.Option) and not parameter.help
    ] == []


@pytest.mark.parametrize(
    ("name", "function", "options"),
    [
        ("run", Plan, ["groups", "group_size", "iterations", "seed", "concurrency", "retries", "split"]),
        ("regrade", package.regrade, ["concurrency", "threshold"]),
        ("replay", package.replay_run, ["tolerance", "most"]),
    ],
)
def test_commands_have_the_defaults_of_the_library(name, function, options):
    """They are stated twice, because a command does not import the library to show its help."""
    command = cli.get_command(click.Context(cli), name)
    own = {parameter.name: parameter for parameter in command.params}
    defaults = {option: own[option].default for option in options}
    parameters = inspect.signature(function).parameters
    assert defaults == {option: parameters[option].default for option in options}
    if name == "regrade":
        assert own["timeout"].default == parameters["seconds"].default
    if name == "replay":
        assert tuple(own["also"].type.choices) == ALSO


def test_help_lists_every_verb(rolltrace):
    """`rolltrace --help` names each verb with a line."""
    shown = rolltrace("--help")
    assert shown.exit_code == 0
    for verb in COMMANDS:
        assert f"  {verb} " in shown.stdout


def test_version(rolltrace):
    """`rolltrace --version` prints the version."""
    assert rolltrace("--version").stdout.split() == ["rolltrace,", "version", package.__version__]


def test_unknown_verb_is_wrong_usage(rolltrace):
    """An unknown verb ends with 2 and a message on standard error."""
    shown = rolltrace("dance")
    assert shown.exit_code == 2
    assert "dance" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError, 2), (UnknownNameError, 2), (DataError, 2), (RunExistsError, 2), (RunNotFoundError, 2),
        (StorageError, 1), (QueryTimeoutError, 1), (RecordError, 1), (ChecksumError, 1), (EnvError, 1),
        (PolicyError, 1), (GraderError, 1), (OSError, 1),
    ],
)  # fmt: skip
def test_exit_codes(rolltrace, monkeypatch, error, code):
    """Wrong usage ends with 2; a failure of a valid command ends with 1; both print a message."""

    def fail(*arguments):
        raise error("no \x1b[31mluck")

    monkeypatch.setattr("rolltrace.query.run_listing.list_runs", fail)
    shown = rolltrace("ls")
    assert shown.exit_code == code
    assert "no ␛[31mluck" in shown.stderr
    assert isinstance(shown.exception, SystemExit)


def test_module_is_the_command():
    """`python -m rolltrace` works."""
    ended = subprocess.run([sys.executable, "-m", "rolltrace", "--version"], capture_output=True, check=True, text=True)
    assert package.__version__ in ended.stdout


def test_help_imports_no_engine():
    """Help imports neither the jobs nor the terminal library, so that it is fast."""
    script = """
import sys
from rolltrace.cli.app import cli
cli(["--help"], standalone_mode=False)
heavy = [name for name in ("rich", "rolltrace.jobs", "rolltrace.cli.screen") if name in sys.modules]
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert ended.returncode == 0, ended.stderr
