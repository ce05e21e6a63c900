"""Keeps rollouts in memory, where no run is written."""

from rolltrace.trace.codec import decode_rollout, decode_score, encode_score
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder, new_id
from rolltrace.trace.score import Score
from rolltrace.trace.sink import Sink

__all__ = ["MemorySink", "Sink"]


class MemorySink:
    """Keeps everything in memory: for tests, notebooks and loops that write nothing."""

    def __init__(self, run: str = "memory", session: str | None = None) -> None:
        self.run = run
        self.session = new_id() if session is None else session
        self.lines: list[EncodedRecord] = []
        self.scores: list[Score] = []

    def begin(self, header: Header) -> RolloutBuilder:
        """A draft that keeps everything."""
        return RolloutBuilder(header)

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        """Keep a rollout that has ended."""
        self.lines.append(rollout_builder.encode(outcome))

    def write_score(self, score: Score) -> None:
        """Keep a late fact."""
        self.scores.append(
            decode_score(encode_score(score, quotes=False))
        )  # as it is now, whatever becomes of its data

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts so far, in the order in which they ended."""
        return [decode_rollout(line.data) for line in self.lines]
