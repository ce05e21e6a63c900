"""The guides to writing an environment and a game: every block is run as shown."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
COMMANDS = {"write-an-environment.md": 7, "write-a-game.md": 6, "env-classes.md": 4, "your-own-data.md": 8}
"""How many each guide shows."""
PROGRAMS = {"rolltrace": ["-m", "rolltrace"], "python": []}


def text_of(guide):
    return (GUIDES / guide).read_text(encoding="utf-8")


def blocks_of(guide):
    """Each code block with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text_of(guide), re.MULTILINE | re.DOTALL)


def follow(guide, folder):
    """Each command of the guide with its expected and actual output, in order."""
    followed = []
    for language, block in blocks_of(guide):
        if language == "python":
            write(folder, block)
            continue
        assert language == "console", f"the guide has a block of {language}, which nobody tries out"
        for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
            followed.append((command, shown, run(folder, command)))
    return followed


def write(folder, block):
    """Appends the block to the file that its first line names."""
    name = re.match(r"# (\w+\.py)\n", block)[1]
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write(block)


def run(folder, command):
    """The output of a command."""
    program, *words = shlex.split(command)
    line = [sys.executable, *PROGRAMS[program], *words]
    environment = {**os.environ, "PYTHONUTF8": "1", "COLUMNS": "120"}
    ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, (command, ran.stderr)
    return ran.stdout


def pattern(shown):
    """The guide's expected output as a pattern: a line of dots matches any lines, trailing dots the rest of a line."""
    lines = []
    for line in shown.splitlines():
        if line == "…":
            lines.append(r"(?:.*\n)*?")
        else:
            lines.append(re.escape(line).replace("…", ".*") + r" *\n")
    return "".join(lines)


@pytest.mark.parametrize("guide", COMMANDS)
def test_the_guide_does_what_it_says(tmp_path, guide):
    """Every command succeeds and prints what is shown, to the last line."""
    followed = follow(guide, tmp_path)
    assert len(followed) == COMMANDS[guide]
    for command, shown, printed in followed:
        assert re.fullmatch(pattern(shown), printed), (command, printed)


@pytest.mark.parametrize("guide", COMMANDS)
def test_the_guide_is_short(guide):
    """From nothing to an environment with a tool and a grader in under 60 lines of Python, blank ones not counted."""
    code = "".join(block for language, block in blocks_of(guide) if language == "python")
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 60
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("guide", COMMANDS)
def test_the_guide_leads_on(guide):
    """The targets of its links exist."""
    links = re.findall(r"\]\(([^)]+)\)", text_of(guide))
    assert links
    assert all((GUIDES / link).is_file() for link in links)
