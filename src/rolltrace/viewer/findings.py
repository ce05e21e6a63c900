"""Checks of runs in the background: one at a time, in a worker process. The result is kept until the next check."""

import threading
from concurrent.futures import Future
from functools import partial

import msgspec
from msgspec.structs import replace

from rolltrace.check.audit import Finding
from rolltrace.check.audit_report import AuditReport, outcome_severity
from rolltrace.check.check_run import check_run
from rolltrace.errors import RolltraceError
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from rolltrace.store.cache_key import ENVIRONMENT_KEY
from rolltrace.store.object_address import store_variables
from rolltrace.trace.codec import wire_free_form
from rolltrace.viewer.json_response import encode_response
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.schemas import AuditFinding, AuditResult, FindingsResponse

MAX_ROLLOUTS = 20_000
"""A run with more is checked only on request."""

_ABSENT = FindingsResponse(state="absent", stale=False, audits=0, found=(), message=None)
_RUNNING = replace(_ABSENT, state="running")


class _CheckJob(msgspec.Struct):
    """A check that is waiting, running or done."""

    data: str
    """The state of the run's rollouts and scores when it was requested."""
    answer: FindingsResponse | None = None


class BackgroundChecks:
    """The checks of all runs."""

    def __init__(self, library: OpenRuns) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._checks: dict[str, _CheckJob] = {}
        self._pool = ProcessPool(
            ProcessSettings(
                memory_bytes=None,
                reply_bytes=64 * 2**20,
                private_temp_folder=True,
                inherited=(ENVIRONMENT_KEY, *store_variables(library.folder.path)),
            ),
            max_processes=1,
        )
        self._is_closed = False

    def answer(self, key: str, rollouts: int | None) -> FindingsResponse:
        """The result, if there is one; the first request for a small run starts its check."""
        _, stamp = self._library.folder.find(key)
        with self._lock:
            check = self._checks.get(key)
        if check is None:
            return self.start(key) if rollouts is not None and rollouts <= MAX_ROLLOUTS else _ABSENT
        if check.answer is None:
            return _RUNNING
        return replace(check.answer, stale=check.data != stamp.data)

    def start(self, key: str) -> FindingsResponse:
        """Check a run, unless a check of it is waiting or running."""
        path, stamp = self._library.folder.find(key)
        with self._lock:
            check = self._checks.get(key)
            if not self._is_closed and (check is None or check.answer is not None):
                check = self._checks[key] = _CheckJob(stamp.data)
                call = self._pool.submit(check_to_json, str(path.absolute()))
                call.add_done_callback(partial(_finish, check))
        return _RUNNING

    def close(self) -> None:
        """Kill the check that runs, and drop those that wait."""
        with self._lock:
            self._is_closed = True
        self._pool.kill()


def check_to_json(path: str) -> bytes:
    """In a worker process: the response for the check of a run."""
    return encode_response(findings_response(check_run(path)))


def _finish(check: _CheckJob, call: "Future[bytes]") -> None:
    if call.cancelled():
        return
    try:
        check.answer = msgspec.json.decode(call.result(), type=FindingsResponse)
    except (RolltraceError, ValueError) as error:
        check.answer = replace(_ABSENT, state="failed", message=str(error))


def findings_response(report: AuditReport) -> FindingsResponse:
    """The response for a report, the worst audits first."""
    found = tuple(
        AuditResult(
            name=result.audit,
            severity=outcome_severity(result),
            family=result.family,
            why=result.why,
            fix=result.fix,
            count=result.count,
            error=result.error,
            findings=tuple(map(_finding, result.findings)),
        )
        for result in report.with_findings
    )
    return FindingsResponse(state="ready", stale=False, audits=len(report.results), found=found, message=None)


def _finding(finding: Finding) -> AuditFinding:
    return AuditFinding(
        finding.message, finding.rollouts, finding.address, finding.subject, wire_free_form(finding.data)
    )
