"""The format score of a rollout's last response."""

import pytest

from rolltrace.envs.prompt_only import PromptOnlyEnv
from rolltrace.errors import GraderError
from rolltrace.graders.format_check import format_score
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.stop_reasons import Termination
from stage import Meddling, Remembering, Stage, said


async def played_rollout(completion, **settings):
    sink = MemorySink()
    runner = Runner(Remembering(completion, **settings), sink=sink, limits=Limits(context_length=10))
    async for _ in runner.play([Stage(lambda number: PromptOnlyEnv("q"))]):
        pass
    (rollout,) = sink.rollouts
    return rollout


def share_of_capitals(text):
    return sum(letter.isupper() for letter in text) / len(text)


@pytest.mark.parametrize(
    ("termination", "form", "checked"),
    [
        (Termination.EOS, 1.0, 0.75),
        (Termination.STOP_SEQUENCE, 1.0, 0.75),
        (Termination.TOOL_CALLS, 1.0, 0.75),
        (Termination.LENGTH, 0.0, 0.0),
        (Termination.MALFORMED, 0.0, 0.0),
    ],
)
async def test_format_score_by_termination(termination, form, checked):
    """The check's fractional score is kept; a truncated or malformed response scores 0, whatever the check says."""
    rollout = await played_rollout(said("ABCd", termination))
    assert format_score(rollout) == form
    assert format_score(rollout, share_of_capitals) == checked


async def test_the_last_response_counts():
    """In a conversation only the last response is checked."""
    sink = MemorySink()
    policy = Remembering(said("abcd"), said("ABcd"))
    async for _ in Runner(policy, sink=sink).play([Stage(lambda number: Meddling(turns=2))]):
        pass
    (rollout,) = sink.rollouts
    assert len(rollout.steps) == 2
    assert format_score(rollout, share_of_capitals) == 0.5


async def test_no_response_scores_zero():
    """A rollout without a response (its first prompt did not fit) scores 0."""
    rollout = await played_rollout(said("never"), tokens=lambda request: 1000)
    assert (rollout.steps, rollout.stop_reason) == ((), "context_overflow")
    assert format_score(rollout, share_of_capitals) == 0.0


@pytest.mark.parametrize("form", [float("nan"), float("inf"), -float("inf")])
async def test_a_format_score_that_is_not_finite_is_an_error(form):
    """A format check that returns no finite number raises GraderError."""
    rollout = await played_rollout(said("ABCd"))
    with pytest.raises(GraderError, match=rf"Expected a finite number from the format check, got {form}\."):
        format_score(rollout, lambda text: form)
