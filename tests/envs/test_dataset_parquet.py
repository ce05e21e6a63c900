"""Datasets that need pyarrow, if it is not installed."""

from pathlib import Path

import pytest

from rolltrace.envs.dataset_sources import open_sources
from rolltrace.errors import InputError

pytestmark = pytest.mark.core

SHAPES = Path(__file__).parent / "shapes"


def test_a_saved_dataset_needs_pyarrow(monkeypatch):
    """Without pyarrow, the error says how to install it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'rolltrace\[frames\]'"):
        [list(source.rows) for source in open_sources(SHAPES / "gsm8k_saved", None)]
