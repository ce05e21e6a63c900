"""Classifies error replies of servers: the prompt is too long, the failure is transient, or it is permanent."""

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
"""The context window near a word of excess, because a message may name the window for another reason."""
_MAX_SEARCHED = 100_000
_OVERFLOW_STATUS = frozenset({400, 413, 422, 500})
"""Not 429: that is about too many tokens per minute."""
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_MAX_MESSAGE_CHARS = 500
_KEY_STATUS = frozenset({401, 403})
_NOT_FOUND = 404


def error_from_status(status: int, body: bytes, *, where: str, key: ApiKey, location: str | None = None) -> PolicyError:
    """The error for a reply with a failure in its status or its body."""
    raw = body.decode("utf-8", "replace")
    codes, message, full_text = _parse_error(body, raw)
    is_overflow = status in _OVERFLOW_STATUS and _is_overflow(codes, full_text)
    error = _make_error(status, codes, _short(message), where, key, location, is_overflow)
    error.raw = raw
    return error


def _make_error(
    status: int, codes: frozenset[str], message: str, where: str, key: ApiKey, location: str | None, is_overflow: bool
) -> PolicyError:
    text = f"Expected an answer from {where}, got status {status}"
    if message:
        text += f": {message}"
    if is_overflow:
        return ContextOverflowError(f"The prompt does not fit: {message}")
    if "insufficient_quota" not in codes and (status in _TRANSIENT_STATUS or status >= 500):
        return TransientError(text)
    if 300 <= status < 400:
        return PolicyError(f"{text}, a redirect{_target(location)}: it is not followed; use the final address.")
    advice = _advice(status, key)
    return PolicyError(f"{text}. To do: {advice}." if advice else text)


def _advice(status: int, key: ApiKey) -> str | None:
    if status in _KEY_STATUS:
        return key.advice
    return "check the base URL and the model's name" if status == _NOT_FOUND else None


def _target(location: str | None) -> str:
    """The server that a redirect names, without the rest of the URL, which may contain what the client sent."""
    try:
        parts = urlsplit(location or "")
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return ""
    return f" to {parts.scheme}://{parts.hostname}{port}" if parts.hostname else ""


def _is_overflow(codes: frozenset[str], message: str) -> bool:
    lowered = message[:_MAX_SEARCHED].lower()
    if codes & _OVERFLOW_CODES or any(words in lowered for words in _OVERFLOW_WORDS):
        return True
    return _EXCESS_OF_WINDOW.search(lowered) is not None


def _parse_error(body: bytes, raw: str) -> tuple[frozenset[str], str, str]:
    """The codes of an error, its message, and the message with that of the server behind a gateway.

    If there is no message, it is the text of the reply.
    """
    try:
        error: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        text = " ".join(raw[:_MAX_SEARCHED].split())
        return frozenset(), text, text
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        return frozenset(), raw, raw
    codes = frozenset(value for name in ("code", "type", "error_type") if isinstance(value := error.get(name), str))
    for name in ("message", "error", "detail"):
        if isinstance(message := error.get(name), str):
            return codes, message, f"{message}\n{_upstream_error(error)}"
    return codes, raw, raw


def _upstream_error(error: dict[str, Any]) -> str:
    """The error that a gateway such as OpenRouter got from the server behind it."""
    metadata = error.get("metadata")
    upstream = metadata.get("raw") if isinstance(metadata, dict) else None
    if upstream is None:
        return ""
    return upstream if isinstance(upstream, str) else msgspec.json.encode(upstream).decode()


def _short(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[:_MAX_MESSAGE_CHARS]}…"
