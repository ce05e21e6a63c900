"""What a server's refusal means: a prompt that is too long, a failure that passes, or one that stays."""

from typing import Any
from urllib.parse import urlsplit

import msgspec

from rolltrace.errors import ContextOverflowError, PolicyError
from rolltrace.policies.endpoint.key import Key
from rolltrace.policies.endpoint.retry import TransientError

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "string_above_max_length"}
)
_OVERFLOW_WORDS = (
    "maximum context length",  # OpenAI, vLLM, SGLang
    "exceeds the available context size",  # llama.cpp
    "longer than the model's context length",  # SGLang
    "context length exceeded",
    "context window",
    "`inputs` tokens + `max_new_tokens` must be",  # TGI
    "`inputs` must have less than",
    "prompt is too long",
    "input is too long",
    "longer than the maximum model length",  # vLLM
    "maximum number of tokens allowed",
)
_OVERFLOW_STATUS = frozenset({400, 413, 422, 500})
"""Not 429: there, too many tokens are too many a minute."""
_PASSING_STATUS = frozenset({408, 409, 425, 429})
_LONGEST_MESSAGE = 500
_KEY_STATUS = frozenset({401, 403})
_NOT_FOUND = 404


def failure_of_status(status: int, body: bytes, *, where: str, key: Key, location: str | None = None) -> PolicyError:
    """The error for a reply whose status is not a success, or that says in its body that it is none."""
    raw = body.decode("utf-8", "replace")
    kind, message = _said(body, raw)
    error = _error(status, kind, message, where, key, location)
    error.raw = raw
    return error


def _error(status: int, kind: frozenset[str], message: str, where: str, key: Key, location: str | None) -> PolicyError:
    text = f"Expected an answer from {where}, got status {status}"
    if message:
        text += f": {message}"
    if status in _OVERFLOW_STATUS and _is_overflow(kind, message):
        return ContextOverflowError(f"The prompt does not fit: {message}")
    if "insufficient_quota" not in kind and (status in _PASSING_STATUS or status >= 500):
        return TransientError(text)
    if 300 <= status < 400:
        return PolicyError(f"{text}, a redirect{_elsewhere(location)}: it is not followed; give the final address.")
    advice = _advice(status, key)
    return PolicyError(f"{text}. To do: {advice}." if advice else text)


def _advice(status: int, key: Key) -> str | None:
    if status in _KEY_STATUS:
        return key.advice
    return "see whether the base URL and the model's name are right" if status == _NOT_FOUND else None


def _elsewhere(location: str | None) -> str:
    """The server that a redirect names; the rest of the address may hold what the client sent."""
    try:
        parts = urlsplit(location or "")
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    return f" to {parts.scheme}://{parts.hostname}{port}" if parts.hostname else ""


def _is_overflow(kind: frozenset[str], message: str) -> bool:
    lowered = message.lower()
    return bool(kind & _OVERFLOW_CODES) or any(words in lowered for words in _OVERFLOW_WORDS)


def _said(body: bytes, raw: str) -> tuple[frozenset[str], str]:
    """The codes and the message of an error, in whichever of the usual shapes; else the beginning of the text."""
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return frozenset(), _short(" ".join(raw[: 4 * _LONGEST_MESSAGE].split()))
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        said = said["error"]
    if not isinstance(said, dict):
        return frozenset(), _short(raw)
    kind = frozenset(value for name in ("code", "type", "error_type") if isinstance(value := said.get(name), str))
    for name in ("message", "error", "detail"):
        if isinstance(message := said.get(name), str):
            return kind, _short(message)
    return kind, _short(raw)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
