"""The order in which a rollout is told: each message once, each step after its answer, tools' answers with calls."""

from collections.abc import Iterator, Sequence

import msgspec

from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Range, Rollout, Step


class TranscriptMessage(msgspec.Struct):
    """A message of the conversation."""

    message: Message
    index: int | None
    """Its index in the record's `messages`; None for a response that the conversation did not keep."""
    step: int | None = None
    """The step whose answer it is."""
    call_numbers: tuple[int, ...] = ()
    """The number of each of its tool calls, counting from 1 through the rollout."""
    answers_call: int | None = None
    """In a tool's answer, the number of the call it answers."""


class TranscriptStep(msgspec.Struct):
    """A step that was taken."""

    step: Step


class TranscriptNote(msgspec.Struct):
    """Something about the telling itself."""

    text: str


TranscriptEvent = TranscriptMessage | TranscriptStep | TranscriptNote


def transcript_events(rollout: Rollout) -> list[TranscriptEvent]:
    """What happened, in order."""
    events = list(_TranscriptBuilder(rollout).tell())
    _pair_tools([event for event in events if isinstance(event, TranscriptMessage)])
    return events


class _TranscriptBuilder:
    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._told: set[int] = set()
        self._left_out: set[int] = set()
        """Messages that were told and are not in the latest prompt."""

    def tell(self) -> Iterator[TranscriptEvent]:
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
        rest = [index for index in range(len(rollout.messages)) if index not in self._told]
        if rest:
            yield TranscriptNote("Messages that were in no prompt:")
            yield from map(self._say, rest)

    def _prompt(self, prompt: tuple[Range, ...], what: str) -> Iterator[TranscriptEvent]:
        """The messages of a prompt that are new, and a remark where old ones are missing from it."""
        count = len(self._rollout.messages)
        places = [place for first, last in prompt for place in range(max(first, 0), min(last, count))]
        left_out = self._told.difference(places)
        if left_out - self._left_out:
            yield TranscriptNote(f"Here {what} messages {ranges_text(prompt)}, and no longer all of the above.")
        self._left_out = left_out
        for place in places:
            if place not in self._told:
                yield self._say(place)

    def _response(self, step: Step) -> Iterator[TranscriptEvent]:
        if isinstance(step.response, Message):
            yield TranscriptMessage(step.response, None, step.step)
        elif 0 <= step.response < len(self._rollout.messages):
            yield self._say(step.response, step.step)

    def _say(self, index: int, step: int | None = None) -> TranscriptMessage:
        self._told.add(index)
        return TranscriptMessage(self._rollout.messages[index], index, step)


def ranges_text(ranges: Sequence[Range]) -> str:
    """Ranges for people, both ends included."""
    spans = [f"{first}" if last - first == 1 else f"{first}–{last - 1}" for first, last in ranges if last > first]
    return ", ".join(spans) or "none"


def _pair_tools(said: Sequence[TranscriptMessage]) -> None:
    """Number the calls, and find for each tool's answer its call: by id, else the first without an answer.

    An answer that was edited is told once more; it still answers the call that the first one did.
    """
    open_calls: dict[int, str | None] = {}
    answered: dict[str, int] = {}
    count = 0
    for event in said:
        if event.message.role == "tool":
            wanted = event.message.tool_call_id
            found = [number for number, call in open_calls.items() if wanted is None or call == wanted]
            if found:
                event.answers_call = found[0]
                del open_calls[found[0]]
                if wanted is not None:
                    answered[wanted] = found[0]
            elif wanted is not None:
                event.answers_call = answered.get(wanted)
        numbers = tuple(range(count + 1, count + 1 + len(event.message.tool_calls)))
        count += len(numbers)
        open_calls.update((number, call.id) for number, call in zip(numbers, event.message.tool_calls, strict=True))
        event.call_numbers = numbers
