"""Makes policies from specifications such as `openai:MODEL@BASE_URL`, as the command line takes them."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object
from rolltrace.policies.policy import Policy

POLICY_KINDS = {
    "openai": "rolltrace.policies.endpoint.endpoint_policy:endpoint_policy",
    "local": "rolltrace.policies.local:local_policy",
    "human": "rolltrace.policies.human:human",
}
"""The function that makes each kind of policy, from the text after the colon, if there is one, and the arguments."""

SPEC_FORMS = (
    "local[:FILE.gguf], openai:MODEL@BASE_URL, scripted:NAME, replay:RUN, human or package.module:name, "
    "each with [,KEY=VALUE…]"
)
_ARGUMENT = re.compile(r",([A-Za-z_][A-Za-z0-9_]*)=")
_MEMBERS = ("name", "version", "context_length", "complete", "count_tokens")
_OPENED_BY_JOBS = ("replay", "scripted")
"""Kinds whose modules import this package: `rolltrace.jobs.open_policy` passes their makers."""

PolicyFactory = Callable[..., Policy]


def load_policy(
    spec: str, extra_kinds: Mapping[str, PolicyFactory] | None = None, *, suggestions: Iterable[str] = ()
) -> Policy:
    """The policy that a specification names.

    A specification is a kind, with or without text after a colon (`local`, `openai:MODEL@BASE_URL`), or
    `package.module:name` of a policy, of a policy's class, or of a function that returns one. Arguments follow as
    `,KEY=VALUE`. `extra_kinds` are makers of further kinds, and `suggestions` further names for "Did you mean".
    """
    extra_kinds = extra_kinds or {}
    kinds = (*POLICY_KINDS, *extra_kinds)
    target, args = _split(spec, kinds)
    kind, colon, name = target.partition(":")
    if kind in kinds:
        maker = extra_kinds.get(kind) or import_object(POLICY_KINDS[kind], "policy")
        policy: Policy = call_with_arguments(functools.partial(maker, *((name,) if colon else ())), args, kind)
        return policy
    if kind in _OPENED_BY_JOBS:
        raise InputError(
            f"Expected a policy that load_policy can make, got {kind!r}: rolltrace.play and `rolltrace run` take it, "
            "or use rolltrace.jobs.open_policy.open_policy."
        )
    if not colon:
        unknown = UnknownNameError.for_name("policy", target, [*kinds, *suggestions])
        raise UnknownNameError(f"{unknown} Policies are given as {SPEC_FORMS}.")
    return _checked(_made(import_object(target, "policy"), args, target), target)


async def close_policy(policy: Policy) -> None:
    """Call the policy's method `close`, if it has one: it may hold connections."""
    if callable(close := getattr(policy, "close", None)) and inspect.isawaitable(closing := close()):
        await closing


def _split(spec: str, kinds: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The text before the arguments, and the arguments: each begins with a comma and a name, outside any brackets."""
    places = [place for place in _ARGUMENT.finditer(spec) if not _is_inside(spec[: place.start()])]
    starts = [*(place.start() for place in places), len(spec)]
    args: dict[str, str] = {}
    for place, end in zip(places, starts[1:], strict=True):
        if place[1] in args:
            raise InputError(f"Expected each argument once in policy {_brief(spec)}, got {place[1]!r} twice.")
        args[place[1]] = spec[place.end() : end]
    target = spec[: starts[0]]
    if "," in target and target.partition(":")[0] in kinds and "/" not in target:
        raise InputError(f"Expected KEY=VALUE after the comma in policy {_brief(spec)}, got something else.")
    return target, args


def _brief(spec: str) -> str:
    """The specification without its arguments, because one of them may be an API key."""
    return repr(spec.partition(",")[0])


def _is_inside(text: str) -> bool:
    """Whether the text ends inside brackets."""
    return text.count("{") + text.count("[") > text.count("}") + text.count("]")


def _made(target: Any, args: dict[str, str], what: str) -> Any:
    if isinstance(target, type) or (callable(target) and not hasattr(target, "complete")):
        return call_with_arguments(target, args, f"policy {what}")
    if args:
        raise InputError(f"Expected no arguments for policy {what}, which is already made, got {', '.join(args)}.")
    return target


def _checked(policy: Any, what: str) -> Policy:
    missing = [member for member in _MEMBERS if not hasattr(policy, member)]
    if missing:
        raise InputError(
            f"Expected a policy at {what}, got {type(policy).__name__} without {', '.join(missing)}: "
            "see rolltrace.policies.policy.Policy."
        )
    checked: Policy = policy
    return checked
