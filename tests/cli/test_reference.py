"""The page of commands is what the commands say of themselves."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    """A command, option or help text that changes changes the page: `make docs` writes it."""
    written = subprocess.run([sys.executable, DOCS / "command_reference.py"], capture_output=True, check=True)
    assert (DOCS / "commands.md").read_bytes() == written.stdout
