from contextlib import contextmanager

import pytest

from rolltrace.errors import GraderError, InputError
from rolltrace.graders.scoring_pool import run_scorer
from rolltrace.rollout_clock import RolloutClock


async def test_the_wait_for_a_scorer_is_not_the_rollouts_time():
    """The rollout's clock is paused while a scorer runs, which has limits of its own."""
    events = []

    class ObservedClock(RolloutClock):
        @contextmanager
        def paused(self):
            events.append("paused")
            yield
            events.append("resumed")

    with ObservedClock():
        assert await run_scorer(len, "abc", cpu_seconds=5.0) == 3
    assert events == ["paused", "resumed"]


async def test_a_failure_is_a_grader_error():
    """Whatever a scorer raises, or a limit that it exceeds, becomes a GraderError; an InputError stays one."""
    with pytest.raises(GraderError, match=r"^ZeroDivisionError: division by zero$"):
        await run_scorer(eval, "1 / 0", cpu_seconds=5)
    with pytest.raises(GraderError, match=r"^It took more than 0.1 seconds, and was stopped\.$"):
        await run_scorer(eval, "__import__('time').sleep(3600)", cpu_seconds=0.1)
    text = "(_ for _ in ()).throw(__import__('rolltrace.errors').errors.InputError('no such thing'))"
    with pytest.raises(InputError, match=r"^no such thing$"):
        await run_scorer(eval, text, cpu_seconds=5)
