"""The members of a group, truncated for a comparison side by side, and where they first differ."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import msgspec

from rolltrace.query.message_truncation import TruncatedMessage, truncate_messages
from rolltrace.query.reward_breakdown import Regrade, RewardTerm, regrades, reward_components, reward_terms
from rolltrace.trace.failure import Failure
from rolltrace.trace.json_numbers import Float
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.text_transform import is_hashed_text
from rolltrace.trace.transcript import TranscriptMessage, first_prompt, transcript_events

Field = Literal["role", "reasoning", "content", "tool_calls", "parts"]

_ORDER: tuple[Field, ...] = ("role", "reasoning", "content", "tool_calls", "parts")
"""The order in which a reader sees them."""


class Difference(msgspec.Struct, frozen=True):
    """Where a member's text first differs from another's."""

    message: int
    """The index in the member's `messages`, counting omitted ones; the end of the list if only the other goes on."""
    character: int
    """The offset in the text that differs, in code points of the whole text; 0 if the text is hashed."""
    of: str
    """The id of the member that it was compared with."""
    field: Field = "content"
    """Which text of the message differs; for `tool_calls`, the arguments."""
    number: int | None = None
    """The index of the tool call or part."""


class _DiffField(NamedTuple):
    """One text of a message, and the field that holds it."""

    field: Field
    number: int | None
    label: str
    text: str = ""


def first_difference(own: Sequence[Message], others: Sequence[Message], of: str) -> Difference | None:
    """Where two lists of messages first differ, or None if a reader sees the same text in both.

    Identifiers, such as the id of a tool call, are not compared.
    """
    for index, (one, other) in enumerate(zip_longest(own, others)):
        if one is None or other is None:
            return Difference(index, 0, of, "role")
        if (difference := _message_difference(one, other)) is not None:
            text, character = difference
            return Difference(index, character, of, text.field, text.number)
    return None


def _message_difference(one: Message, other: Message) -> tuple[_DiffField, int] | None:
    """The first text in which two messages differ, and the length of the prefix that they share in it."""
    for mine, theirs in zip_longest(_texts(one), _texts(other)):
        if mine == theirs:
            continue
        if mine is None or theirs is None or mine[:2] != theirs[:2]:
            return _earlier(mine, theirs), 0
        return mine, _common_prefix_length(mine.text, theirs.text) if mine.label == theirs.label else 0
    return None


def _texts(message: Message) -> Iterator[_DiffField]:
    """The texts of a message, in the order in which a reader sees them."""
    yield _DiffField("role", None, f"{message.role}\n{message.name or ''}")
    if message.reasoning:
        yield _DiffField("reasoning", None, "", message.reasoning)
    if message.content:
        yield _DiffField("content", None, "", message.content)
    for number, call in enumerate(message.tool_calls):
        yield _DiffField("tool_calls", number, call.name, call.arguments)
    for number, part in enumerate(message.parts):
        yield _DiffField("parts", number, part.type, part.blob.name if part.blob else part.text or part.url or "")


def _earlier(mine: _DiffField | None, theirs: _DiffField | None) -> _DiffField:
    """Of two texts in different fields, the one that a reader sees first: the other message lacks it."""
    texts = [text for text in (mine, theirs) if text is not None]
    return min(texts, key=lambda text: (_ORDER.index(text.field), text.number or 0))


def _common_prefix_length(one: str, other: str) -> int:
    """The length of the common prefix of two texts, by bisection over slices; 0 if one is hashed."""
    if is_hashed_text(one) or is_hashed_text(other):
        return 0
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a group."""

    id: str
    index: int | None
    episode: int | None
    seat: int | None
    attempt: int
    policy: str
    policy_version: int | str | None
    status: str
    stop_reason: str
    error: Failure | None
    """Why it failed, or why its group's grade is missing."""
    reward: Float | None
    advantage: Float | None
    """The reward minus the mean of the group."""
    terms: tuple[RewardTerm, ...]
    """The terms whose sum is the reward; without a reward, the terms that are known so far."""
    reward_data: dict[str, Float]
    """The numbers behind the reward: summed over the steps, and from the graders."""
    scores: dict[str, Float | None]
    """Other late scores, the latest of each name."""
    regrades: tuple[Regrade, ...]
    """Those of them that `rolltrace regrade` wrote, with the reward before."""
    messages: tuple[TruncatedMessage, ...]
    """The conversation after the shared prompt, in order."""
    omitted: int
    """How many further messages were left out."""
    steps: int
    prompt_tokens: int | None
    completion_tokens: int | None
    """The sum over the steps with known usage; None if no step has any."""
    seconds: float
    differs: Difference | None
    """Where it first differs from the member that it is compared with; None if there is no such member, or no
    difference."""


class MemberTranscript(NamedTuple):
    """A rollout, and its messages in order."""

    rollout: Rollout
    messages: list[TranscriptMessage]
    prompt_length: int
    """How many of the messages are its first prompt."""


def member_transcript(rollout: Rollout) -> MemberTranscript:
    """The messages of a rollout: the first prompt, then the rest of the conversation."""
    messages = [event for event in transcript_events(rollout) if isinstance(event, TranscriptMessage)]
    return MemberTranscript(rollout, messages, len(first_prompt(rollout)))


def compare_member(
    transcript: MemberTranscript, other: MemberTranscript | None, shared: int, mean: float | None
) -> Member:
    """Compare one member with another, unless it is the same; `shared` is the length of the shared prompt."""
    rollout, own = transcript.rollout, own_messages(transcript, shared)
    reward, total = rollout.reward, rollout.reward_score
    messages = truncate_messages(own)
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
        regrades=regrades(rollout),
        messages=messages,
        omitted=len(own) - len(messages),
        steps=len(rollout.steps),
        prompt_tokens=_tokens(rollout, "prompt_tokens"),
        completion_tokens=_tokens(rollout, "completion_tokens"),
        seconds=rollout.seconds,
        differs=None if other is None or other.rollout.id == rollout.id else _difference(own, other, shared),
    )


def own_messages(transcript: MemberTranscript, shared: int) -> list[TranscriptMessage]:
    """The messages of a member after the shared prompt."""
    return transcript.messages[shared if transcript.prompt_length else 0 :]


def _difference(own: Sequence[TranscriptMessage], other: MemberTranscript, shared: int) -> Difference | None:
    others = own_messages(other, shared)
    return first_difference([one.message for one in own], [one.message for one in others], other.rollout.id)


def _tokens(rollout: Rollout, name: str) -> int | None:
    counts = [getattr(step.usage, name) for step in rollout.steps if step.usage is not None]
    return sum(counts) if counts else None
