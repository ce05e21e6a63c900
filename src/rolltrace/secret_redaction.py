"""Replaces arguments and texts that look like secrets by a placeholder."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

PLACEHOLDER = "[redacted]"

_SECRET_WORDS = frozenset(
    {
        "secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "authorization", "bearer",
        "apikey", "apikeys",
    }
)  # fmt: skip
"""A name with one of these words is that of a secret."""
_LAST_WORDS = frozenset({"key", "token", "auth", "cookie", "jwt", "pat"})
"""A name that ends in one of these is that of a secret, unless the word before is in `_HARMLESS_BEFORE`."""
_PLURALS = frozenset({"keys", "tokens"})
"""Secrets only after a word in `_BEFORE_PLURALS`, because `max_tokens` is a number; `keys` alone is a secret too."""
_BEFORE_PLURALS = frozenset({"api", "access", "auth", "private", "refresh", "session"})
_HARMLESS_BEFORE = frozenset(
    {
        "answer", "bos", "end", "eos", "foreign", "group", "mask", "pad", "primary", "public", "sep", "sort", "special",
        "start", "stop", "unk",
    }
)  # fmt: skip
_NEVER_SECRET = frozenset({int, float, bool, type(None)})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")

_PAIR = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]+)=(?:(?!,[A-Za-z_][A-Za-z0-9_]*=)[^&\n])+")
"""`NAME=VALUE` inside a text, such as an argument of a policy's specification. A value ends before `,NAME=`.

A match begins only at the start of a name: searching from each letter of a long word takes quadratic time."""
_JSON_PAIR = re.compile(r'"([A-Za-z_][A-Za-z0-9_-]*)"(\s*:\s*)"(?:[^"\\]|\\.)+"')
"""`"NAME": "VALUE"` inside a text, such as an argument in JSON."""
_VALUES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[A-Za-z0-9_-]{8,}|gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}|"
    r"hf_[A-Za-z0-9]{16,}|xox[abeprs]-[A-Za-z0-9-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{30,}|"
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.DOTALL,
)
"""Values that are secrets under any name: keys of well-known services, tokens, passwords in URLs."""
_MAX_JSON_LENGTH = 1_000_000
_MAX_JSON_DEPTH = 50


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether an argument of this name holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    before = words[-2] if len(words) > 1 else ""
    if not _SECRET_WORDS.isdisjoint(words) or words == ["keys"]:
        return True
    if words[-1] in _PLURALS:
        return before in _BEFORE_PLURALS
    return words[-1] in _LAST_WORDS and before not in _HARMLESS_BEFORE


@lru_cache(maxsize=256)
def redact_text(text: str) -> str:
    """The text without values that look like secrets, and without the values of secret names."""
    if (redacted := _redact_json(text)) is not None:
        return _VALUES.sub(PLACEHOLDER, redacted)  # keys of objects too
    text = _VALUES.sub(PLACEHOLDER, text)
    text = _PAIR.sub(lambda pair: f"{pair[1]}={PLACEHOLDER}" if is_secret_name(pair[1]) else pair[0], text)
    return _JSON_PAIR.sub(
        lambda pair: f'"{pair[1]}"{pair[2]}"{PLACEHOLDER}"' if is_secret_name(pair[1]) else pair[0], text
    )


def redact_mapping(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments with secrets replaced at any depth; the same object if there are no secrets. Numbers are kept."""
    changed = {}
    for name, value in arguments.items():
        if type(value) not in _NEVER_SECRET and (redacted := _redact_value(name, value)) is not value:
            changed[name] = redacted
    return {**arguments, **changed} if changed else arguments


def _redact_json(text: str) -> str | None:
    """The JSON object or list in a text, redacted; the same text if it has no secret, None if it is something else."""
    if len(text) > _MAX_JSON_LENGTH or not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        return None
    if _is_deep(value):
        return None
    redacted = _redact_value(None, value)
    return text if redacted == value else json.dumps(redacted)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A dict would hide all but the last value of a repeated key, and the text would keep them.
    if len(fields := dict(pairs)) < len(pairs):
        raise ValueError("Expected unique keys in an object, got a repeated one.")
    return fields


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(_MAX_JSON_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, dict | list)]
        if not (layer := [item for items in inner for item in items]):
            return False
    return True


def _redact_value(name: Any, value: Any) -> Any:
    is_secret = isinstance(name, str) and is_secret_name(name)
    if isinstance(value, str):
        if value and is_secret:
            return PLACEHOLDER
        return redacted if (redacted := redact_text(value)) != value else value
    if isinstance(value, Mapping):
        return dict.fromkeys(value, PLACEHOLDER) if value and is_secret else redact_mapping(value)
    if isinstance(value, list | tuple):
        items = [PLACEHOLDER if is_secret else _redact_value(name, item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
