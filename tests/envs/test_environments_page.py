"""The commands of the page about environments are run, and it names every environment."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from rolltrace.cli.app import cli
from rolltrace.envs.registry import BUILT_IN, FAMILIES
from rolltrace.graders.answer_check import ANSWER_CHECKS

pytestmark = pytest.mark.core

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def test_the_page_names_every_environment_and_check():
    """Every environment and check has a row in the tables."""
    names = {*BUILT_IN, *(f"{name}:{family.member}" for name, family in FAMILIES.items())}
    assert (
        set(re.findall(r"`([a-z_]+(?::[A-Z]+)?)`", " ".join(re.findall(r"^\| (.*?) \|", PAGE, re.MULTILINE)))) >= names
    )
    assert set(re.findall(r"^\| `(\w+)` \| the same", PAGE, re.MULTILINE)) == set(ANSWER_CHECKS)


def test_the_commands_run(tmp_path, monkeypatch):
    """The commands succeed in their order, in one directory."""
    pytest.importorskip("textarena")
    monkeypatch.chdir(tmp_path)
    Path("criteria.jsonl").write_text(json.dumps({"text": "Uses the calculator.", "name": "uses"}) + "\n")
    commands = re.findall(r"^\$ rolltrace (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        ran = CliRunner().invoke(cli, shlex.split(command))
        assert ran.exit_code == 0, (command, ran.stderr)
        assert ran.stdout
