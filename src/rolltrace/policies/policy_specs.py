"""Makes policies from specifications of the command line, such as `openai:MODEL@BASE_URL`."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, PolicyError, UnknownNameError
from rolltrace.imports import import_object
from rolltrace.policies.policy import Policy
from rolltrace.policies.validation import check_policy

POLICY_KINDS = {
    "openai": "rolltrace.policies.endpoint.endpoint_policy:EndpointPolicy",
    "local": "rolltrace.policies.local:local_policy",
    "human": "rolltrace.policies.human:human",
}
"""The factory of each kind of policy. It gets the text after the colon, if there is one, and the arguments."""

SPEC_FORMS = (
    "local[:FILE.gguf], openai:MODEL@BASE_URL, scripted:NAME, replay:RUN, human or package.module:name, "
    "each with [,KEY=VALUE…]"
)
_ARGUMENT = re.compile(r",([A-Za-z_][A-Za-z0-9_]*)=")
_OPENED_BY_JOBS = ("replay", "scripted")
"""Kinds whose modules import this package: `rolltrace.jobs.open_policy` passes their factories."""

PolicyFactory = Callable[..., Policy]


def load_policy(
    spec: str, extra_kinds: Mapping[str, PolicyFactory] | None = None, *, suggestions: Iterable[str] = ()
) -> Policy:
    """Make the policy of a specification.

    A specification is a kind, with or without text after a colon (`local`, `openai:MODEL@BASE_URL`), or
    `package.module:name` of a policy, of a policy's class, or of a function that returns a policy. Arguments follow as
    `,KEY=VALUE`. `extra_kinds` are factories of further kinds, and `suggestions` further names for "Did you mean".
    """
    extra_kinds = extra_kinds or {}
    kinds = (*POLICY_KINDS, *extra_kinds)
    target, args = _split(spec, kinds)
    kind, colon, name = target.partition(":")
    if kind in kinds:
        factory = extra_kinds.get(kind) or import_object(POLICY_KINDS[kind], "policy")
        policy: Policy = call_with_arguments(functools.partial(factory, *((name,) if colon else ())), args, kind)
        return policy
    if kind in _OPENED_BY_JOBS:
        raise InputError(
            f"Expected a policy that load_policy can make, got {kind!r}: use rolltrace.play, `rolltrace run` or "
            "rolltrace.jobs.open_policy.open_policy."
        )
    if not colon:
        unknown = UnknownNameError.for_name("policy", target, [*kinds, *suggestions])
        raise UnknownNameError(f"{unknown} Policies have the form {SPEC_FORMS}.")
    made: Policy = _make(import_object(target, "policy"), args, target)
    try:
        check_policy(made)
    except PolicyError as error:
        raise InputError(f"{target}: {error}") from error
    return made


async def close_policy(policy: Policy) -> None:
    """Call the policy's method `close`, if it has one: it may hold connections."""
    if callable(close := getattr(policy, "close", None)) and inspect.isawaitable(closing := close()):
        await closing


def _split(spec: str, kinds: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The text before the arguments, and the arguments: each begins with a comma and a name, outside any brackets."""
    matches = [match for match in _ARGUMENT.finditer(spec) if not _ends_in_brackets(spec[: match.start()])]
    starts = [*(match.start() for match in matches), len(spec)]
    args: dict[str, str] = {}
    for match, end in zip(matches, starts[1:], strict=True):
        if match[1] in args:
            raise InputError(f"Expected each argument once in policy {_brief(spec)}, got {match[1]!r} twice.")
        args[match[1]] = spec[match.end() : end]
    target = spec[: starts[0]]
    if "," in target and target.partition(":")[0] in kinds and "/" not in target:
        raise InputError(f"Expected KEY=VALUE after the comma in policy {_brief(spec)}, got something else.")
    return target, args


def _brief(spec: str) -> str:
    """The specification without its arguments, because one of them may be an API key."""
    return repr(spec.partition(",")[0])


def _ends_in_brackets(text: str) -> bool:
    return text.count("{") + text.count("[") > text.count("}") + text.count("]")


def _make(target: Any, args: dict[str, str], name: str) -> Any:
    if isinstance(target, type) or (callable(target) and not hasattr(target, "complete")):
        return call_with_arguments(target, args, f"policy {name}")
    if args:
        raise InputError(f"Expected no arguments for {name}, which is a policy already, got {', '.join(args)}.")
    return target
