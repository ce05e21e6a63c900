"""The garbage collector while rollouts are played: looked after, and given back as it was."""

import gc

import pytest

from rolltrace.jobs.gc_threshold import raised_gc_threshold


@pytest.fixture(autouse=True)
def _as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_threshold_is_raised_and_given_back():
    """Two jobs at once are one: the first to end takes nothing from the second."""
    gc.set_threshold(700, 10, 10)
    first, second = raised_gc_threshold(), raised_gc_threshold()
    first.__enter__()
    second.__enter__()
    assert gc.get_threshold()[0] > 10_000
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > 10_000
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 1_000_000])
def test_a_setting_of_the_users_own_stands(own):
    """A collector that is off, or looks more seldom still, is left as it is."""
    gc.set_threshold(own, 5, 5)
    with raised_gc_threshold():
        assert gc.get_threshold() == (own, 5, 5)
    assert gc.get_threshold() == (own, 5, 5)
