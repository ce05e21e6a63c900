"""The transcript of a rollout: each message once, each step after its response, tool results with their calls."""

from collections.abc import Iterator, Sequence

import msgspec

from rolltrace.trace.field_types import Range
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step


class TranscriptMessage(msgspec.Struct):
    """A message of the conversation."""

    message: Message
    index: int | None
    """Its index in the record's `messages`; None for a response that is not in the conversation."""
    step: int | None = None
    """The step whose response it is."""
    call_numbers: tuple[int, ...] = ()
    """The number of each of its tool calls, counted from 1 through the rollout."""
    answers_call: int | None = None
    """The number of the tool call that this tool message answers."""


class TranscriptStep(msgspec.Struct):
    """A step."""

    step: Step


class TranscriptNote(msgspec.Struct):
    """A remark about the transcript itself."""

    text: str


TranscriptEvent = TranscriptMessage | TranscriptStep | TranscriptNote


def transcript_events(rollout: Rollout) -> list[TranscriptEvent]:
    """Return everything that happened, in order."""
    builder = _TranscriptBuilder(rollout)
    events = [*builder.conversation(), *builder.other_messages()]
    _pair_tool_calls([event for event in events if isinstance(event, TranscriptMessage)])
    return events


def messages_in_order(rollout: Rollout) -> tuple[Message, ...]:
    """Return all prompts and responses, each message once, also if the environment replaced its history.

    Empty if the policy never answered.
    """
    events = _TranscriptBuilder(rollout).conversation() if rollout.steps else ()
    return tuple(event.message for event in events if isinstance(event, TranscriptMessage))


def first_prompt(rollout: Rollout) -> tuple[Message, ...]:
    """Return the messages of the first prompt, each once, or the conversation at the end if no prompt was sent."""
    pending = rollout.final if rollout.pending_prompt is None else rollout.pending_prompt
    prompt = rollout.steps[0].prompt if rollout.steps else pending
    indexes = dict.fromkeys(index for first, last in prompt for index in range(first, last))
    return tuple(map(rollout.messages.__getitem__, indexes))


def shared_prompt(rollouts: Sequence[Rollout]) -> tuple[Message, ...]:
    """Return the messages with which every first prompt begins; rollouts without a prompt are ignored."""
    prompts = [prompt for rollout in rollouts if (prompt := first_prompt(rollout))]
    if not prompts:
        return ()
    length = min(map(len, prompts))
    for index in range(length):
        if any(prompt[index] != prompts[0][index] for prompt in prompts[1:]):
            return prompts[0][:index]
    return prompts[0][:length]


def final_conversation(rollout: Rollout) -> tuple[Message, ...]:
    """Return the conversation at the end, followed by the last response if the environment removed it."""
    if not rollout.steps or isinstance(rollout.steps[-1].response, int):
        return rollout.conversation
    return *rollout.conversation, rollout.steps[-1].trace.policy_response


class _TranscriptBuilder:
    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._emitted: set[int] = set()
        self._emitted_below = 0
        """All messages below this index were emitted, so that a growing conversation is read in one pass."""
        self._previous: list[Range] = []
        """The previous prompt and its response."""

    def conversation(self) -> Iterator[TranscriptEvent]:
        rollout = self._rollout
        for step in rollout.steps:
            yield from self._prompt(step.prompt, f"step {step.step} was sent")
            yield from self._response(step)
            yield TranscriptStep(step)
        if rollout.pending_prompt is not None:
            yield from self._prompt(rollout.pending_prompt, "the policy was sent")
            yield TranscriptNote("This was sent to the policy, and no step came of it.")
        elif rollout.final:
            yield from self._prompt(rollout.final, "the conversation ended as")

    def other_messages(self) -> Iterator[TranscriptEvent]:
        others = [index for index in range(len(self._rollout.messages)) if index not in self._emitted]
        if others:
            yield TranscriptNote("Messages that were in no prompt:")
            yield from map(self._emit, others)

    def _prompt(self, prompt: Sequence[Range], what: str) -> Iterator[TranscriptEvent]:
        """Yield the new messages of a prompt, after a note if it lacks messages of the previous prompt."""
        count = len(self._rollout.messages)
        ranges = [(max(first, 0), min(last, count)) for first, last in prompt]
        if not _includes(ranges, self._previous):
            yield TranscriptNote(f"Here {what} messages {ranges_text(prompt)}, and no longer all of the above.")
        self._previous = ranges
        for first, last in ranges:
            for index in range(max(first, self._emitted_below), last):
                if index not in self._emitted:
                    yield self._emit(index)

    def _response(self, step: Step) -> Iterator[TranscriptEvent]:
        response = step.response
        if isinstance(response, Message):
            yield TranscriptMessage(response, None, step.step)
        elif 0 <= response < len(self._rollout.messages):
            if response not in self._emitted:
                self._previous.append((response, response + 1))
            yield self._emit(response, step.step)

    def _emit(self, index: int, step: int | None = None) -> TranscriptMessage:
        self._emitted.add(index)
        while self._emitted_below in self._emitted:
            self._emitted_below += 1
        return TranscriptMessage(self._rollout.messages[index], index, step)


def _includes(ranges: Sequence[Range], others: Sequence[Range]) -> bool:
    """Return whether `ranges` contain every index of `others`."""
    ordered = sorted(ranges)
    position = included_below = 0
    for first, last in sorted(others):
        included_below = max(included_below, first)
        while included_below < last:
            while position < len(ordered) and ordered[position][1] <= included_below:
                position += 1
            if position == len(ordered) or ordered[position][0] > included_below:
                return False
            included_below = ordered[position][1]
    return True


def ranges_text(ranges: Sequence[Range]) -> str:
    """Format ranges of messages for people, both ends included."""
    spans = [f"{first}" if last - first == 1 else f"{first}–{last - 1}" for first, last in ranges if last > first]
    return ", ".join(spans) or "none"


def _pair_tool_calls(messages: Sequence[TranscriptMessage]) -> None:
    """Number the tool calls, and find the call of each tool message: by id, else the first that is open.

    A tool message that the environment edited appears twice; both answer the same call.
    """
    open_calls: dict[int, str | None] = {}
    answered: dict[str, int] = {}
    count = 0
    for event in messages:
        if event.message.role == "tool":
            call_id = event.message.tool_call_id
            number = next((number for number, name in open_calls.items() if call_id in (None, name)), None)
            if number is not None:
                del open_calls[number]
                if call_id is not None:
                    answered[call_id] = number
            elif call_id is not None:
                number = answered.get(call_id)
            event.answers_call = number
        event.call_numbers = tuple(range(count + 1, count + 1 + len(event.message.tool_calls)))
        count += len(event.call_numbers)
        open_calls.update(
            (number, call.id) for number, call in zip(event.call_numbers, event.message.tool_calls, strict=True)
        )
