"""Policies by their specification, as a command line gives it."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object
from rolltrace.policies.base import Policy
from rolltrace.policies.faults import Faulty
from rolltrace.policies.noisy.policy import Noisy

SCRIPTED: dict[str, Callable[..., Policy]] = {"noisy": Noisy, "fault": Faulty}
"""The scripted policies, by name."""

KINDS = {
    "openai": "rolltrace.policies.endpoint.policy:from_spec",
    "local": "rolltrace.policies.local:local_policy",
    "human": "rolltrace.policies.human:human",
}
"""Where the maker of each kind of policy is; it takes what stands after the colon, if anything does, and arguments."""

FORMS = (
    "local[:FILE.gguf], openai:MODEL@BASE_URL, scripted:NAME, replay:RUN, human or package.module:name, "
    "each with [,KEY=VALUE…]"
)
_MEMBERS = ("name", "version", "context_length", "complete", "count_tokens")


Maker = Callable[..., Policy]


def load_policy(spec: str, more: Mapping[str, Maker] | None = None) -> Policy:
    """The policy that a specification names.

    It is a kind, with or without something after its colon (`local`, `openai:MODEL@BASE_URL`, `scripted:NAME`), or
    `package.module:name` of a policy, of a policy's class, or of a function that returns one; arguments follow as
    `,KEY=VALUE`. `more` are makers of further kinds.
    """
    target, *pairs = spec.split(",")
    kind, colon, name = target.partition(":")
    args = _arguments(pairs, spec)
    if kind == "scripted":
        if name not in SCRIPTED:
            raise UnknownNameError.among("scripted policy", name, SCRIPTED)
        policy: Policy = call_with_arguments(SCRIPTED[name], args, f"scripted:{name}")
        return policy
    maker = (more or {}).get(kind) or (import_object(KINDS[kind], "policy") if kind in KINDS else None)
    if maker is not None:
        given = (name,) if colon else ()
        made: Policy = call_with_arguments(functools.partial(maker, *given), args, kind)
        return made
    if not colon:
        known = [*KINDS, *(more or {}), *(f"scripted:{known}" for known in SCRIPTED)]
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
