"""The signs that screens are drawn with, for terminals that lack them."""

import codecs
from typing import TextIO

_PLAIN = {
    "│": "|", "┊": ":", "─": "-", "└": "+", "┤": "+", "┬": "+",
    "·": "-", "…": "~", "–": "-", "−": "-", "±": "~", "×": "x", "→": ">", "■": "#", "✓": "+", "✗": "x",
    "▁": "_", "▂": "_", "▃": "o", "▄": "o", "▅": "O", "▆": "O", "▇": "#", "█": "#",
}  # fmt: skip
"""Each as one letter that every terminal has, so that what stands in columns stays there."""
_NAME = "rolltrace.signs"


def use_ascii_fallback(stream: TextIO) -> None:
    """Where a stream cannot hold a sign, let it write the plain one; any other letter that it lacks is escaped."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_NAME)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    if sign in _PLAIN:
        return _PLAIN[sign], error.start + 1
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(one)


codecs.register_error(_NAME, _plain)
