"""Settings and fixtures of all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from file_reads import FileReads

# Each scoring process imports its packages itself, which takes longer than what tests have it score.
os.environ.setdefault("ROLLTRACE_WORKERS", "1")
# Derived files are signed with a key of the tests', so that none is made in the user's configuration.
os.environ["ROLLTRACE_CACHE_KEY"] = "tests"
# A shell lets what it starts in the background ignore these signals, and so would the processes that tests interrupt.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# A slow machine is no failure: neither a deadline per example nor the speed of drawing them is asserted.
settings.register_profile("slow", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("normal", settings.get_profile("slow"), max_examples=25)
settings.load_profile("normal")  # `make test-slow` chooses the other one


@pytest.fixture
def file_reads(monkeypatch: pytest.MonkeyPatch) -> FileReads:
    """The files that this process opens and reads during a test."""
    return FileReads(monkeypatch)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script `benchmarks/scale_simulator.py` as a module."""
    folder = Path(__file__).parents[1] / "benchmarks"
    if not folder.exists():
        pytest.skip("the benchmarks are in the checkout")
    monkeypatch.syspath_prepend(folder)
    import scale_simulator

    yield scale_simulator
    for name in ("scale_simulator", "measure"):
        sys.modules.pop(name, None)
