"""What audits find in runs that have nothing wrong: no errors, and only warnings that the documentation explains."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolltrace.check.audit import Severity
from rolltrace.check.audit_report import outcome_severity
from rolltrace.check.check_run import check_run
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter

PAGE = Path(__file__).parents[1] / "docs" / "checks.md"
HEADING = "## Warnings where nothing is wrong"


def assert_explained(run: str | Path, warnings: Iterable[str] = ()) -> None:
    """No audit fails or finds an error in the run, and only these have warnings, which the documentation explains."""
    report = check_run(run)
    failed = {result.audit: result.error for result in report.results if result.error is not None}
    assert not failed, failed
    errors = {
        result.audit: [finding.message for finding in result.findings]
        for result in report.with_findings
        if outcome_severity(result) is Severity.ERROR
    }
    assert not errors, errors
    warned = {
        result.audit: [finding.message for finding in result.findings]
        for result in report.with_findings
        if result.audit not in warnings and outcome_severity(result) is Severity.WARNING
    }
    assert not warned, warned
    assert set(warnings) <= explained_warnings(), f"explain them in {PAGE.name}"


@contextmanager
def explained_run(request: pytest.FixtureRequest, path: Path, **settings: Any) -> Iterator[RunWriter]:
    """A run that is being written, for a fixture. When it is closed, it is checked.

    The marker `warns` names the audits that may have a warning about it.
    """
    with create_run(path, **settings) as writer:
        yield writer
    marker = request.node.get_closest_marker("warns")
    assert_explained(path, marker.args if marker is not None else ())


def explained_warnings() -> set[str]:
    """The audits that the table of the documentation names."""
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}
