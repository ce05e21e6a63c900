"""An audit: a function with a name, a severity and an explanation, which yields findings."""

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
    """One thing that is wrong, and its location."""

    message: str
    """What was expected and what is there, in a sentence."""
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
    """Yields findings. A class is instantiated for each run, so it may keep state; its `end` may yield more."""


def audit(
    severity: Severity,
    about: str,
    *,
    input: AuditInput = AuditInput.RUN,  # noqa: A002 - the name of the field
    name: str | None = None,
) -> Callable[[AuditFunction], Audit]:
    """Make an audit from a function, or from a class with `__call__`; by default it has the same name.

    Findings of an audit over rollouts or scores need not name the record: its id and location are filled in.
    """

    def make(function: AuditFunction) -> Audit:
        audit_name = name or getattr(function, "__name__", "")
        if not audit_name or not about:
            raise InputError(f"Expected an audit with a name and an explanation, got {function!r} without.")
        return Audit(audit_name, Severity(severity), about, AuditInput(input), function)

    return make
