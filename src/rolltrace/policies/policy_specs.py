"""Policies by their specification, as a command line gives it."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object
from rolltrace.policies.faults import FaultyPolicy
from rolltrace.policies.noisy.policy import NoisyPolicy
from rolltrace.policies.policy import Policy

SCRIPTED_POLICIES: dict[str, Callable[..., Policy]] = {"noisy": NoisyPolicy, "fault": FaultyPolicy}
"""The scripted policies, by name."""

POLICY_KINDS = {
    "openai": "rolltrace.policies.endpoint.endpoint_policy:endpoint_policy",
    "local": "rolltrace.policies.local:local_policy",
    "human": "rolltrace.policies.human:human",
}
"""Where the maker of each kind of policy is; it takes what stands after the colon, if anything does, and arguments."""

SPEC_FORMS = (
    "local[:FILE.gguf], openai:MODEL@BASE_URL, scripted:NAME, replay:RUN, human or package.module:name, "
    "each with [,KEY=VALUE…]"
)
_ARGUMENT = re.compile(r",([A-Za-z_][A-Za-z0-9_]*)=")
_MEMBERS = ("name", "version", "context_length", "complete", "count_tokens")


PolicyFactory = Callable[..., Policy]


def load_policy(spec: str, extra_kinds: Mapping[str, PolicyFactory] | None = None) -> Policy:
    """The policy that a specification names.

    It is a kind, with or without something after its colon (`local`, `openai:MODEL@BASE_URL`, `scripted:NAME`), or
    `package.module:name` of a policy, of a policy's class, or of a function that returns one; arguments follow as
    `,KEY=VALUE`. `extra_kinds` are makers of further kinds.
    """
    target, args = _split(spec)
    kind, colon, name = target.partition(":")
    if kind == "scripted":
        if name not in SCRIPTED_POLICIES:
            raise UnknownNameError.for_name("scripted policy", name, SCRIPTED_POLICIES)
        policy: Policy = call_with_arguments(SCRIPTED_POLICIES[name], args, f"scripted:{name}")
        return policy
    maker = (extra_kinds or {}).get(kind) or (
        import_object(POLICY_KINDS[kind], "policy") if kind in POLICY_KINDS else None
    )
    if maker is not None:
        given = (name,) if colon else ()
        made: Policy = call_with_arguments(functools.partial(maker, *given), args, kind)
        return made
    if kind == "replay":
        raise InputError("A recorded run is opened by rolltrace.play and `rolltrace run`, or by jobs.play.open_policy.")
    if not colon:
        known = [*POLICY_KINDS, *(extra_kinds or {}), *(f"scripted:{known}" for known in SCRIPTED_POLICIES)]
        raise UnknownNameError(
            f"{UnknownNameError.for_name('policy', target, known)} Policies are given as {SPEC_FORMS}."
        )
    return _checked(_made(import_object(target, "policy"), args, target), target)


async def close_policy(policy: Policy) -> None:
    """Let a policy give back what it holds, such as connections, if it has a method `close` for that."""
    if callable(close := getattr(policy, "close", None)) and inspect.isawaitable(closing := close()):
        await closing


def _split(spec: str) -> tuple[str, dict[str, str]]:
    """What comes before the arguments, and those: each begins with a comma and a name, outside of any brackets."""
    places = [place for place in _ARGUMENT.finditer(spec) if not _is_inside(spec[: place.start()])]
    starts = [*(place.start() for place in places), len(spec)]
    args: dict[str, str] = {}
    for place, end in zip(places, starts[1:], strict=True):
        if place[1] in args:
            raise InputError(f"Expected each argument once in policy {_brief(spec)}, got {place[1]!r} twice.")
        args[place[1]] = spec[place.end() : end]
    target = spec[: starts[0]]
    if "," in target and target.partition(":")[0] in (*POLICY_KINDS, "scripted") and "/" not in target:
        raise InputError(f"Expected KEY=VALUE after the comma in policy {_brief(spec)}, got something else.")
    return target, args


def _brief(spec: str) -> str:
    """A specification without its arguments: one of them may be a key that was given in the wrong place."""
    return repr(spec.partition(",")[0])


def _is_inside(text: str) -> bool:
    """Whether a text ends inside brackets."""
    return text.count("{") + text.count("[") > text.count("}") + text.count("]")


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
            "see rolltrace.policies.policy.Policy."
        )
    checked: Policy = policy
    return checked
