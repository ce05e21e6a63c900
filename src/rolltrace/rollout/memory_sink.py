"""A sink that stores rollouts and scores in memory."""

from rolltrace.trace.codec import copy_score, decode_rollout
from rolltrace.trace.ids import new_id
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder
from rolltrace.trace.score import Score


class MemorySink:
    """Stores everything in memory, for tests, notebooks and loops that write no run."""

    def __init__(self, run: str = "memory", session: str | None = None) -> None:
        self.run = run
        self.session = new_id() if session is None else session
        self.lines: list[EncodedRecord] = []
        self.scores: list[Score] = []

    def begin(self, header: Header) -> RolloutBuilder:
        """A builder that records everything."""
        return RolloutBuilder(header)

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Store a rollout that has ended."""
        self.lines.append(rollout_builder.encode(outcome))

    def write_score(self, score: Score) -> None:
        """Store a score."""
        self.scores.append(copy_score(score))

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts so far, in the order in which they ended."""
        return [decode_rollout(line.data) for line in self.lines]
