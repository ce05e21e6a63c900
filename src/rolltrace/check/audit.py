"""An audit: a function with a name, a severity and an explanation, which yields findings."""

import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import msgspec

from rolltrace.errors import InputError

MAX_EXAMPLES = 10
"""How many rollouts a finding about many of them names."""


class Severity(StrEnum):
    """How bad a finding is. By default only an `ERROR` makes a check fail."""

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
    rollouts: tuple[str, ...] = ()
    """The ids of the rollouts it is about, or the first `MAX_EXAMPLES` of them."""
    address: str | None = None
    """The address of what it is about: SPLIT/ENV/ITERATION/GROUP/INDEX, or the beginning of one."""
    subject: str = ""
    """What it is about besides: the name of a part of the reward, a criterion, a measure."""
    session: str | None = None
    file: str | None = None
    """Relative to the run's directory; a segment without its suffix, which compression changes."""
    offset: int | None = None
    """The first byte of the line, uncompressed."""
    data: dict[str, Any] = {}
    """The numbers and names behind it."""

    @property
    def key(self) -> str:
        """A name for the same finding in another check of the run: what it is about, without its numbers."""
        if self.address is not None or self.subject:
            name = "|".join((self.address or "", self.subject))
        elif self.rollouts:
            name = self.rollouts[0]
        else:
            name = self.message if self.file is None else f"{self.file}|{'' if self.offset is None else self.offset}"
        return name.encode("utf-8", "backslashreplace").decode()  # the name of a file may have bytes that are no UTF-8


AuditFunction = Callable[..., Iterable[Finding]]


class AuditInput(StrEnum):
    """What an audit is called with."""

    RUN = "run"
    """Once, with the `AuditedRun`, after all rollouts and scores. Left out when a single iteration is checked."""
    ROLLOUTS = "rollouts"
    """With every rollout, in the one pass that feeds all audits."""
    SCORES = "scores"
    """With every score, in the same way."""
    TABLES = "tables"
    """Once, with the `AuditTables`: SQL over the rollouts that count, of the whole run or of one iteration."""


class Threshold(msgspec.Struct, frozen=True):
    """The number from which an audit reports, and how much data it needs. A settings file may replace both."""

    value: float
    reason: str
    """Why this is the default."""
    min_sample: int = 0
    """With less than this, the audit says "too little data"."""
    usual_share: float | None = None
    """For an audit of a share: a share that need not be reported."""

    @property
    def chance(self) -> float | None:
        """How probable it is that the smallest sample is beyond the threshold although the share is the usual one."""
        if self.usual_share is None:
            return None
        n, p = self.min_sample, self.usual_share
        least = math.floor(self.value * n) + 1
        return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(least, n + 1))


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """One audit. Its findings are of its severity."""

    name: str
    severity: Severity
    why: str
    """Why it matters, in a sentence."""
    fix: str
    """What to do about it."""
    holds: str
    """What holds if there is no finding."""
    input: AuditInput
    function: AuditFunction
    """Yields findings. A class is instantiated for each check, so it may keep state; its `end` may yield more. If it
    takes an argument, that is the `CheckSettings`."""
    threshold: Threshold | None = None
    family: str = "own"
    """The name of its chapter in the catalogue; `own` for audits of users and packages."""


def audit(
    severity: Severity,
    why: str,
    fix: str = "",
    *,
    input: AuditInput = AuditInput.RUN,  # noqa: A002 - the name of the field
    name: str | None = None,
    threshold: Threshold | None = None,
) -> Callable[[AuditFunction], Audit]:
    """Make an audit from a function, or from a class with `__call__`; by default it has the same name.

    The first line of its docstring says what holds if there is no finding. Findings of an audit over rollouts or scores
    need not name the record: its id and location are filled in. An audit with a threshold is called with `TABLES`.
    """

    def make(function: AuditFunction) -> Audit:
        audit_name = name or getattr(function, "__name__", "")
        if not audit_name or not why:
            raise InputError(f"Expected an audit with a name and an explanation, got {function!r} without.")
        if threshold is not None and AuditInput(input) is not AuditInput.TABLES:
            raise InputError(f"Expected {audit_name} to have no threshold, or the input TABLES, got {input}.")
        holds = (function.__doc__ or "").strip().partition("\n")[0]
        return Audit(
            name=audit_name, severity=Severity(severity), why=why, fix=fix, holds=holds, input=AuditInput(input),
            function=function, threshold=threshold,
        )  # fmt: skip

    return make
