"""The reference page of commands matches the commands' help."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current():
    """If a command, option or help text changes, `make docs` updates the page."""
    written = subprocess.run([sys.executable, DOCS / "command_reference.py"], capture_output=True, check=True)
    assert (DOCS / "commands.md").read_bytes() == written.stdout
