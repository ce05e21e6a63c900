"""A run for the bridges to record into."""

import pytest

from unexplained_findings import explained_run


@pytest.fixture
def run(request, tmp_path):
    """A run that is being written."""
    with explained_run(request, tmp_path / "run") as writer:
        yield writer
