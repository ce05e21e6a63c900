"""The run that a bridge records into: checks it, and writes a trainer's numbers of tokens to it."""

from collections.abc import Sequence
from typing import Any

from rolltrace.errors import InputError
from rolltrace.store.writer import RunWriter


def require_run(run: Any) -> None:
    """Raise `InputError` if this is not a run to record into."""
    if not isinstance(run, RunWriter):
        raise InputError(f"Expected a run that is being written, got {type(run).__name__}: use rolltrace.create_run.")


def score_tokens(
    run: RunWriter, rollout: str, name: str, tokens: Sequence[Sequence[float] | None], producer: str
) -> None:
    """Score a rollout with a number for each sampled token, by step; None for a step without them.

    The score's value is the mean of all numbers; without any, nothing is recorded.
    """
    numbers = [number for step in tokens for number in step or ()]
    if numbers:
        run.score(rollout, name, sum(numbers) / len(numbers), data={"tokens": tokens}, producer=producer)
