"""What an audit is: one function with a name, a severity and an explanation."""

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from rolltrace.check.finding import Finding, Severity
from rolltrace.errors import InputError

Look = Callable[..., Iterable[Finding]]


class Over(StrEnum):
    """What an audit is called with."""

    RUN = "run"
    """Once, with the `Subject`, when all rollouts and scores were seen."""
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
    over: Over
    look: Look
    """Yields findings. A class is made afresh for each run, so it may remember; its `end`, if any, yields the rest."""


def audit(severity: Severity, about: str, *, over: Over = Over.RUN, name: str | None = None) -> Callable[[Look], Audit]:
    """Make an audit of a function, or of a class whose objects are called; by default it has that one's name.

    Findings of an audit over rollouts or scores need not say which one they are about.
    """

    def make(look: Look) -> Audit:
        named = name or getattr(look, "__name__", "")
        if not named or not about:
            raise InputError(f"Expected an audit with a name and an explanation, got {look!r} without.")
        return Audit(named, Severity(severity), about, Over(over), look)

    return make


def fresh_look(wanted: Audit) -> tuple[Look, Callable[[], Iterable[Finding]]]:
    """How to call an audit during one check, and what to call when there is no more to see."""
    if not inspect.isclass(wanted.look):
        return wanted.look, tuple
    made: Any = wanted.look()
    return made, getattr(made, "end", tuple)
