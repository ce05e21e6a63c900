"""What an audit is: one function with a name, a severity and an explanation."""

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from rolltrace.check.finding import Finding, Severity
from rolltrace.errors import InputError

AuditFunction = Callable[..., Iterable[Finding]]


class AuditInput(StrEnum):
    """What an audit is called with."""

    RUN = "run"
    """Once, with the `AuditedRun`, when all rollouts and scores were seen."""
    ROLLOUTS = "rollouts"
    """With every rollout, in the one pass that feeds all audits."""
    SCORES = "scores"
    """With every score, in the same way."""


class Audit(msgspec.Struct, frozen=True):
    """One audit. Its findings are of its severity."""

    name: str
    severity: Severity
    about: str
    """Why it matters and what to do, for a person who has never heard of it."""
    input: AuditInput
    function: AuditFunction
    """Yields findings. A class is made afresh for each run, so it may remember; its `end`, if any, yields the rest."""


def audit(
    severity: Severity,
    about: str,
    *,
    input: AuditInput = AuditInput.RUN,  # noqa: A002 - the name of the field
    name: str | None = None,
) -> Callable[[AuditFunction], Audit]:
    """Make an audit of a function, or of a class whose objects are called; by default it has that one's name.

    Findings of an audit over rollouts or scores need not say which one they are about.
    """

    def make(look: AuditFunction) -> Audit:
        named = name or getattr(look, "__name__", "")
        if not named or not about:
            raise InputError(f"Expected an audit with a name and an explanation, got {look!r} without.")
        return Audit(named, Severity(severity), about, AuditInput(input), look)

    return make


def instantiate_audit(wanted: Audit) -> tuple[AuditFunction, Callable[[], Iterable[Finding]]]:
    """How to call an audit during one check, and what to call when there is no more to see."""
    if not inspect.isclass(wanted.function):
        return wanted.function, tuple
    made: Any = wanted.function()
    return made, getattr(made, "end", tuple)
