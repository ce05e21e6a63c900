"""A run for the bridges to record into."""

import pytest

import rolltrace


@pytest.fixture
def run(tmp_path):
    """A run that is being written."""
    with rolltrace.create_run(tmp_path / "run") as writer:
        yield writer
