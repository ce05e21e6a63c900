"""Escapes control and formatting characters, so that untrusted text cannot steer a terminal."""

import json
import unicodedata

_ESCAPED_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = "\u200c\u200d"
"""Invisible, but Persian, Hindi and many emoji need them, and they cannot hide or reorder text."""


class _Replacements(dict[int, str]):
    """Cache of the text to show for each character, filled on first use."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_escaped = unicodedata.category(character) in _ESCAPED_CATEGORIES and character not in _JOINERS
        self[code] = _replacement(code) if is_escaped else character
        return self[code]


def _replacement(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)  # U+241B is the symbol for escape
    return "\u2421" if code == 0x7F else f"⟨U+{code:04X}⟩"


_line = _Replacements()
_text = _Replacements({0x09: "\t", 0x0A: "\n"})


def escape_text(text: str) -> str:
    """Escape control and formatting characters in text of several lines; line feeds and tabs are kept."""
    return text if text.isprintable() else text.translate(_text)


def escape_line(text: str) -> str:
    """Escape text that must stay on one line, such as a name: line feeds and tabs are escaped, too."""
    return text if text.isprintable() else text.translate(_line)


def escape_json(text: str) -> str:
    """Write every character of JSON text that is not printable, except line feeds, as a JSON escape sequence."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(character: str) -> str:
    return character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
