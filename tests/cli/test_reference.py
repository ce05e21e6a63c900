"""The page of commands is what the commands say of themselves."""

from pathlib import Path

import pytest

from rolltrace.cli.reference import command_reference

pytestmark = pytest.mark.core

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_is_current():
    """A command, option or help text that changes changes the page: `make docs` writes it."""
    assert PAGE.read_text() == command_reference()
