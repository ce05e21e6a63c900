"""What `rolltrace check` finds in runs: one run at a time, in a process of its own, kept until asked again."""

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
from msgspec.structs import replace

from rolltrace.check.audit import Finding
from rolltrace.check.audit_report import AuditReport, outcome_severity
from rolltrace.temp_folders import temporary_folder
from rolltrace.trace.codec import wire_free_form
from rolltrace.trace.freeform import from_json_mapping
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.schemas import AuditFinding, AuditResult, FindingsResponse

MAX_ROLLOUTS = 20_000
"""A run with more is checked only when somebody asks for it."""

_ABSENT = FindingsResponse(state="absent", stale=False, audits=0, found=(), message=None)
_RUNNING = FindingsResponse(state="running", stale=False, audits=0, found=(), message=None)


class _CheckJob(msgspec.Struct):
    """A check that is waiting, running or over."""

    data: str
    """How the run's rollouts and scores stood."""
    answer: FindingsResponse | None = None


class BackgroundChecks:
    """The checks of all runs."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._checks: dict[str, _CheckJob] = {}
        self._waiting: queue.SimpleQueue[tuple[Path, _CheckJob] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def answer(self, key: str, rollouts: int | None) -> FindingsResponse:
        """What is known; a small run is checked when first asked about."""
        _, standing = self._library.folder.find(key)
        with self._lock:
            check = self._checks.get(key)
        if check is None:
            return self.start(key) if rollouts is not None and rollouts <= MAX_ROLLOUTS else _ABSENT
        if check.answer is None:
            return _RUNNING
        return replace(check.answer, stale=check.data != standing.data)

    def start(self, key: str) -> FindingsResponse:
        """Check a run, unless that is being done."""
        path, standing = self._library.folder.find(key)
        with self._lock:
            check = self._checks.get(key)
            if check is None or check.answer is not None:
                check = self._checks[key] = _CheckJob(standing.data)
                self._waiting.put((path, check))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rolltrace-check", daemon=True)
                self._thread.start()
        return _RUNNING

    def close(self) -> None:
        """End what is being done."""
        self._waiting.put(None)
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None and not self._is_closed:
            path, check = task
            try:
                check.answer = self._check(path)
            except (OSError, ValueError) as error:
                check.answer = _failed(f"{type(error).__name__}: {error}")

    def _check(self, path: Path) -> FindingsResponse:
        words = [sys.executable, "-P", "-m", "rolltrace", "check", "--json", str(path.absolute())]
        with temporary_folder() as private:  # a check that is ended leaves its files behind
            with self._lock:
                if self._is_closed:
                    return _RUNNING
                process = self._process = subprocess.Popen(  # noqa: S603 - our own code
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    start_new_session=True, env={**os.environ, "TMPDIR": str(private)},
                )  # fmt: skip
            said, problem = process.communicate()
        if not said.strip():
            return _failed(problem.decode(errors="replace").strip()[-2_000:] or "The check ended without a word.")
        return findings_response(decode_report(said))


def _failed(message: str) -> FindingsResponse:
    return FindingsResponse(state="failed", stale=False, audits=0, found=(), message=message)


def decode_report(said: bytes) -> AuditReport:
    """What `rolltrace check --json` said."""
    report = msgspec.json.decode(said, type=AuditReport)
    results = (replace(result, findings=tuple(map(_restored, result.findings))) for result in report.results)
    return replace(report, results=tuple(results))


def _restored(finding: Finding) -> Finding:
    return replace(finding, data=from_json_mapping(finding.data))


def findings_response(report: AuditReport) -> FindingsResponse:
    """What a report says, the worst first."""
    found = tuple(
        AuditResult(
            name=result.audit,
            severity=outcome_severity(result).value,
            about=result.about,
            count=result.count,
            error=result.error,
            findings=tuple(AuditFinding(one.message, one.rollout, wire_free_form(one.data)) for one in result.findings),
        )
        for result in report.with_findings
    )
    return FindingsResponse(state="ready", stale=False, audits=len(report.results), found=found, message=None)
