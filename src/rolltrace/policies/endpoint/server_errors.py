"""What a server's refusal means: a prompt that is too long, a failure that passes, or one that stays."""

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rolltrace.errors import ContextOverflowError, PolicyError
from rolltrace.policies.endpoint.api_key import ApiKey
from rolltrace.policies.endpoint.backoff import TransientError

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded", "string_above_max_length"}
)
_OVERFLOW_WORDS = (
    "exceeds the maximum allowed length",
    "maximum prompt length",
    "input length exceeds the context length",
    "greater than the context length",
    "exceeds maximum input length",
    "too many tokens",
    "maximum context length",  # OpenAI, vLLM, SGLang
    "exceeds the available context size",  # llama.cpp
    "longer than the model's context length",  # SGLang
    "context length exceeded",
    "`inputs` tokens + `max_new_tokens` must be",  # TGI
    "`inputs` must have less than",
    "prompt is too long",
    "input is too long",
    "longer than the maximum model length",  # vLLM
    "maximum number of tokens allowed",
)
_EXCESS_OF_WINDOW = re.compile(
    r"(?:exceed|too (?:long|large|big|many)|longer|larger|more than|greater|beyond|overflow|not fit|n't fit|maximum)"
    r".{0,200}(?:context window|max_seq_len)"
    r"|(?:context window|max_seq_len).{0,200}"
    r"(?:exceed|too (?:long|large|big|many|small)|longer|larger|more than|greater|beyond|overflow|full|maximum)",
    re.DOTALL,
)
"""Words of excess near them: a message may name the window or the setting for another reason."""
_MAX_SEARCHED = 100_000
_OVERFLOW_STATUS = frozenset({400, 413, 422, 500})
"""Not 429: there, too many tokens are too many a minute."""
_PASSING_STATUS = frozenset({408, 409, 425, 429})
_MAX_MESSAGE_CHARS = 500
_KEY_STATUS = frozenset({401, 403})
_NOT_FOUND = 404


def error_from_status(status: int, body: bytes, *, where: str, key: ApiKey, location: str | None = None) -> PolicyError:
    """The error for a reply whose status is not a success, or that says in its body that it is none."""
    raw = body.decode("utf-8", "replace")
    kind, message, whole = _said(body, raw)
    overflow = status in _OVERFLOW_STATUS and _is_overflow(kind, whole)
    error = _error(status, kind, _short(message), where, key, location, overflow)
    error.raw = raw
    return error


def _error(
    status: int, kind: frozenset[str], message: str, where: str, key: ApiKey, location: str | None, overflow: bool
) -> PolicyError:
    text = f"Expected an answer from {where}, got status {status}"
    if message:
        text += f": {message}"
    if overflow:
        return ContextOverflowError(f"The prompt does not fit: {message}")
    if "insufficient_quota" not in kind and (status in _PASSING_STATUS or status >= 500):
        return TransientError(text)
    if 300 <= status < 400:
        return PolicyError(f"{text}, a redirect{_elsewhere(location)}: it is not followed; give the final address.")
    advice = _advice(status, key)
    return PolicyError(f"{text}. To do: {advice}." if advice else text)


def _advice(status: int, key: ApiKey) -> str | None:
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
    lowered = message[:_MAX_SEARCHED].lower()
    if kind & _OVERFLOW_CODES or any(words in lowered for words in _OVERFLOW_WORDS):
        return True
    return _EXCESS_OF_WINDOW.search(lowered) is not None


def _said(body: bytes, raw: str) -> tuple[frozenset[str], str, str]:
    """The codes and the message of an error, in whichever of the usual shapes, and with what a gateway passes on.

    Where there is no message, it is the text.
    """
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        text = " ".join(raw[:_MAX_SEARCHED].split())
        return frozenset(), text, text
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        said = said["error"]
    if not isinstance(said, dict):
        return frozenset(), raw, raw
    kind = frozenset(value for name in ("code", "type", "error_type") if isinstance(value := said.get(name), str))
    for name in ("message", "error", "detail"):
        if isinstance(message := said.get(name), str):
            return kind, message, f"{message}\n{_passed_on(said)}"
    return kind, raw, raw


def _passed_on(said: dict[str, Any]) -> str:
    """What a gateway such as OpenRouter was told by the server behind it."""
    metadata = said.get("metadata")
    told = metadata.get("raw") if isinstance(metadata, dict) else None
    if told is None:
        return ""
    return told if isinstance(told, str) else msgspec.json.encode(told).decode()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"
