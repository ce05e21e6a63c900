"""Finds text in the calls of a record that the run holds already, so that it is stored once.

The work is linear in the text. Known texts are indexed by short windows at anchors: the places that follow
punctuation or a line feed. A call's text is looked up at its own anchors, and what is found there is extended in both
directions, so a message is found wherever a prompt quotes it, also in part.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rolltrace.trace.call import Call, Quote
from rolltrace.trace.field_types import Range
from rolltrace.trace.freeform import is_valid_utf8
from rolltrace.trace.message import Message
from rolltrace.trace.quote import TextSource
from rolltrace.trace.text_transform import is_hashed_text

MIN_QUOTE_CHARS = 64
"""Shorter text is not quoted: the reference would take as much room."""

_WINDOW = 32
_NEAR = 16
_STRIDE = 512
"""Two anchors that are indexed are at least this far apart; at the start of a text, `_NEAR`."""
_SAME_WINDOW = 16
"""So many texts with the same window are told apart, such as answers that begin alike."""
_MAX_ANCHORS = 20_000
"""In one text of a call so many anchors are looked up. What follows them is stored as it is."""
_REPLY_ANCHORS = 4
"""The same for a reply: one that the conversation goes on with is there from its start."""
_TEMPLATES = 4
"""So many earlier texts of the same role and place are compared, for the words that a grader repeats."""
_TAIL = 32

_ANCHOR = re.compile("[\n.,:;!?)\\]}>\"'`*\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]\\s*")
_SPACE = re.compile(r"\s*")


class _SourceText(NamedTuple):
    """A text that can be quoted, and a quote of all of it."""

    text: str
    quote: Quote


class _Match(NamedTuple):
    """Characters `first` to `last` of a text are those of another from `start` on."""

    first: int
    last: int
    known: _SourceText
    start: int


class _Template(NamedTuple):
    """The text of an earlier call, and which of its characters are quotes themselves."""

    known: _SourceText
    quoted: list[Range]


def add_quotes(calls: Sequence[Call], sources: Sequence[TextSource]) -> list[Call]:
    """The calls with quotes in place of text that the sources, or calls before, hold. Their text must be whole."""
    finder = _Finder(sources)
    return [finder.replace_known_text(number, call) for number, call in enumerate(calls)]


class _Finder:
    """Shortens the calls of one record, one after the other."""

    def __init__(self, sources: Sequence[TextSource]) -> None:
        self._sources = sources
        self._index: dict[str, list[tuple[_SourceText, int]]] | None = None
        self._clean: dict[int, bool] = {}
        """By identity of a known text, whether UTF-8 can hold it. Other text is changed when it is written."""
        self._templates: dict[tuple[str, int], list[_Template]] = {}
        self._tables: list[tuple[Quote, Sequence[Message]]] = [
            (Quote(rollout=source.rollout), source.messages) for source in sources
        ]
        """What whole messages can be quoted from: rollouts, then calls."""
        self._tables_placed = 0
        self._placed: dict[tuple[str, int, str], tuple[int, int]] = {}

    def replace_known_text(self, number: int, call: Call) -> Call:
        """The call with quotes where text is known. It can be quoted from now on."""
        quotes: list[Quote] = []
        prompt: list[Message] = []
        place = 0
        while place < len(call.prompt):
            if (run := self._run_at(call.prompt, place)) is not None:
                table, first, last = run
                quotes.append(replace(self._tables[table][0], prompt_index=len(prompt), message_range=(first, last)))
                place += last - first
                continue
            message = call.prompt[place]
            name = Quote(call_index=number, message_index=place)
            prompt.append(self._shorten(message, (call.role, place), name, len(prompt), quotes))
            place += 1
        reply = call.reply
        if reply is not None:
            reply = self._shorten(reply, (call.role, -1), None, None, quotes)
        self._tables.append((Quote(call_index=number), call.prompt))
        return replace(call, prompt=tuple(prompt), reply=reply, quotes=tuple(quotes))

    # Text

    def _shorten(
        self, message: Message, kind: tuple[str, int], name: Quote | None, place: int | None, quotes: list[Quote]
    ) -> Message:
        """The message without the text that is known, for which quotes are added."""
        if not _is_message(message) or len(message.content) < MIN_QUOTE_CHARS or not is_valid_utf8(message.content):
            return message
        text = message.content
        found = list(self._find(text, kind, _MAX_ANCHORS if name is not None else _REPLY_ANCHORS))
        if name is not None:
            self._remember_template(kind, _SourceText(text, name), found)
        if not found:
            return message
        own: list[str] = []
        done = size = 0
        for one in found:
            own.append(text[done : one.first])
            size += one.first - done
            done = one.last
            length = one.last - one.first
            is_whole = one.start == 0 and length == len(one.known.text)
            span = None if is_whole else (one.start, one.start + length)
            quotes.append(replace(one.known.quote, prompt_index=place, offset=size, char_range=span))
        return replace(message, content="".join((*own, text[done:])))

    def _find(self, text: str, kind: tuple[str, int], anchors: int) -> Iterator[_Match]:
        """What is known of a text, in order: words that an earlier call began and ended with, between them messages."""
        head, tail = self._shared(text, kind)
        first = 0 if head is None else head.last
        last = len(text) if tail is None else tail.first
        if head is not None:
            yield head
        if last - first >= MIN_QUOTE_CHARS:
            yield from self._quoted(text, first, last, anchors)
        if tail is not None:
            yield tail

    def _shared(self, text: str, kind: tuple[str, int]) -> tuple[_Match | None, _Match | None]:
        """The longest beginning and end that an earlier text of the same kind has too."""
        templates = self._templates.get(kind, ())
        head: _Match | None = None
        longest = MIN_QUOTE_CHARS - 1
        for known, quoted in templates:
            other = known.text
            if (
                other[longest : longest + 1] != text[longest : longest + 1]
                or other[:MIN_QUOTE_CHARS] != text[:MIN_QUOTE_CHARS]
            ):
                continue  # no longer than what was found before
            same = _common_start(text, 0, len(text), other, 0)
            if same > longest:
                longest, same = same, _word_end(text, _before_quote(same, quoted))
                head = _Match(0, same, known, 0) if same >= MIN_QUOTE_CHARS else head
        begun = 0 if head is None else head.last
        tail: _Match | None = None
        longest = MIN_QUOTE_CHARS - 1
        for known, quoted in templates:
            other = known.text
            if (
                other[-longest - 1 : -longest] != text[-longest - 1 : -longest]
                or other[-MIN_QUOTE_CHARS:] != text[-MIN_QUOTE_CHARS:]
            ):
                continue
            same = _common_end(text, len(text), other, len(other), len(text) - begun)
            if same > longest:
                longest, same = same, len(other) - _word_start(other, _after_quote(len(other) - same, quoted))
                tail = (
                    _Match(len(text) - same, len(text), known, len(other) - same) if same >= MIN_QUOTE_CHARS else tail
                )
        return head, tail

    def _remember_template(self, kind: tuple[str, int], known: _SourceText, found: Sequence[_Match]) -> None:
        templates = self._templates.setdefault(kind, [])
        own = len(known.text) - sum(one.last - one.first for one in found)
        if own >= MIN_QUOTE_CHARS and len(templates) < _TEMPLATES:
            templates.append(_Template(known, [(one.first, one.last) for one in found]))

    def _quoted(self, text: str, first: int, last: int, anchors: int) -> Iterator[_Match]:
        """The messages that are quoted in a text, in whole or in part."""
        index = self._indexed()
        if not index:
            return
        done, place = first, _start(text, first)
        for _ in range(anchors):
            if place + _WINDOW > last:
                return
            if (known := index.get(text[place : place + _WINDOW])) is not None:
                best = self._longest(text, place, known, done, last)
                if best is not None:
                    yield best
                    done, place = best.last, _start(text, best.last)
                    continue
            anchor = _ANCHOR.search(text, place, last)
            if anchor is None:
                return
            place = anchor.end()

    def _longest(
        self, text: str, place: int, known: Sequence[tuple[_SourceText, int]], first: int, last: int
    ) -> _Match | None:
        """The longest text around a place that is known, between `first` and `last`; best one that is there whole."""
        best: _Match | None = None
        for one, at in known:
            start, end = place - at, place - at + len(one.text)
            is_longer = best is None or end - start > best.last - best.first
            if is_longer and first <= start and end <= last and text.startswith(one.text, start):
                best = _Match(start, end, one, 0)
        if best is not None and self._is_clean(best.known):
            return best
        best = None
        for one, at in known:
            after = _common_start(text, place, last, one.text, at)
            before = _common_end(text, place, one.text, at, place - first)
            length = before + after
            if length >= (MIN_QUOTE_CHARS if best is None else best.last - best.first + 1) and self._is_clean(one):
                best = _Match(place - before, place + after, one, at - before)
        return best

    def _is_clean(self, known: _SourceText) -> bool:
        name = id(known)
        if name not in self._clean:
            self._clean[name] = is_valid_utf8(known.text)
        return self._clean[name]

    def _indexed(self) -> dict[str, list[tuple[_SourceText, int]]]:
        if self._index is None:
            self._index = {}
            for source in self._sources:
                for known in _texts_of(source):
                    _add_to_index(self._index, known)
        return self._index

    # Whole messages

    def _run_at(self, prompt: Sequence[Message], place: int) -> tuple[int, int, int] | None:
        """The messages of a rollout, or of an earlier call, that stand in the prompt from this place on."""
        if not _is_message(prompt[place]):
            return None
        found = self._places().get(_key_of(prompt[place]))
        if found is None:
            return None
        table, first = found
        messages = self._tables[table][1]
        length = size = 0
        while place + length < len(prompt) and first + length < len(messages):
            message = prompt[place + length]
            if message != messages[first + length] or not (_is_message(message) and _is_quotable(message)):
                break
            length += 1
            size += _size_of(message)
        return (table, first, first + length) if size >= 2 * MIN_QUOTE_CHARS else None

    def _places(self) -> dict[tuple[str, int, str], tuple[int, int]]:
        """Where messages are: the table and the number of the first of its kind."""
        for table in range(self._tables_placed, len(self._tables)):
            for number, message in enumerate(self._tables[table][1]):
                if _is_message(message):
                    self._placed.setdefault(_key_of(message), (table, number))
        self._tables_placed = len(self._tables)
        return self._placed


def _texts_of(source: TextSource) -> Iterator[_SourceText]:
    for number, message in enumerate(source.messages):
        yield from _texts_in(message, Quote(rollout=source.rollout, message_index=number))
    for step, message in source.responses.items():
        yield from _texts_in(message, Quote(rollout=source.rollout, step=step))


def _texts_in(message: Message, name: Quote) -> Iterator[_SourceText]:
    if _is_long(message.content):
        yield _SourceText(message.content, name)
    if _is_long(message.reasoning):
        yield _SourceText(message.reasoning or "", replace(name, reasoning=True))
    for number, call in enumerate(message.tool_calls):
        if _is_long(call.arguments):
            yield _SourceText(call.arguments, replace(name, tool_call_index=number))


def _is_long(text: str | None) -> bool:
    return type(text) is str and len(text) >= MIN_QUOTE_CHARS and not is_hashed_text(text)


def _add_to_index(index: dict[str, list[tuple[_SourceText, int]]], known: _SourceText) -> None:
    text = known.text
    place = _start(text, 0)
    if any(one.text == text for one, _ in index.get(text[place : place + _WINDOW], ())):
        return  # such as the prompt that all members of a group share
    while place + _WINDOW <= len(text):
        same = index.setdefault(text[place : place + _WINDOW], [])
        if len(same) < _SAME_WINDOW:
            same.append((known, place))
        anchor = _ANCHOR.search(text, place + (_NEAR if place < _STRIDE else _STRIDE))
        if anchor is None:
            return
        place = anchor.end()


def _start(text: str, place: int) -> int:
    """The first character from a place on that is no space."""
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def _common_start(text: str, place: int, last: int, other: str, at: int) -> int:
    """How many characters are the same from two places on; slices of growing, then shrinking size are compared."""
    most = min(last - place, len(other) - at)
    same, width, is_growing = 0, MIN_QUOTE_CHARS, True
    while width and same < most:
        width = min(width, most - same)
        if text[place + same : place + same + width] == other[at + same : at + same + width]:
            same += width
            width = width * 2 if is_growing else width // 2
        else:
            is_growing = False
            width //= 2
    while same < most and text[place + same] == other[at + same]:
        same += 1
    return same


def _common_end(text: str, place: int, other: str, at: int, most: int) -> int:
    """How many characters are the same before two places."""
    most = min(most, place, at)
    same, width, is_growing = 0, MIN_QUOTE_CHARS, True
    while width and same < most:
        width = min(width, most - same)
        if text[place - same - width : place - same] == other[at - same - width : at - same]:
            same += width
            width = width * 2 if is_growing else width // 2
        else:
            is_growing = False
            width //= 2
    while same < most and text[place - same - 1] == other[at - same - 1]:
        same += 1
    return same


def _before_quote(place: int, quoted: Sequence[Range]) -> int:
    """The place, or the start of the quote that it is in: a message that is quoted is not cut in two."""
    at = bisect_right(quoted, (place, -1)) - 1
    return quoted[at][0] if at >= 0 and quoted[at][0] < place < quoted[at][1] else place


def _after_quote(place: int, quoted: Sequence[Range]) -> int:
    at = bisect_right(quoted, (place, -1)) - 1
    return quoted[at][1] if at >= 0 and quoted[at][0] < place < quoted[at][1] else place


def _word_end(text: str, place: int) -> int:
    """The place, or the start of the word that it is in, so that people can read what is left."""
    if place == len(text):
        return place
    return 1 + max(
        text.rfind(" ", place - MIN_QUOTE_CHARS, place),
        text.rfind("\n", place - MIN_QUOTE_CHARS, place),
        place - MIN_QUOTE_CHARS - 1,
    )


def _word_start(text: str, place: int) -> int:
    """The place, or the end of the word that it is in."""
    if place == 0:
        return place
    ends = [at for sign in " \n" if (at := text.find(sign, place, place + MIN_QUOTE_CHARS)) >= 0]
    return min(ends, default=place)


def _is_message(message: object) -> bool:
    """Whether it is a message and not something that a hand-made call holds in its place."""
    return type(message) is Message and type(message.content) is str


def _key_of(message: Message) -> tuple[str, int, str]:
    """What equal messages have in common, at little cost."""
    return message.role, len(message.content), message.content[-_TAIL:]


def _size_of(message: Message) -> int:
    arguments = sum(len(call.arguments) + MIN_QUOTE_CHARS for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + arguments + MIN_QUOTE_CHARS * (1 + len(message.parts))


def _is_quotable(message: Message) -> bool:
    """Whether the message is written as it is: all its text is clean, and none looks like a hash."""
    texts = [message.role, message.content, message.tool_call_id, message.name, message.reasoning]
    for call in message.tool_calls:
        texts += (call.name, call.arguments, call.id, call.error)
    for part in message.parts:
        texts += (part.type, part.text, part.url, part.media_type)
    return not is_hashed_text(message.content) and all(text is None or is_valid_utf8(text) for text in texts)
