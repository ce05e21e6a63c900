"""The key of an endpoint: read from the environment when it is sent, and taken out of whatever comes back."""

import json
import os
import re
from enum import Enum, auto
from functools import lru_cache
from typing import NoReturn

import msgspec

from rolltrace.errors import InputError, PolicyError

_SHORTEST = 8
"""Shorter ones stand in for a key where a server asks for none, such as `EMPTY`; they may be words of an answer."""
_STAND_IN = b"[key]"
_BEGUN_ESCAPE = re.compile(rb"\\{0,8}(?:(?<=\\)u[0-9a-fA-F]{0,3})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ApiKey:
    """Knows the key of a server, and what to do where the server refuses it."""

    advice: str | None = None

    def read(self) -> str | None:
        """The key, if there is one."""
        raise NotImplementedError


class EnvironmentApiKey(ApiKey):
    """A key in an environment variable, read each time that it is sent."""

    def __init__(self, variable: str) -> None:
        if not _NAME.fullmatch(variable):  # it may be a key, so it is not repeated
            raise InputError(
                "Expected key_variable to be the name of an environment variable, made of letters, digits and `_`, "
                "got something else: put the key into such a variable, and give its name here."
            )
        self._variable = variable
        self.advice = f"set the key in the environment variable {variable}"

    def read(self) -> str | None:
        """The key, if the environment has one."""
        key = os.environ.get(self._variable, "").strip()
        if not key:
            return None
        if not key.isascii() or not key.isprintable():
            raise PolicyError(f"Expected the key in {self._variable} to be plain characters on one line: set it again.")
        return key


class InMemoryApiKey(ApiKey):
    """The key of a server that this process has started itself; it is in no environment, which tools would inherit."""

    def __init__(self, key: str) -> None:
        self._key = key

    def read(self) -> str | None:
        """The key."""
        return self._key

    def __reduce__(self) -> NoReturn:
        raise TypeError("Expected a held key to stay in its process: it cannot be pickled.")


class Cut(Enum):
    """Where a text may have only the beginning of a key."""

    NOWHERE = auto()
    AT_END = auto()
    ANYWHERE = auto()


def redact_key(body: bytes, key: str | None, cut: Cut = Cut.NOWHERE) -> bytes:
    """What a server sent, less the key, should it have echoed that, in whichever way JSON can write it."""
    if key is None or len(key) < _SHORTEST:
        return body
    return _redacted(_as_utf8(body), key, cut)


def redact_key_in_text(text: str, key: str | None, cut: Cut = Cut.NOWHERE) -> str:
    """A text, less the key and, where it may be cut, less what is left of it."""
    if key is None or len(key) < _SHORTEST:
        return text
    return _redacted(text.encode("utf-8", "replace"), key, cut).decode("utf-8", "replace")


def _redacted(body: bytes, key: str, cut: Cut) -> bytes:
    for written in {key.encode(), msgspec.json.encode(key)[1:-1]}:
        if written in body:
            body = body.replace(written, _STAND_IN)
    if cut is not Cut.NOWHERE or b"\\u00" in body or b"\\/" in body:
        body = _without_spelled(body, key, cut)
    return body


def _as_utf8(body: bytes) -> bytes:
    """The same in UTF-8, where it is in another encoding that readers of JSON find out by themselves."""
    encoding = json.detect_encoding(body)
    if encoding.startswith("utf-8"):
        return body
    return body.decode(encoding, "replace").encode("utf-8", "replace")


def _without_spelled(body: bytes, key: str, cut: Cut) -> bytes:
    """The body without keys of which some characters are escaped, as often as JSON may stand inside of JSON."""
    letters = _letters(key)
    kept, done = [], 0
    for found in _beginning(key).finditer(body):
        if found.start() < done:
            continue
        end, whole = found.end(), True
        for letter in letters[_SHORTEST:]:
            if (more := letter.match(body, end)) is None:
                whole = False
                break
            end = more.end()
        if not whole and cut is Cut.AT_END:
            rest = _BEGUN_ESCAPE.fullmatch(body, end)
            end, whole = len(body), rest is not None
        if whole or cut is Cut.ANYWHERE:
            kept += [body[done : found.start()], _STAND_IN]
            done = end
    return b"".join([*kept, body[done:]])


@lru_cache(maxsize=8)
def _letters(key: str) -> tuple[re.Pattern[bytes], ...]:
    return tuple(map(re.compile, _spellings(key)))


@lru_cache(maxsize=8)
def _beginning(key: str) -> re.Pattern[bytes]:
    return re.compile(b"".join(_spellings(key[:_SHORTEST])))


def _spellings(key: str) -> list[bytes]:
    """For each character the ways to write it; so many backslashes at most, so that no text takes long to search."""
    return [
        rb"(?:%b|\\{1,8}(?:%b|u00(?i:%02x)))" % (re.escape(letter), re.escape(letter), letter[0])
        for letter in (character.encode() for character in key)
    ]
