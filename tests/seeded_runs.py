"""Runs with one fault: a clean run by the real runner, whose lines are changed with valid checksums."""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rolltrace.check.audit import Finding
from rolltrace.check.audit_registry import select_audits
from rolltrace.check.audit_report import AuditReport
from rolltrace.check.audit_tables import AuditTables
from rolltrace.check.check_run import check_run
from rolltrace.check.settings import AuditSettings, CheckSettings
from rolltrace.check.table_source import TableSource
from rolltrace.envs.registry import load_env
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.plan import Plan, all_iterations, make_runner
from rolltrace.jobs.play import play_into
from rolltrace.jobs.signal_handling import run_blocking
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.trace.codec import add_checksum

Record = dict[str, Any]

_WORDS = [f"{first}{second}" for first in ("ka", "lo", "mi", "nu", "re", "so", "ti") for second in "bdfgklmnprst"]

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
        self.clean = clean
        self._source: TableSource | None = None

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
        self.close()
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
        self.close()
        with create_run(self.path, join=True, continues=[]) as writer:
            for rollout, value in values.items():
                writer.score(rollout, name, value)

    def check(self, settings: CheckSettings | None = None, **choice: Any) -> AuditReport:
        """Check the run."""
        return check_run(self.path, settings=settings, max_findings=10_000, **choice)

    def outcome(self, name: str, settings: CheckSettings = CheckSettings()) -> tuple[list[Finding], str | None]:
        """What one audit of tables finds, and its note. The run is opened once for all that ask before a change."""
        if self._source is None:
            self._source = TableSource(open_run(self.path))
        [audit] = select_audits(only=[name], settings=settings)
        tables = AuditTables(self._source, settings, audit)
        return [*audit.function(tables)], tables.note

    def close(self) -> None:
        """Close the tables that were opened."""
        if self._source is not None:
            self._source.close()
            self._source.run.close()
            self._source = None

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


def assert_seeded(
    seeded: SeededRun,
    audit: str,
    rollouts: Iterable[str],
    also: Iterable[str] = (),
    settings: CheckSettings | None = None,
) -> Finding:
    """Of all audits, this one finds these rollouts, and only `also`, which follow from the same fault, find something.

    The run that it is a copy of is clean by default settings; with others, it is checked here. The last finding.
    """
    if settings is not None:
        checked_clean(seeded.clean, settings)
    report = seeded.check(settings)
    names = found(report)
    assert names.keys() == {audit, *also}, sorted(names)
    assert names[audit] == set(rollouts)
    return next(result for result in report.results if result.audit == audit).findings[-1]


def own_settings(audit: str, **values: Any) -> CheckSettings:
    """Settings of one audit."""
    return CheckSettings(audits={audit: AuditSettings(**values)})


def passes(seeded: SeededRun, audit: str, **settings: Any) -> str | None:
    """Assert that an audit of tables with these settings of its own finds nothing; the note of its outcome."""
    findings, note = seeded.outcome(audit, own_settings(audit, **settings))
    assert not findings
    return note


def prose(number: int, words: int = 120) -> str:
    """Text that has nothing in common with that of another number."""
    return " ".join(random.Random(number).choices(_WORDS, k=words))


def set_reward(record: Record, value: float) -> None:
    """Give a rollout of one step another reward, without a contradiction."""
    step = record["steps"][-1]
    for place, name in ((record, "reward"), (record, "reward_so_far"), (step, "reward"), (step, "env_reward")):
        place[name] = value
    for name in ("reward_data", "metrics"):
        step[name]["correct"] = value


def checked_clean(path: Path, settings: CheckSettings | None = None) -> Path:
    """A run in which no audit finds anything."""
    assert found(check_run(path, settings=settings)) == {}
    shutil.rmtree(path / "cache")  # so that copies are as they were recorded
    return path
