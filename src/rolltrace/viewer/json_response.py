"""JSON for the browser, in which integers that a browser would round are text."""

import re
from functools import partial

from rolltrace.trace.strict_json import MAX_BROWSER_INTEGER, encode_json, to_json_types

encode_response = partial(encode_json, for_browser=True)
to_browser_types = partial(to_json_types, for_browser=True)

_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{16,}(?![0-9.eE])")
_TEXT_OR_LONG_INTEGER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|' + _LONG_INTEGER.pattern)


def long_integers_as_text(json: bytes) -> bytes:
    """The same JSON, with text in place of integers that a browser would round."""
    return _TEXT_OR_LONG_INTEGER.sub(_quote_if_rounded, json) if _LONG_INTEGER.search(json) else json


def _quote_if_rounded(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token.startswith(b'"'):
        return token
    is_rounded = len(token) > 17 or not -MAX_BROWSER_INTEGER <= int(token) <= MAX_BROWSER_INTEGER
    return b'"%b"' % token if is_rounded else token
