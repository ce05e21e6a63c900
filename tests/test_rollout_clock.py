"""The clock of a rollout is paused while the rollout waits for others."""

from rolltrace.rollout_clock import RolloutClock, pause_deadline


async def test_a_pause_is_of_the_innermost_clock():
    """`pause_deadline` pauses the clock of the block that it is in, and of no other."""
    outer, inner = RolloutClock(), RolloutClock()
    async with outer.start(3600) as outer_timeout, inner.start(3600) as inner_timeout:

        def paused():
            return [timeout.when() is None for timeout in (outer_timeout, inner_timeout)]

        with outer:
            with inner, pause_deadline():
                assert paused() == [False, True]
            with pause_deadline():
                assert paused() == [True, False]
        with pause_deadline():
            assert paused() == [False, False]
