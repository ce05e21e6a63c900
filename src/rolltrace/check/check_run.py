"""Checks a run, or one iteration of it: reads it once, and calls every audit with its input."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import msgspec

from rolltrace.check.audit import Audit, AuditFunction, AuditInput, Finding
from rolltrace.check.audit_registry import select_audits
from rolltrace.check.audit_report import AuditOutcome, AuditReport
from rolltrace.check.audit_tables import AuditTables
from rolltrace.check.audited_run import AuditedRun, with_location
from rolltrace.check.baseline import Baseline, load_baseline
from rolltrace.check.iteration_stats import IterationStatsCache
from rolltrace.check.settings import CheckSettings, load_settings
from rolltrace.check.table_source import TableSource
from rolltrace.check.tokenizer import load_tokenizer
from rolltrace.errors import InputError, TempFolderError
from rolltrace.query.copied_tables import COPIED_TABLES
from rolltrace.query.run import open_single_run
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import FOLDERS
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import describe
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Layer

MAX_FINDINGS = 20
"""How many findings of one audit a report has by default; all are counted."""

_MAX_COPIED = 2_000
"""Up to this number of rollouts, the tables are copied into memory for the audits."""
_PROGRESS_EVERY = 1000

Progress = Callable[[int, int], None]


class CheckOptions(TypedDict, total=False):
    """What to check, and how."""

    only: Iterable[str]
    """Names of audits or families; all others are left out."""
    skip: Iterable[str]
    """Names of audits or families that are left out."""
    add: Iterable[str | Audit]
    """Audits of your own, as objects or as `package.module:name`."""
    settings: CheckSettings | str | Path | None
    """Thresholds and more, or the path of a settings file."""
    baseline: Baseline | str | Path | None
    """Findings that are accepted, or the path of their file."""
    max_findings: int
    """How many findings of one audit the report has; all are counted."""


def check_run(path: str | Path, *, on_progress: Progress | None = None, **options: Unpack[CheckOptions]) -> AuditReport:
    """Audit the run at `path`.

    If an audit raises, its outcome has the error and the other audits go on; only a full temporary folder ends the
    check. `on_progress` is called now and then with how many rollouts were read, and how many the ledgers count.
    """
    inspectors = _Choice(options).inspectors()
    started = time.perf_counter()
    with closing(AuditedRun(path)) as run:
        _audit_records(run, inspectors, on_progress)
        for inspector in _with_input(AuditInput.RUN, inspectors):
            inspector.call(run)
        if of_tables := _with_input(AuditInput.TABLES, inspectors):
            with closing(TableSource(run.tables, copies=run.rollouts_by_session.total() <= _MAX_COPIED)) as source:
                for inspector in of_tables:
                    inspector.call_with_tables(source)
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


class IterationChecker:
    """Checks single iterations of a run while it is written; opened once, so that each check reads only what is new.

    Audits of files, ledgers and identities are about the whole run, and are left to `check_run`.
    """

    def __init__(self, path: str | Path, **options: Unpack[CheckOptions]) -> None:
        self._chosen = _Choice(options)
        self._chosen.audits = [audit for audit in self._chosen.audits if audit.input is not AuditInput.RUN]
        self._run = open_single_run(path)
        self._stats = IterationStatsCache(self._run)
        self._revision = 0
        self._run.revision = lambda: self._revision

    def check(self, iteration: int | None = None) -> AuditReport:
        """Audit one iteration, by default the newest, as it is recorded by now."""
        started = time.perf_counter()
        self._revision += 1
        self._run.refresh(COPIED_TABLES)  # at once, so that each new line is read once
        if iteration is None:
            [(iteration,)] = self._run.sql("select max(iteration) from rollouts").fetchall()
        inspectors = self._chosen.inspectors()
        rollouts, scores = 0, 0
        of_scores, of_rollouts = (_with_input(one, inspectors) for one in (AuditInput.SCORES, AuditInput.ROLLOUTS))
        if iteration is not None:
            for rollout in self._run.rollouts(f"iteration = {iteration:d}") if of_scores or of_rollouts else ():
                rollouts += 1
                scores += len(rollout.scores)
                for inspector in of_rollouts:
                    inspector.call(rollout)
                for score in rollout.scores:
                    for inspector in of_scores:
                        inspector.call(score)
            for inspector in (*of_scores, *of_rollouts):
                inspector.call(None)
            with closing(TableSource(self._run, iteration, self._stats)) as source:
                for inspector in _with_input(AuditInput.TABLES, inspectors):
                    inspector.call_with_tables(source)
        return AuditReport(
            path=str(self._run.path), run=self._run.info.id, iteration=iteration, rollouts=rollouts, scores=scores,
            seconds=time.perf_counter() - started, results=tuple(inspector.result() for inspector in inspectors),
        )  # fmt: skip

    def has_iteration(self, iteration: int) -> bool:
        """Whether the run has rollouts of it."""
        return bool(self._run.sql(f"select 1 from rollouts where iteration = {iteration:d} limit 1").fetchall())

    def close(self) -> None:
        """Close the run."""
        self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Choice:
    """The options of a check, with their files read."""

    def __init__(self, options: CheckOptions) -> None:
        settings, baseline = options.get("settings"), options.get("baseline")
        self.settings = load_settings(settings) if isinstance(settings, str | Path) else settings or CheckSettings()
        self.baseline = load_baseline(baseline) if isinstance(baseline, str | Path) else baseline or Baseline()
        self.max_findings = options.get("max_findings", MAX_FINDINGS)
        only, skip, add = options.get("only", ()), options.get("skip", ()), options.get("add", ())
        self.audits = select_audits(only, skip, add, self.settings)
        if self.settings.tokenizer is not None:
            load_tokenizer(self.settings.tokenizer)  # raises before anything is read

    def inspectors(self) -> list["_Inspector"]:
        """One for each audit."""
        return [_Inspector(audit, self) for audit in self.audits]


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

    def __init__(self, audit: Audit, chosen: _Choice) -> None:
        self.audit = audit
        self._chosen = chosen
        self._findings: list[Finding] = []
        self._count = 0
        self._accepted = 0
        self._error: str | None = None
        self._note: str | None = None
        try:
            function: Any = audit.function
            if isinstance(function, type):
                function = function(chosen.settings) if signature(function).parameters else function()
            self._function: AuditFunction = function
            self._end: Callable[[], Iterable[Finding]] = getattr(function, "end", tuple)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an audit may be code of users
            self._fail(error, None)

    def call(
        self, target: AuditedRun | AuditTables | Rollout | Score | None, location: LineLocation | None = None
    ) -> None:
        """Call the audit with a run or record, or after the last record its `end`, unless it failed before."""
        if self._error is not None:
            return
        try:
            for one in self._end() if target is None else self._function(target):
                finding = with_location(_checked(one), target, location)
                if self._chosen.baseline.accepts(self.audit.name, finding):
                    self._accepted += 1
                    continue
                self._count += 1
                if len(self._findings) < self._chosen.max_findings:
                    self._findings.append(finding)
        except TempFolderError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an audit may be code of users
            self._fail(error, target)

    def call_with_tables(self, source: TableSource) -> None:
        """Call an audit of tables."""
        tables = AuditTables(source, self._chosen.settings, self.audit)
        self.call(tables)
        self._note = tables.note

    def result(self) -> AuditOutcome:
        """The outcome of the audit."""
        audit = self.audit
        return AuditOutcome(
            audit=audit.name, family=audit.family, severity=audit.severity, why=audit.why, fix=audit.fix,
            count=self._count, findings=tuple(self._findings), accepted=self._accepted,
            note=None if self._count else self._note, error=self._error,
        )  # fmt: skip

    def _fail(self, error: BaseException, target: object) -> None:
        where = f" at {type(target).__name__.lower()} {target.id}" if isinstance(target, Rollout | Score) else ""
        failure = failure_of(Layer.CALLER, error)
        self._error = f"{failure.type}: {failure.message}{where}"


def _checked(finding: Finding) -> Finding:
    """The finding, if its fields have the types that every format of a report relies on."""
    if not isinstance(finding, Finding):
        raise InputError(f"Expected an audit to yield findings, got {describe(finding)}.")
    return msgspec.convert(msgspec.structs.asdict(finding), Finding)
