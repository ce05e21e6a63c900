"""An audit: a function with a name, a severity and an explanation, which yields findings."""

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from rolltrace.errors import InputError


class Severity(StrEnum):
    """How bad a finding is. An `INFO` does not make a check fail."""

    ERROR = "error"
    """Something is lost or wrong, so numbers computed from the run may be wrong."""
    WARNING = "warning"
    """Something is incomplete, or looks like a mistake."""
    INFO = "info"
    """Worth knowing; nothing is wrong."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    message: str
    """What was expected and what was found, in a sentence."""
    rollout: str | None = None
    """The id of the rollout it is about."""
    address: str | None = None
    """The address of that rollout or its group: SPLIT/ENV/ITERATION/GROUP/INDEX."""
    session: str | None = None
    file: str | None = None
    """Relative to the run's directory; a segment without its suffix, which compression changes."""
    offset: int | None = None
    """The first byte of the line, uncompressed."""
    data: dict[str, Any] = {}
    """The numbers and names behind it."""


AuditFunction = Callable[..., Iterable[Finding]]


class AuditInput(StrEnum):
    """What an audit is called with."""

    RUN = "run"
    """Once, with the `AuditedRun`, after all rollouts and scores."""
    ROLLOUTS = "rollouts"
    """With every rollout, in the one pass that feeds all audits."""
    SCORES = "scores"
    """With every score, in the same way."""


class Audit(msgspec.Struct, frozen=True):
    """One audit. Its findings are of its severity."""

    name: str
    severity: Severity
    about: str
    """Why it matters and what to do, for a reader who does not know it."""
    input: AuditInput
    function: AuditFunction
    """Yields findings. Of a class, one object is made for each run, so it may keep state; its `end` yields the rest."""


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
