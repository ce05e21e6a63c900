"""Puts quoted text back into the calls of a record, so that a reader sees exactly what was sent."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rolltrace.trace.call import Call, Quote
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.text_transform import is_hashed_text

MAX_RESTORED_CHARS = 1 << 28
"""So much quoted text is put back into one record. Quotes of quotes could ask for any amount."""

_PLACEHOLDER = "[text not available: {}]"


class TextSource(NamedTuple):
    """The messages of one rollout, as they are recorded."""

    rollout: str | None
    """Its id; None for the rollout whose own calls quote it."""
    messages: Sequence[Message]
    responses: Mapping[int, Message]
    """By step, the responses that are not among the messages."""


FindTextSource = Callable[[str], TextSource | str]
"""Finds a rollout by id; a string says why it cannot be read."""


class _QuoteUnavailableError(Exception):
    """Why a quote cannot be put back."""


def text_source(rollout: Rollout, name: str | None = None) -> TextSource:
    """The text that calls can quote from a rollout; `name` is its id, for calls outside its own line."""
    return TextSource(name, rollout.messages, unlisted_responses(rollout.steps))


def unlisted_responses(steps: Iterable[Step]) -> dict[int, Message]:
    """By step, the responses that a rollout's `messages` do not hold."""
    return {step.step: step.response for step in steps if isinstance(step.response, Message)}


def rollout_unavailable(rollout: str) -> str:
    """The answer of a reader that has only the line itself."""
    return f"rollout {rollout} is not at hand"


def resolve_quotes(
    calls: Sequence[Call], own: TextSource | None, find: FindTextSource = rollout_unavailable
) -> tuple[Call, ...]:
    """The calls with their whole text. A quote that cannot be put back becomes a placeholder that says why."""
    if not any(call.quotes for call in calls):
        return tuple(calls)
    restorer = _Restorer(own, find)
    for call in calls:
        restorer.add(call)
    return tuple(restorer.calls)


class _Restorer:
    """Restores calls one after the other; a call may quote those before it."""

    def __init__(self, own: TextSource | None, find: FindTextSource) -> None:
        self.calls: list[Call] = []
        self._own = own
        self._find = find
        self._found: dict[str, TextSource | str] = {}
        self._room = MAX_RESTORED_CHARS

    def add(self, call: Call) -> None:
        """Restore one more call."""
        if not call.quotes:
            self.calls.append(call)
            return
        by_place: defaultdict[int | None, list[Quote]] = defaultdict(list)
        for quote in call.quotes:
            last = len(call.prompt)  # a place beyond the prompt is not written by us; what it quotes comes last
            by_place[None if quote.prompt_index is None else min(quote.prompt_index, last)].append(quote)
        prompt: list[Message] = []
        for place in range(len(call.prompt) + 1):
            quotes = by_place[place]
            for quote in quotes:
                if quote.offset is None:
                    prompt += self._whole(quote)
            if place < len(call.prompt):
                prompt.append(self._restored(call.prompt[place], quotes))
        reply = None if call.reply is None else self._restored(call.reply, by_place[None])
        self.calls.append(replace(call, prompt=tuple(prompt), reply=reply, quotes=()))

    def _restored(self, message: Message, quotes: Sequence[Quote]) -> Message:
        pieces: list[str] = []
        done = 0
        for quote in quotes:
            if quote.offset is not None:
                pieces += (message.content[done : quote.offset], self._text(quote))
                done = max(done, quote.offset)
        if not pieces:
            return message
        return replace(message, content="".join((*pieces, message.content[done:])))

    def _whole(self, quote: Quote) -> list[Message]:
        try:
            first, last = quote.message_range or (0, 0)
            messages = self._messages(quote)[0]
            if not 0 <= first < last <= len(messages):
                raise _QuoteUnavailableError(f"{_name_of(quote)} does not have messages {first} to {last}")
            whole = list(messages[first:last])
            for message in whole:
                _refuse_hashed(message.content, quote)
            self._take(sum(len(message.content) for message in whole), quote)
        except _QuoteUnavailableError as error:
            return [Message("user", _PLACEHOLDER.format(error))]
        return whole

    def _text(self, quote: Quote) -> str:
        try:
            text = self._quoted_text(quote)
            _refuse_hashed(text, quote)
            if quote.char_range is not None:
                first, last = quote.char_range
                if not 0 <= first <= last <= len(text):
                    raise _QuoteUnavailableError(
                        f"the quoted message of {_name_of(quote)} has only {len(text)} characters"
                    )
                text = text[first:last]
            self._take(len(text), quote)
        except _QuoteUnavailableError as error:
            return _PLACEHOLDER.format(error)
        return text

    def _quoted_text(self, quote: Quote) -> str:
        messages, responses = self._messages(quote)
        message: Message | None = None
        if quote.step is not None:
            message = responses.get(quote.step)
        elif quote.message_index is not None and 0 <= quote.message_index < len(messages):
            message = messages[quote.message_index]
        if message is None:
            what = (
                f"message {quote.message_index}" if quote.step is None else f"response of its own in step {quote.step}"
            )
            raise _QuoteUnavailableError(f"{_name_of(quote)} has no {what}")
        if quote.tool_call_index is not None:
            if not 0 <= quote.tool_call_index < len(message.tool_calls):
                raise _QuoteUnavailableError(
                    f"the quoted message of {_name_of(quote)} has no tool call {quote.tool_call_index}"
                )
            return message.tool_calls[quote.tool_call_index].arguments
        return (message.reasoning or "") if quote.reasoning else message.content

    def _messages(self, quote: Quote) -> tuple[Sequence[Message], Mapping[int, Message]]:
        if quote.call_index is not None:
            if not 0 <= quote.call_index < len(self.calls):
                raise _QuoteUnavailableError(f"there is no {_name_of(quote)} before this one")
            return self.calls[quote.call_index].prompt, {}
        source: TextSource | str | None = self._own
        if quote.rollout is not None:
            if quote.rollout not in self._found:
                self._found[quote.rollout] = self._find(quote.rollout)
            source = self._found[quote.rollout]
        if source is None:
            raise _QuoteUnavailableError("it does not say which rollout is quoted")
        if isinstance(source, str):
            raise _QuoteUnavailableError(source.replace("]", ")"))
        return source.messages, source.responses

    def _take(self, size: int, quote: Quote) -> None:
        if size > self._room:
            raise _QuoteUnavailableError(
                f"with {_name_of(quote)} the calls come to over {MAX_RESTORED_CHARS} characters"
            )
        self._room -= size


def _refuse_hashed(text: str, quote: Quote) -> None:
    """In another line such a text means that the line was recorded as numbers: text like it is never quoted."""
    if quote.rollout is not None and is_hashed_text(text):
        raise _QuoteUnavailableError(f"{_name_of(quote)} was recorded as numbers")


def _name_of(quote: Quote) -> str:
    if quote.call_index is not None:
        return f"call {quote.call_index}"
    return "this rollout" if quote.rollout is None else f"rollout {quote.rollout.replace(']', ')')}"
