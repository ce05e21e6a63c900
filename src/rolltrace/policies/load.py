"""Policies by their specification, as a command line gives it."""

import inspect
from collections.abc import Callable
from typing import Any

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object
from rolltrace.policies.base import Policy
from rolltrace.policies.faults import Faulty
from rolltrace.policies.noisy.policy import Noisy

SCRIPTED: dict[str, Callable[..., Policy]] = {"noisy": Noisy, "fault": Faulty}
"""The scripted policies, by name."""

FORMS = "scripted:NAME[,KEY=VALUE…] or package.module:name[,KEY=VALUE…]"
_RESERVED = ("human", "local", "openai", "replay")
"""Kinds of policy that are no modules, and that this version has not."""
_MEMBERS = ("name", "version", "context_length", "complete", "count_tokens")


def load_policy(spec: str) -> Policy:
    """The policy that a specification names.

    It is `scripted:NAME`, or `package.module:name` of a policy, of a policy's class, or of a function that returns
    one; arguments follow as `,KEY=VALUE`.
    """
    target, *pairs = spec.split(",")
    kind, colon, name = target.partition(":")
    args = _arguments(pairs, spec)
    if kind == "scripted":
        if name not in SCRIPTED:
            raise UnknownNameError.among("scripted policy", name, SCRIPTED)
        policy: Policy = call_with_arguments(SCRIPTED[name], args, f"scripted:{name}")
        return policy
    if kind in _RESERVED:
        raise InputError(f"There is no policy {spec!r} in this version. Policies are given as {FORMS}.")
    if not colon:
        known = [f"scripted:{known}" for known in SCRIPTED]
        raise UnknownNameError(f"{UnknownNameError.among('policy', target, known)} Policies are given as {FORMS}.")
    return _checked(_made(import_object(target, "policy"), args, target), target)


async def close_policy(policy: Policy) -> None:
    """Let a policy give back what it holds, such as connections, if it has a method `close` for that."""
    if callable(close := getattr(policy, "close", None)) and inspect.isawaitable(closing := close()):
        await closing


def _arguments(pairs: list[str], spec: str) -> dict[str, str]:
    args: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"Expected KEY=VALUE after the comma in policy {spec!r}, got {pair!r}.")
        if key in args:
            raise InputError(f"Expected each argument once in policy {spec!r}, got {key!r} twice.")
        args[key] = value
    return args


def _made(found: Any, args: dict[str, str], what: str) -> Any:
    if isinstance(found, type) or (callable(found) and not hasattr(found, "complete")):
        return call_with_arguments(found, args, f"policy {what}")
    if args:
        raise InputError(f"Expected no arguments for policy {what}, which is already made, got {', '.join(args)}.")
    return found


def _checked(policy: Any, what: str) -> Policy:
    missing = [member for member in _MEMBERS if not hasattr(policy, member)]
    if missing:
        raise InputError(
            f"Expected a policy at {what}, got {type(policy).__name__} without {', '.join(missing)}: "
            "see rolltrace.policies.base.Policy."
        )
    checked: Policy = policy
    return checked
