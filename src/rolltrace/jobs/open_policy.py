"""Makes a policy from its specification, including `replay:RUN` and `scripted:NAME`."""

from collections.abc import Callable
from pathlib import Path

from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.policies.policy import Policy
from rolltrace.policies.policy_specs import load_policy
from rolltrace.policies.replay import ReplayPolicy
from rolltrace.query.run import Run
from rolltrace.store.reader import RunReader
from rolltrace.testing.faults import FaultyPolicy
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.text_transform import has_hashed_text

SCRIPTED_POLICIES: dict[str, Callable[..., Policy]] = {"noisy": NoisyPolicy, "fault": FaultyPolicy}
"""The policies of `scripted:NAME`, by name."""


def open_policy(policy: str | Policy) -> Policy:
    """Make the policy of a specification; a policy object is returned unchanged."""
    if not isinstance(policy, str):
        return policy
    factories: dict[str, Callable[..., Policy]] = {"replay": replay_policy, "scripted": scripted_policy}
    return load_policy(policy, factories, suggestions=[f"scripted:{name}" for name in SCRIPTED_POLICIES])


def scripted_policy(kind: str = "", /, **args: str) -> Policy:
    """Make the policy of `scripted:NAME`, with the arguments of its class."""
    if kind not in SCRIPTED_POLICIES:
        raise UnknownNameError.for_name("scripted policy", kind, SCRIPTED_POLICIES)
    policy: Policy = call_with_arguments(SCRIPTED_POLICIES[kind], args, f"scripted:{kind}")
    return policy


def replay_policy(path: str | Path = "", *, strict: bool = True) -> ReplayPolicy:
    """Make the policy of `replay:RUN`. The run must have rollouts that were recorded in full."""
    if not str(path):
        raise InputError("Expected a recorded run to replay, got none: use replay:RUN, such as replay:runs/first.")
    run = Run([RunReader(path)])
    first = next(run.rollouts(limit=1), None)
    if first is None:
        raise InputError(f"Expected a run with rollouts to replay at {path}, got an empty one.")
    if has_hashed_text(first) and all(map(has_hashed_text, run.rollouts())):
        raise InputError(
            f"Expected a run with its text to replay at {path}, got one recorded as numbers: record with --trace full."
        )
    return ReplayPolicy(run, name=f"replay:{Path(path).name}", strict=strict)
