"""Validates what policies return."""

from collections.abc import Awaitable, Mapping
from typing import Any

from msgspec.structs import replace

from rolltrace.errors import PolicyError
from rolltrace.policies.policy import Completion, Policy
from rolltrace.trace.coerce import coerce_tokens, coerce_usage
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note, describe
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Termination


def require_awaitable(value: Any, owner: object, method: str) -> Awaitable[Any]:
    """Require that a method returned an awaitable; otherwise the error says that it is not async."""
    if not hasattr(value, "__await__"):
        name = f"{type(owner).__name__}.{method}"
        raise TypeError(f"Expected {name} to be async, got {describe(value)} from it at once: declare it `async def`.")
    return value  # type: ignore[no-any-return]


def check_policy(policy: Any) -> None:
    """Validate a policy: it has a name and the required methods."""
    name = getattr(policy, "name", None)
    if not isinstance(name, str):
        raise PolicyError(f"Expected a policy with a name, got {describe(policy)}, whose name is {describe(name)}.")
    for method in ("complete", "count_tokens"):
        if not callable(getattr(policy, method, None)):
            raise PolicyError(f"Expected policy {name!r} to have a method `{method}`, got none.")
    for attribute in ("version", "context_length"):
        if not hasattr(policy, attribute):
            raise PolicyError(f"Expected policy {name!r} to have `{attribute}`, got none: None will do.")


def coerce_completion(value: Any, policy: Policy, notes: list[Note], path: str = "") -> Completion:
    """Coerce a completion so that its message can be recorded."""
    if not isinstance(value, Completion):
        raise _unexpected(policy, "return a Completion", value)
    if not isinstance(value.termination, Termination):
        raise _unexpected(policy, "give a Termination", value.termination)
    given: Any = value.message
    if not is_message(given):
        raise _unexpected(policy, "give a message", given)
    place = f"{path}." if path else ""
    message = as_message(given, f"{path}.reply" if path else "response", notes)
    usage = coerce_usage(value.usage, f"{place}usage", notes)
    tokens = coerce_tokens(value.tokens, f"{place}tokens", notes)
    if message is given and usage is value.usage and tokens is None:
        return value
    return replace(value, message=message, usage=usage, tokens=tokens)


def validate_token_count(value: Any, policy: Policy) -> int | None:
    """Validate a token count, or None if only the server knows it."""
    if value is not None and type(value) is not int:
        raise _unexpected(policy, "count tokens as an int or None", value)
    return value


def _unexpected(policy: Policy, promise: str, value: Any) -> PolicyError:
    return PolicyError(f"Expected policy {policy.name!r} to {promise}, got {describe(value)}.")


def is_message(value: Any) -> bool:
    """Whether a value can be read as a message."""
    kind = type(value)
    return kind is Message or kind is dict or isinstance(value, Mapping) or hasattr(value, "model_dump")
