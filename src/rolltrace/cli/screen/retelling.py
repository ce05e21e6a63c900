"""A conversation in a column, with the point marked at which it first differs from another."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import wrap_lines
from rolltrace.cli.screen.number_format import plural
from rolltrace.cli.screen.styles import ROLE_STYLES
from rolltrace.query.differences import Difference
from rolltrace.query.members import Member
from rolltrace.query.message_truncation import TruncatedMessage
from rolltrace.terminal_text import escape_line, escape_text
from rolltrace.trace.message import Message

MARK = "▸"
_MAX_CHARACTERS = 1_500
_MAX_MESSAGES = 40
_CONTEXT = 60
"""How much of a text that is the same is shown before the point where it differs."""
_REASONING = "┊ "


class _Piece(NamedTuple):
    """A text of a message: which it is, how it looks, and what stands before it."""

    field: str
    number: int | None
    text: str
    style: str = ""
    label: str = ""
    bar: str = ""


class Retelling:
    """Tells messages as lines; `full` leaves out nothing that an excerpt has."""

    def __init__(self, *, full: bool = False) -> None:
        self._full = full

    def conversation(self, member: Member, other: str | None, console: Console, width: int) -> list[Text]:
        """A member's messages, from the one on in which it differs from the member before it, where there is one."""
        difference = member.differs
        if difference is None and other is not None and not self._full:
            count = plural(len(member.messages) + member.omitted, "message")
            return _remark(f"… {count}, all as in {other}", console, width)
        first = 0 if difference is None or self._full else min(difference.message, len(member.messages))
        lines: list[Text] = []
        if first:
            lines += _remark(f"… {plural(first, 'message')} as in {other}", console, width)
        last = len(member.messages) if self._full else min(len(member.messages), first + _MAX_MESSAGES)
        for place in range(first, last):
            here = difference if difference is not None and difference.message == place else None
            lines += self.message(member.messages[place], console, width, difference=here, other=other)
        if difference is not None and difference.message >= len(member.messages) + member.omitted:
            lines += wrap_lines(Text(f"{MARK} ends here; {other} goes on", "bold yellow"), console, "", width)
        if rest := len(member.messages) - last + member.omitted:
            more = "" if self._full else ": --full shows more"
            lines += _remark(f"… {plural(rest, 'message')} more{more}", console, width)
        return lines

    def message(
        self,
        excerpt: TruncatedMessage,
        console: Console,
        width: int,
        indent: str = "",
        difference: Difference | None = None,
        other: str | None = None,
    ) -> list[Text]:
        """One message: who speaks, and what."""
        message = excerpt.message
        heading = Text().append(escape_line(message.role), ROLE_STYLES.get(message.role, "bold cyan"))
        if message.name:
            heading.append(f" {escape_line(message.name)}", "magenta")
        if difference is not None and not self._is_in(difference, message):
            heading.append(f" {MARK} differs from {other}", "bold yellow")
            difference = None
        lines = wrap_lines(heading, console, indent, width)
        for piece in _pieces(message):
            is_here = difference is not None and (piece.field, piece.number) == (difference.field, difference.number)
            start = difference.character if difference is not None and is_here else None
            text = self._text(piece, start, other)
            lines += wrap_lines(text, console, indent + "  " + piece.bar, width)
        if excerpt.omitted:
            lines += _remark(f"… {excerpt.omitted:,} characters more", console, width)
        return lines

    def _is_in(self, difference: Difference, message: Message) -> bool:
        """Whether the message has the text that differs, as long as that."""
        place = difference.field, difference.number
        texts = [piece.text for piece in _pieces(message) if (piece.field, piece.number) == place]
        return any(difference.character <= len(text) for text in texts)

    def _text(self, piece: _Piece, start: int | None, other: str | None) -> Text:
        """A text, cut to what can be read, with the mark where it starts to differ."""
        text = Text().append(piece.label, "magenta")
        first = 0
        if start is not None:
            first = 0 if self._full or start <= 2 * _CONTEXT else start - _CONTEXT
            if first:
                text.append(f"… {first:,} characters as in {other} … ", "italic dim")
            text.append(escape_text(piece.text[first:start]), "dim")
            text.append(MARK, "bold yellow")
            first = start
        last = len(piece.text) if self._full else first + _MAX_CHARACTERS
        text.append(escape_text(piece.text[first:last]), piece.style)
        if last < len(piece.text):
            text.append(f"… {len(piece.text) - last:,} characters more", "italic yellow")
        return text


def _pieces(message: Message) -> Iterator[_Piece]:
    if message.reasoning:
        yield _Piece("reasoning", None, message.reasoning, "italic dim", bar=_REASONING)
    if message.content:
        yield _Piece("content", None, message.content, "dim" if message.role == "system" else "")
    for number, call in enumerate(message.tool_calls):
        yield _Piece("tool_calls", number, call.arguments, label=f"→ {escape_line(call.name or '(no name)')} ")
    for number, part in enumerate(message.parts):
        if part.type != "text":
            carried = part.blob.name if part.blob is not None else part.text or part.url or ""
            yield _Piece("parts", number, carried, "cyan", label=f"[{escape_line(part.type)}] ")


def _remark(text: str, console: Console, width: int) -> list[Text]:
    return wrap_lines(Text(text, "italic yellow"), console, "", width)
