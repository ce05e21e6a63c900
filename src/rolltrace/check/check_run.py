"""Checks a run: reads it once, and lets every audit see what it asks for."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from rolltrace.check.audit import Audit, AuditInput, Finding, instantiate_audit
from rolltrace.check.audit_registry import select_audits
from rolltrace.check.audit_report import AuditOutcome, AuditReport
from rolltrace.check.audited_run import AuditedRun
from rolltrace.query.address import address
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import FOLDERS
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

MAX_FINDINGS = 20
"""How many findings of one audit a report holds, if nothing else is said; all are counted."""

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

    `only` and `skip` are names of audits; `add` are audits of your own, as objects or as `package.module:name`. An
    audit that raises is told of in its result, and stops no other. `on_progress` is called now and then with how many
    rollouts were seen and how many the ledgers speak of.
    """
    inspectors = [_Inspector(audit, max_findings) for audit in select_audits(only, skip, add)]
    started = time.perf_counter()
    with AuditedRun(path) as run:
        _see_records(run, inspectors, on_progress)
        for inspector in _over(AuditInput.RUN, inspectors):
            inspector.see(run)
        if run.records.failure is not None:
            raise run.records.failure
        sizes = [entry.size for folder in FOLDERS for entry in run.entries(folder) or ()]
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


def _see_records(run: AuditedRun, inspectors: list["_Inspector"], on_progress: Progress | None) -> None:
    of_scores, of_rollouts = _over(AuditInput.SCORES, inspectors), _over(AuditInput.ROLLOUTS, inspectors)
    for place, score in run.scores():
        for inspector in of_scores:
            inspector.see(score, place)
    expected = sum(ledger.recorded for ledger in run.ledgers.values())
    for number, (place, rollout) in enumerate(run.rollouts()):
        for inspector in of_rollouts:
            inspector.see(rollout, place)
        if on_progress is not None and number % _PROGRESS_EVERY == 0:
            on_progress(number + 1, expected)
    run.records.finish()
    for inspector in (*of_scores, *of_rollouts):
        inspector.end()


def _over(what: AuditInput, inspectors: list["_Inspector"]) -> list["_Inspector"]:
    return [inspector for inspector in inspectors if inspector.audit.input is what]


class _Inspector:
    """One audit at work: keeps its first findings, counts all, and survives its failure."""

    def __init__(self, audit: Audit, max_findings: int) -> None:
        self.audit = audit
        self._most = max_findings
        self._findings: list[Finding] = []
        self._count = 0
        self._error: str | None = None
        try:
            self._look, self._end = instantiate_audit(audit)
        except Exception as error:  # noqa: BLE001 - an audit is anybody's code
            self._fail(error, None)

    def see(self, what: AuditedRun | Rollout | Score, place: LineLocation | None = None) -> None:
        """Let the audit look at something, unless it failed before."""
        if self._error is not None:
            return
        try:
            for finding in self._look(what):
                self._take(finding if place is None else _located(finding, what, place))
        except Exception as error:  # noqa: BLE001 - an audit is anybody's code
            self._fail(error, what)

    def end(self) -> None:
        """Let the audit say what it knows now that it saw everything."""
        if self._error is not None:
            return
        try:
            for finding in self._end():
                self._take(finding)
        except Exception as error:  # noqa: BLE001 - an audit is anybody's code
            self._fail(error, None)

    def result(self) -> AuditOutcome:
        """What it came to."""
        audit = self.audit
        return AuditOutcome(audit.name, audit.severity, audit.about, self._count, tuple(self._findings), self._error)

    def _take(self, finding: Finding) -> None:
        self._count += 1
        if len(self._findings) < self._most:
            self._findings.append(finding)

    def _fail(self, error: Exception, what: object) -> None:
        where = f" at {type(what).__name__.lower()} {what.id}" if isinstance(what, Rollout | Score) else ""
        self._error = f"{type(error).__name__}: {error}{where}"


def _located(finding: Finding, what: AuditedRun | Rollout | Score, place: LineLocation) -> Finding:
    """The finding with what its audit left unsaid: which record it is about, and where that is."""
    if isinstance(what, Rollout):
        where: dict[str, str | None] = {"rollout": what.id, "address": address(what)}
    elif isinstance(what, Score):
        where = {"rollout": what.rollout, "address": None if what.group is None else what.group.address}
        finding = replace(finding, data={"score": what.id, "name": what.name, **finding.data})
    else:
        return finding
    known = {name: value for name, value in where.items() if getattr(finding, name) is None}
    return replace(finding, **known, session=what.session, file=place.file, offset=place.offset)
