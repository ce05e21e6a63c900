"""The key of an endpoint: read from the environment when it is sent, and taken out of whatever comes back."""

import os

import msgspec

from rolltrace.errors import PolicyError

_SHORTEST = 8
"""Shorter ones stand in for a key where a server asks for none, such as `EMPTY`; they may be words of an answer."""
_STAND_IN = "[key]"


def read_key(variable: str) -> str | None:
    """The key, if the environment has one."""
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable():
        raise PolicyError(f"Expected the key in {variable} to be plain characters on one line: set it again.")
    return key


def without_key(body: bytes, key: str | None) -> bytes:
    """What a server sent, less the key, should it have echoed that."""
    if key is None or len(key) < _SHORTEST:
        return body
    if b"\\u00" in body or b"\\/" in body:  # the key may be written with escapes
        body = _with_plain_escapes(body)
    secret = key.encode()
    if secret in body:
        body = body.replace(secret, _STAND_IN.encode())
    escaped = msgspec.json.encode(key)[1:-1]
    return body.replace(escaped, _STAND_IN.encode()) if escaped in body else body


def _with_plain_escapes(body: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body
