"""The key of an endpoint: read from the environment when it is sent, and taken out of whatever comes back."""

import os
import re
from typing import NoReturn

import msgspec

from rolltrace.errors import InputError, PolicyError

_SHORTEST = 8
"""Shorter ones stand in for a key where a server asks for none, such as `EMPTY`; they may be words of an answer."""
_STAND_IN = b"[key]"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Key:
    """Knows the key of a server, and what to do where the server refuses it."""

    advice: str | None = None

    def read(self) -> str | None:
        """The key, if there is one."""
        raise NotImplementedError


class EnvironmentKey(Key):
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


class HeldKey(Key):
    """The key of a server that this process has started itself; it is in no environment, which tools would inherit."""

    def __init__(self, key: str) -> None:
        self._key = key

    def read(self) -> str | None:
        """The key."""
        return self._key

    def __reduce__(self) -> NoReturn:
        raise TypeError("Expected a held key to stay in its process: it cannot be pickled.")


def without_key(body: bytes, key: str | None) -> bytes:
    """What a server sent, less the key, should it have echoed that."""
    if key is None or len(key) < _SHORTEST:
        return body
    secret = key.encode()
    if b"\\u00" in body or b"\\/" in body:  # the key may be written with escapes
        plain = _with_plain_escapes(body)
        body = plain if secret in plain else body
    for written in {secret, msgspec.json.encode(key)[1:-1]}:
        if written in body:
            body = body.replace(written, _STAND_IN)
    return body


def _with_plain_escapes(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body
