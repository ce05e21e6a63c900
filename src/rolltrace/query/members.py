"""The members of a group, each at a length that can be put beside the others."""

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec

from rolltrace.query.differences import Difference, first_difference
from rolltrace.query.message_truncation import TruncatedMessage, truncate_messages
from rolltrace.query.reward_breakdown import RewardTerm, reward_components, reward_terms
from rolltrace.query.storyline import TranscriptMessage, transcript_events
from rolltrace.trace.rollout import Failure, Rollout


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group."""

    id: str
    index: int
    episode: int | None
    seat: int | None
    attempt: int
    policy: str
    policy_version: int | str | None
    status: str
    stop_reason: str
    error: Failure | None
    """Why it failed, or why its group's grade is missing."""
    reward: float | None
    advantage: float | None
    """The reward less the mean of the group."""
    terms: tuple[RewardTerm, ...]
    """What the reward is the sum of; where there is none, what is known of it so far."""
    reward_data: dict[str, float]
    """The numbers behind it: summed over the steps, and from the graders."""
    scores: dict[str, float | None]
    """Other late scores, the latest of each name."""
    messages: tuple[TruncatedMessage, ...]
    """The conversation after the shared prompt, in the order in which it was told."""
    omitted: int
    """How many messages come after those."""
    steps: int
    prompt_tokens: int | None
    completion_tokens: int | None
    """The sum over the steps that say it; None where none does."""
    seconds: float
    differs: Difference | None
    """Where it first differs from the member before it; None for the first, and where the two are the same."""


class MemberTranscript(NamedTuple):
    """A rollout, and the messages of it in the order in which they were told."""

    rollout: Rollout
    messages: list[TranscriptMessage]
    prompt_length: int
    """How many of them are its first prompt."""


def member_transcript(rollout: Rollout) -> MemberTranscript:
    """The messages of a rollout: the first prompt, then what came."""
    events = transcript_events(rollout)
    said = [event for event in events if isinstance(event, TranscriptMessage)]
    prompt = sum(
        1 for _ in takewhile(lambda event: isinstance(event, TranscriptMessage) and event.step is None, events)
    )
    return MemberTranscript(rollout, said, prompt)


def shared_prompt(told: Sequence[MemberTranscript]) -> list[TranscriptMessage]:
    """The messages with which every first prompt begins; a member that was never asked has none to share."""
    prompts = [one.messages[: one.prompt_length] for one in told if one.prompt_length]
    if not prompts:
        return []
    count = min(map(len, prompts))
    for place, first in enumerate(prompts[0][:count]):
        if any(prompt[place].message != first.message for prompt in prompts[1:]):
            return prompts[0][:place]
    return prompts[0][:count]


def compare_member(told: MemberTranscript, before: MemberTranscript | None, shared: int, mean: float | None) -> Member:
    """One member, compared with the one before it."""
    rollout, own = told.rollout, own_messages(told, shared)
    reward, total = rollout.reward, rollout.reward_score
    texts = truncate_messages(own)
    return Member(
        id=rollout.id,
        index=rollout.index,
        episode=rollout.episode,
        seat=rollout.seat,
        attempt=rollout.attempt,
        policy=rollout.policy,
        policy_version=rollout.policy_version,
        status=rollout.status.value,
        stop_reason=rollout.stop_reason,
        error=rollout.error or (None if total is None else total.error),
        reward=reward,
        advantage=None if reward is None or mean is None else reward - mean,
        terms=reward_terms(rollout),
        reward_data=reward_components(rollout),
        scores={score.name: score.value for score in rollout.scores if score.name != "reward"},
        messages=texts,
        omitted=len(own) - len(texts),
        steps=len(rollout.steps),
        prompt_tokens=_tokens(rollout, "prompt_tokens"),
        completion_tokens=_tokens(rollout, "completion_tokens"),
        seconds=rollout.seconds,
        differs=None if before is None else _difference(own, before, shared),
    )


def own_messages(told: MemberTranscript, shared: int) -> list[TranscriptMessage]:
    """What a member has of its own."""
    return told.messages[shared if told.prompt_length else 0 :]


def _difference(own: Sequence[TranscriptMessage], before: MemberTranscript, shared: int) -> Difference | None:
    others = own_messages(before, shared)
    return first_difference([one.message for one in own], [one.message for one in others], before.rollout.id)


def _tokens(rollout: Rollout, name: str) -> int | None:
    counts = [getattr(step.usage, name) for step in rollout.steps if step.usage is not None]
    return sum(counts) if counts else None
