"""The key of an endpoint: read from the environment when it is sent, and taken out of whatever comes back."""

import os

import msgspec

from rolltrace.errors import PolicyError

_SHORTEST = 8
"""Shorter ones stand in for a key where a server asks for none, such as `EMPTY`; they may be words of an answer."""
_STAND_IN = b"[key]"
_HELD: dict[str, str] = {}
"""Keys of servers that this process has started itself; they are in no environment, which tools would inherit."""


def hold_key(key: str) -> str:
    """A name by which `read_key` knows this key, which no environment variable has."""
    for name, held in _HELD.items():
        if held == key:
            return name
    name = f"key {len(_HELD)} of this process"
    _HELD[name] = key
    return name


def read_key(variable: str) -> str | None:
    """The key, if the environment has one."""
    key = _HELD.get(variable) or os.environ.get(variable, "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable():
        raise PolicyError(f"Expected the key in {variable} to be plain characters on one line: set it again.")
    return key


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
