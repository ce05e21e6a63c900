"""The API key of an endpoint: read from the environment for each request, and redacted from each reply."""

import json
import os
import re
from typing import NoReturn

import msgspec

from rolltrace.errors import InputError, PolicyError

_MIN_LENGTH = 8
"""Shorter keys are placeholders, such as `EMPTY` for a server without keys, and may be words of an answer."""
_REPLACEMENT = b"[key]"
WITHHELD = b"[withheld: it contains the API key]"
_CHARACTER_CODE = re.compile(rb"\\u(?:00([0-9a-fA-F]{2})|[0-9a-fA-F]{0,3}\Z)")
"""A character below 256 as JSON may escape it; at the end of a text the code may be incomplete."""
_MAX_CODES = 1_000_000
"""A text with more of them is withheld without a search, because the search would take seconds."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvironmentApiKey:
    """A key in an environment variable, read for each request."""

    def __init__(self, variable: str) -> None:
        if not _NAME.fullmatch(variable):  # it may be a key, so the message does not repeat it
            raise InputError(
                "Expected key_variable to be the name of an environment variable, made of letters, digits and `_`, "
                "got something else: put the key into such a variable, and pass its name."
            )
        self._variable = variable
        self.advice: str | None = f"set the key in the environment variable {variable}"
        """What to do if the server refuses the key."""

    def read(self) -> str | None:
        """The key, if the environment has one."""
        key = os.environ.get(self._variable, "").strip()
        if not key:
            return None
        if not key.isascii() or not key.isprintable():
            raise PolicyError(f"Expected the key in {self._variable} to be printable ASCII on one line: set it again.")
        return key


class InMemoryApiKey:
    """The key of a server that this process started. It is not in the environment, which tools would inherit."""

    advice = None

    def __init__(self, key: str) -> None:
        self._key = key

    def read(self) -> str | None:
        """The key."""
        return self._key

    def __reduce__(self) -> NoReturn:
        raise TypeError("Expected a key in memory to stay in its process: it cannot be pickled.")


ApiKey = EnvironmentApiKey | InMemoryApiKey
"""The key of a server."""


def redact_key(body: bytes, key: str | None, *, is_cut: bool = False) -> bytes:
    """The bytes that a server sent without the key. If the key is escaped in them, all of them are withheld.

    With `is_cut`, the text may end in the middle of the key.
    """
    if key is None or len(key) < _MIN_LENGTH:
        return body
    return _redact(_as_utf8(body), key.encode(), is_cut)


def redact_key_in_text(text: str, key: str | None) -> str:
    """The same for a complete text."""
    if key is None or len(key) < _MIN_LENGTH:
        return text
    return _redact(text.encode("utf-8", "replace"), key.encode(), is_cut=False).decode("utf-8", "replace")


def _redact(body: bytes, key: bytes, is_cut: bool) -> bytes:
    for plain in {key, msgspec.json.encode(key.decode())[1:-1]}:
        body = body.replace(plain, _REPLACEMENT)
    if not is_cut and b"\\" not in body:
        return body
    if body.count(b"\\u00") > _MAX_CODES:
        return WITHHELD
    unescaped, bare_key = _unescape(body), key.replace(b"\\", b"")
    ends_in_key = is_cut and any(unescaped.endswith(bare_key[:length]) for length in range(_MIN_LENGTH, len(bare_key)))
    return WITHHELD if ends_in_key or bare_key in unescaped else body


def _unescape(body: bytes) -> bytes:
    """The text without JSON escapes, also those of JSON inside JSON."""
    decoded = _CHARACTER_CODE.sub(lambda code: bytes.fromhex(code[1].decode()) if code[1] else b"", body)
    return decoded.replace(b"\\", b"")


def _as_utf8(body: bytes) -> bytes:
    """The same in UTF-8, if it is in another encoding that JSON parsers detect."""
    encoding = json.detect_encoding(body)
    if encoding.startswith("utf-8"):
        return body
    return body.decode(encoding, "replace").encode("utf-8", "replace")
