"""Time that is not a rollout's own is told to the innermost who listens."""

from contextlib import contextmanager

from rolltrace.deadline_pause import DeadlinePause, pause_deadline


def test_who_hears_of_a_wait():
    """Whoever plays hears of the waits in its own block, and of no others."""
    heard = []

    def listener(name):
        @contextmanager
        def pause():
            heard.append(name)
            yield

        return pause

    with DeadlinePause(listener("outer")):
        with DeadlinePause(listener("inner")), pause_deadline():
            pass
        with pause_deadline():
            pass
    with pause_deadline():
        pass
    assert heard == ["inner", "outer"]
