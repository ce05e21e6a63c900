"""Follows the findings of a run while it is written: which are new, and which are resolved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import msgspec

from rolltrace.check.audit import Finding
from rolltrace.check.audit_report import AuditOutcome, AuditReport
from rolltrace.check.check_run import CheckOptions, IterationChecker
from rolltrace.errors import InputError
from rolltrace.query.follow import StopEvent
from rolltrace.store.layout import read_info
from rolltrace.store.object_address import as_path
from rolltrace.store.object_files import files_of

SECONDS = 5.0
"""How long to wait between two checks, by default."""


class FindingChanges(msgspec.Struct, frozen=True):
    """What a check found that the one before did not, and the reverse."""

    report: AuditReport
    new: tuple[tuple[AuditOutcome, Finding], ...]
    resolved: tuple[tuple[AuditOutcome, Finding], ...]


def watch_run(
    path: str | Path, stop: StopEvent, seconds: float = SECONDS, **options: Unpack[CheckOptions]
) -> Iterator[FindingChanges]:
    """Check the newest iteration of a run every `seconds`, until `stop` is set.

    Yields the first check, and each that changed something. A finding about an earlier iteration stays as it is. One
    about the whole env is resolved when the newest iteration no longer shows it, unless its audit failed or found more
    than it reports. Raises `RunNotFoundError` if the run is deleted, and `InputError` if another takes its place.
    """
    files = files_of(as_path(path))
    run: str | None = None
    known: dict[tuple[str, str], tuple[AuditOutcome, Finding]] = {}
    seen_in: dict[tuple[str, str], int | None] = {}
    failed_before: set[str] = set()
    is_first = True
    with IterationChecker(path, **options) as checker:
        while is_first or not stop.wait(seconds):
            if not is_first and read_info(files).id != run:
                raise InputError(f"Expected the run {run} at {path}, got another, which has replaced it: watch that.")
            report = checker.check()
            run = report.run
            found = {(result.audit, one.key): (result, one) for result in report.results for one in result.findings}
            number = report.iteration
            looked_at = [
                key for key, (_, one) in known.items() if seen_in[key] == number or not _names(one, seen_in[key])
            ]
            failed = {result.audit for result in report.results if result.error is not None}
            incomplete = failed | {result.audit for result in report.results if result.count > len(result.findings)}
            gone = [key for key in looked_at if key not in found and key[0] not in incomplete]
            new = tuple(pair for key, pair in found.items() if key not in known)
            changes = FindingChanges(report, new, tuple(known.pop(key) for key in gone))
            known |= found
            seen_in |= dict.fromkeys(found, number)
            if is_first or changes.new or changes.resolved or failed != failed_before:
                yield changes
            is_first, failed_before = False, failed


def _names(finding: Finding, iteration: int | None) -> bool:
    """Whether it is about this iteration alone, so that later ones do not resolve it."""
    return finding.address is not None and str(iteration) in finding.address.split("/")[2:]
