"""A late fact about a rollout or a group; it is defined beside the rollout, whose reward it may give."""

from rolltrace.trace.rollout import GroupKey, Score

__all__ = ["GroupKey", "Score"]
