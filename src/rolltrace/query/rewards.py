"""The reward of a rollout, which scores may have changed since its line was written."""

from collections.abc import Iterable

from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score


def latest_rewards(rollouts: Iterable[Rollout], scores: Iterable[Score]) -> dict[str, float | None]:
    """The reward of each rollout by id: its latest score named `reward`, else what its line says."""
    latest: dict[str, Score] = {}
    for score in scores:
        if score.name == "reward" and score.rollout is not None:
            before = latest.get(score.rollout)
            if before is None or score.at >= before.at:
                latest[score.rollout] = score
    return {rollout.id: latest[rollout.id].value if rollout.id in latest else rollout.reward for rollout in rollouts}
