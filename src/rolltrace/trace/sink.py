"""The interface that runners and recorders write finished rollouts and scores to."""

from typing import Protocol

from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Score


class OpenRollouts(Protocol):
    """Has rollouts in flight, such as a runner."""

    def record_cancelled(self) -> None:
        """Record every rollout in flight as cancelled, with the steps it has; a signal handler may call it."""
        ...


class Sink(Protocol):
    """Keeps rollouts and scores. No method waits on a disk or raises into a rollout."""

    @property
    def run(self) -> str:
        """The id of the run."""
        ...

    @property
    def session(self) -> str:
        """The id of this opening of the run."""
        ...

    def begin(self, header: Header) -> RolloutBuilder:
        """The builder of a rollout that starts now; the rollout is in flight until it has ended."""
        ...

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Keep a rollout that has ended."""
        ...

    def write_score(self, score: Score) -> None:
        """Keep a late fact."""
        ...
