"""Validates policies and what they return."""

from collections.abc import Awaitable, Mapping
from typing import Any

from msgspec.structs import replace

from rolltrace.errors import PolicyError
from rolltrace.policies.policy import Completion, Policy
from rolltrace.trace.coerce import coerce_tokens, coerce_usage, is_valid_usage
from rolltrace.trace.convert import as_message, is_valid_message
from rolltrace.trace.freeform import Note, describe
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Termination

_POLICY_MEMBERS = ("name", "version", "context_length", "complete", "count_tokens")


def require_awaitable(value: Any, owner: object, method: str) -> Awaitable[Any]:
    """Return the awaitable that a method returned. Raises `TypeError` if the method is not async."""
    if not hasattr(value, "__await__"):
        name = f"{type(owner).__name__}.{method}"
        raise TypeError(f"Expected {name} to be async, but it returned {describe(value)}: declare it `async def`.")
    return value  # type: ignore[no-any-return]


def check_policy(policy: Any) -> None:
    """Raise `PolicyError` unless an object has the members of `Policy`, and a name that is text."""
    kind = type(policy).__name__
    if missing := [member for member in _POLICY_MEMBERS if not hasattr(policy, member)]:
        raise PolicyError(
            f"Expected a policy, got {kind} without {', '.join(missing)}: see rolltrace.policies.policy.Policy."
        )
    if not isinstance(policy.name, str):
        raise PolicyError(f"Expected a policy with a name, got {kind}, whose name is {describe(policy.name)}.")


def coerce_completion(value: Any, policy: Policy, notes: list[Note], path: str = "") -> Completion:
    """Validate a completion, and coerce its message, usage and tokens so that they can be recorded."""
    if not isinstance(value, Completion):
        raise _unexpected(policy, "return a Completion", value)
    if not isinstance(value.termination, Termination):
        raise _unexpected(policy, "return a Completion with a Termination", value.termination)
    original: Any = value.message
    if _is_plain(value):
        return value
    if not is_message(original):
        raise _unexpected(policy, "return a Completion with a message", original)
    prefix = f"{path}." if path else ""
    message = as_message(original, f"{path}.reply" if path else "response", notes)
    usage = coerce_usage(value.usage, f"{prefix}usage", notes)
    tokens = coerce_tokens(value.tokens, f"{prefix}tokens", notes)
    if message is original and usage is value.usage and tokens is None:
        return value
    return replace(value, message=message, usage=usage, tokens=tokens)


def _is_plain(completion: Completion) -> bool:
    """Fast path: whether a completion has exact types and no tokens."""
    usage = completion.usage
    is_valid = is_valid_message(completion.message) and (usage is None or is_valid_usage(usage))
    return is_valid and completion.tokens is None


def validate_token_count(value: Any, policy: Policy) -> int | None:
    """Raise `PolicyError` unless a token count is an int, or None if only the server knows it."""
    if value is not None and type(value) is not int:
        raise _unexpected(policy, "count tokens as an int or None", value)
    return value


def _unexpected(policy: Policy, expected: str, value: Any) -> PolicyError:
    return PolicyError(f"Expected policy {policy.name!r} to {expected}, got {describe(value)}.")


def is_message(value: Any) -> bool:
    """Whether a value can be converted to a message."""
    kind = type(value)
    return kind is Message or kind is dict or isinstance(value, Mapping) or hasattr(value, "model_dump")
