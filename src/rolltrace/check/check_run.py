"""Checks a run: reads it once, and calls every audit with its input."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from rolltrace.check.audit import Audit, AuditFunction, AuditInput, Finding
from rolltrace.check.audit_registry import select_audits
from rolltrace.check.audit_report import AuditOutcome, AuditReport
from rolltrace.check.audited_run import AuditedRun, with_location
from rolltrace.errors import TempFolderError
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import FOLDERS
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

MAX_FINDINGS = 20
"""How many findings of one audit a report has by default; all are counted."""

_PROGRESS_EVERY = 1000

Progress = Callable[[int, int], None]


def check_run(
    path: str | Path,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    add: Iterable[str | Audit] = (),
    max_findings: int = MAX_FINDINGS,
    on_progress: Progress | None = None,
) -> AuditReport:
    """Audit the run at `path`.

    `only` and `skip` are names of audits; `add` are audits of your own, as objects or as `package.module:name`. If an
    audit raises, its outcome has the error and the other audits go on; only a full temporary folder ends the check.
    `on_progress` is called now and then with how many rollouts were read, and how many the ledgers count.
    """
    inspectors = [_Inspector(audit, max_findings) for audit in select_audits(only, skip, add)]
    started = time.perf_counter()
    with closing(AuditedRun(path)) as run:
        _audit_records(run, inspectors, on_progress)
        for inspector in _with_input(AuditInput.RUN, inspectors):
            inspector.call(run)
        sizes = [entry.size for folder in FOLDERS for entry in run.entries(folder)]
        return AuditReport(
            path=str(run.path),
            run=run.info.id,
            rollouts=run.rollouts_by_session.total(),
            scores=run.scores_by_session.total(),
            sessions=len(run.ledgers.keys() | run.rollouts_by_session.keys() | run.scores_by_session.keys()),
            files=len(sizes),
            bytes=sum(sizes),
            seconds=time.perf_counter() - started,
            results=tuple(inspector.result() for inspector in inspectors),
        )


def _audit_records(run: AuditedRun, inspectors: list["_Inspector"], on_progress: Progress | None) -> None:
    of_scores, of_rollouts = (_with_input(one, inspectors) for one in (AuditInput.SCORES, AuditInput.ROLLOUTS))
    for location, score in run.scores():
        for inspector in of_scores:
            inspector.call(score, location)
    expected = sum(ledger.recorded for ledger in run.ledgers.values())
    for number, (location, rollout) in enumerate(run.rollouts()):
        for inspector in of_rollouts:
            inspector.call(rollout, location)
        if on_progress is not None and number % _PROGRESS_EVERY == 0:
            on_progress(number + 1, expected)
    for inspector in (*of_scores, *of_rollouts):
        inspector.call(None)


def _with_input(kind: AuditInput, inspectors: list["_Inspector"]) -> list["_Inspector"]:
    return [inspector for inspector in inspectors if inspector.audit.input is kind]


class _Inspector:
    """Calls one audit: keeps its first findings, counts all, and records its failure."""

    def __init__(self, audit: Audit, max_findings: int) -> None:
        self.audit = audit
        self._max_findings = max_findings
        self._findings: list[Finding] = []
        self._count = 0
        self._error: str | None = None
        try:
            function: Any = audit.function() if isinstance(audit.function, type) else audit.function
            self._function: AuditFunction = function
            self._end: Callable[[], Iterable[Finding]] = getattr(function, "end", tuple)
        except Exception as error:  # noqa: BLE001 - an audit may be code of users
            self._fail(error, None)

    def call(self, target: AuditedRun | Rollout | Score | None, location: LineLocation | None = None) -> None:
        """Call the audit with a run or record, or after the last record its `end`, unless it failed before."""
        if self._error is not None:
            return
        try:
            for finding in self._end() if target is None else self._function(target):
                self._count += 1
                if len(self._findings) < self._max_findings:
                    self._findings.append(finding if location is None else with_location(finding, target, location))
        except TempFolderError:
            raise
        except Exception as error:  # noqa: BLE001 - an audit may be code of users
            self._fail(error, target)

    def result(self) -> AuditOutcome:
        """The outcome of the audit."""
        audit = self.audit
        return AuditOutcome(audit.name, audit.severity, audit.about, self._count, tuple(self._findings), self._error)

    def _fail(self, error: Exception, target: object) -> None:
        where = f" at {type(target).__name__.lower()} {target.id}" if isinstance(target, Rollout | Score) else ""
        self._error = f"{type(error).__name__}: {error}{where}"
