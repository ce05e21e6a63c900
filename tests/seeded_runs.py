"""Runs with one fault: a clean run by the real runner, whose lines are changed with valid checksums."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rolltrace.check.audit import Severity
from rolltrace.check.audit_report import AuditReport, outcome_severity
from rolltrace.check.check_run import check_run
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.envs.registry import load_env
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import Plan, all_iterations, make_runner
from rolltrace.jobs.play import play_into
from rolltrace.jobs.signal_handling import run_blocking
from rolltrace.store.create import create_run
from rolltrace.trace.codec import add_checksum

Record = dict[str, Any]

ENVS: dict[str, dict[str, Any]] = {
    "arithmetic": {},
    "calculator": {"difficulty": 1},
    "guess_number": {"high": 20},
    "rubric": {},
    "preference": {},
}
"""What the clean run plays, each in three iterations of eight groups of four."""


def play_clean(path: Path, envs: dict[str, dict[str, Any]] = ENVS, policy: str = "scripted:noisy", **plan: Any) -> Path:
    """A run of these envs by the real runner, with the same seed each time."""
    settings = Plan(**{"seed": 7, "iterations": 3, "groups": 8, "group_size": 4, **plan})

    async def play_all(active: Any) -> None:
        opened = open_policy(policy)
        roles = dict.fromkeys(("grader", "answerer"), open_policy("scripted:noisy"))
        with create_run(path) as writer:
            for name, args in envs.items():
                tasks = load_env(name, args)
                iterations = await all_iterations(tasks, settings)
                runner = make_runner(settings, opened, roles, writer)
                await play_into(tasks, settings, writer, runner, None, active, iterations)

    run_blocking(play_all)
    return path


class SeededRun:
    """A copy of a clean run, to be given a fault."""

    def __init__(self, clean: Path, path: Path) -> None:
        self.path = Path(shutil.copytree(clean, path))

    def records(self, folder: str = "rollouts", **equal: Any) -> list[Record]:
        """The records of a folder in file order, those whose fields have these values."""
        lines = (line for file in self._files(folder) for line in file.read_bytes().splitlines())
        records = (json.loads(line) for line in lines)
        return [one for one in records if all(one[name] == value for name, value in equal.items())]

    def change(
        self,
        which: Iterable[Record] | Callable[[Record], bool],
        how: Callable[[Record], object],
        folder: str = "rollouts",
    ) -> list[str]:
        """Change records, given or chosen by a function; the ids of those that were changed."""
        ids = None if callable(which) else {record["id"] for record in which}
        changed = []
        for file in self._files(folder):
            lines = file.read_bytes().splitlines(keepends=True)
            for number, line in enumerate(lines):
                record = json.loads(line)
                if record["id"] in ids if ids is not None else which(record):  # type: ignore[operator]
                    del record["crc"]
                    how(record)
                    lines[number] = add_checksum(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())
                    changed.append(record["id"])
            file.write_bytes(b"".join(lines))
        assert changed, "no record was changed"
        return changed

    def score(self, values: dict[str, float | None], name: str) -> None:
        """Record late scores, by rollout."""
        with create_run(self.path, join=True, continues=[]) as writer:
            for rollout, value in values.items():
                writer.score(rollout, name, value)

    def check(self, settings: CheckSettings | None = None, **choice: Any) -> AuditReport:
        """Check the run."""
        return check_run(self.path, settings=settings, max_findings=10_000, **choice)

    def _files(self, folder: str) -> list[Path]:
        return sorted((self.path / folder).glob("*.jsonl"))


def response_of(record: Record, step: int = -1) -> Record:
    """The message that the policy answered with at a step, to be changed in place."""
    response = record["steps"][step]["response"]
    return record["messages"][response] if isinstance(response, int) else response


def found(report: AuditReport) -> dict[str, set[str]]:
    """By audit with findings, the rollouts that they name."""
    failed = {result.audit: result.error for result in report.results if result.error is not None}
    assert not failed
    return {
        result.audit: {rollout for finding in result.findings for rollout in finding.rollouts}
        for result in report.with_findings
    }


def assert_found(report: AuditReport, audit: str, rollouts: Iterable[str], also: Iterable[str] = ()) -> None:
    """The audit found these rollouts, and nothing else did, except audits that follow from the same fault."""
    names = found(report)
    assert names.get(audit) == set(rollouts)
    assert names.keys() - {audit} == set(also)


def assert_seeded(
    seeded: SeededRun,
    audit: str,
    rollouts: Iterable[str],
    also: Iterable[str] = (),
    settings: CheckSettings | None = None,
) -> AuditReport:
    """The audit found these rollouts, its family nothing besides but `also`, and no audit found an error."""
    report = seeded.check(settings)
    names = found(report)
    assert names.get(audit) == set(rollouts)
    families = {result.audit: result.family for result in report.results}
    assert {name for name in names if families[name] == families[audit]} == {audit, *also}
    assert not [r.audit for r in report.with_findings if outcome_severity(r) is Severity.ERROR]
    return report


def passes(seeded: SeededRun, audit: str, **settings: Any) -> str | None:
    """Assert that an audit with these settings of its own finds nothing; the note of its outcome."""
    [result] = seeded.check(CheckSettings(audits={audit: AuditSettings(**settings)}), only=[audit]).results
    assert (result.count, result.error) == (0, None)
    return result.note


def set_reward(record: Record, value: float) -> None:
    """Give a rollout of one step another reward, without a contradiction."""
    step = record["steps"][-1]
    for place, name in ((record, "reward"), (record, "reward_so_far"), (step, "reward"), (step, "env_reward")):
        place[name] = value
    for name in ("reward_data", "metrics"):
        step[name]["correct"] = value


def assert_no_error_besides(
    report: AuditReport, audit: str, rollouts: Iterable[str], also: Iterable[str] = (), family: str = ""
) -> None:
    """The audit found these rollouts; audits of its family and errors of any audit are only those that follow."""
    assert found(report).get(audit) == set(rollouts)
    others = {r.audit for r in report.with_findings if r.family == family or outcome_severity(r) is Severity.ERROR}
    assert others - {audit} == set(also)


def assert_clean(report: AuditReport) -> None:
    """No audit found anything but what is worth knowing."""
    assert not [r.audit for r in report.with_findings if outcome_severity(r) is not Severity.INFO], found(report)
