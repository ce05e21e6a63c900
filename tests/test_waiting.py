"""Time that is not a rollout's own is told to the innermost who listens."""

from contextlib import contextmanager

from rolltrace.waiting import Pausing, waiting


def test_who_hears_of_a_wait():
    """Whoever plays hears of the waits in its own block, and of no others."""
    heard = []

    def listener(name):
        @contextmanager
        def pause():
            heard.append(name)
            yield

        return pause

    with Pausing(listener("outer")):
        with Pausing(listener("inner")), waiting():
            pass
        with waiting():
            pass
    with waiting():
        pass
    assert heard == ["inner", "outer"]
