"""ASCII replacements for the characters that screens are drawn with, for terminals without Unicode."""

import codecs
from typing import TextIO

_PLAIN = {
    "│": "|", "┊": ":", "─": "-", "└": "+", "┤": "+", "┬": "+",
    "·": "-", "…": "~", "–": "-", "−": "-", "±": "~", "×": "x", "→": ">", "■": "#", "✓": "+", "✗": "x",
    "▁": "_", "▂": "_", "▃": "o", "▄": "o", "▅": "O", "▆": "O", "▇": "#", "█": "#",
}  # fmt: skip
"""Each is replaced by one character, so that columns stay aligned."""
_NAME = "rolltrace.ascii_fallback"


def use_ascii_fallback(stream: TextIO) -> None:
    """Make a stream without Unicode write the replacements, and an escape for any other character it cannot encode."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower()
    if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_NAME)


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if character in _PLAIN:
        return _PLAIN[character], error.start + 1
    first = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(first)


codecs.register_error(_NAME, _plain)
