"""Hostile text made visible: nothing that a model or an environment wrote can steer a terminal."""

import json
import unicodedata
from typing import Any

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Hindi and many emoji cannot be written without them; they cannot hide or reorder text."""


class _Pictures(dict[int, str]):
    """What to show for each character; worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character
        if unicodedata.category(character) in _UNSEEN and character not in _JOINERS:
            shown = _picture(code)
        self[code] = shown
        return shown


def _picture(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)  # U+241B is a picture of escape
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


_line = _Pictures()
_text = _Pictures({0x09: "\t", 0x0A: "\n"})


def escape_text(text: str) -> str:
    """Text of many lines: control and formatting characters are shown, line feeds and tabs are kept."""
    return text if text.isprintable() else text.translate(_text)


def escape_line(text: str) -> str:
    """Text that must stay on one line, such as a name: line feeds and tabs are shown, too."""
    return text if text.isprintable() else text.translate(_line)


def escape_json(data: bytes) -> str:
    """JSON that means the same, with no character in it that could steer a terminal."""
    text = data.decode()
    return text if text.isprintable() else "".join(map(_escape, text))


def to_one_line(value: Any) -> str:
    """Any value of a record on one line."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return short_number(value)
    if isinstance(value, str):
        return escape_line(value)
    return escape_line(json.dumps(value, ensure_ascii=False, default=repr))


def short_number(value: float | None) -> str:
    """A number as people like to read it; the record keeps all of it."""
    if value is None:
        return "–"
    if isinstance(value, bool | int):
        return json.dumps(value)
    return f"{value:.6g}"


def format_duration(seconds: float) -> str:
    """A time as people like to read it."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _escape(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in _UNSEEN:
        return character
    return json.dumps(character)[1:-1]
