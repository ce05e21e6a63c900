"""What checks cost: all audits over a long run, and over one new iteration of it; each in a process of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import measure
import store_scale

from rolltrace.check.audit import Audit, AuditInput
from rolltrace.check.audit_registry import select_audits
from rolltrace.check.audit_report import AuditReport
from rolltrace.check.audit_tables import AuditTables
from rolltrace.check.check_run import IterationChecker, check_run
from rolltrace.check.settings import CheckSettings
from rolltrace.check.table_source import TableSource
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run

ROLLOUTS = 100_000
ITERATION = store_scale.GROUP_SIZE * store_scale.GROUPS_IN_ITERATION
_QUICK = ITERATION
_REPEATS = 3
_SLOWEST = 8


def whole(path: Path) -> list[dict[str, Any]]:
    """Check all of the run twice: the second time, the numbers about texts are in the cache."""
    return [{"check": name, **_measure(partial(check_run, path))} for name in ("the whole run", "again")]


def newest(path: Path) -> list[dict[str, Any]]:
    """Record iterations and check each when it is complete; the first check of the process reads the run."""
    prose = measure.MarkovText(1)
    texts = [prose.words(store_scale.WORDS) for _ in range(2_000)]
    with IterationChecker(path) as checker, create_run(path, join=True, continues=[], trace="full") as run:
        rows = [{"check": "the newest iteration, first check", **_measure(checker.check)}]
        first = (checker.check().iteration or 0) + 1
        for iteration in range(first, first + _REPEATS):
            for number in range(iteration * ITERATION, (iteration + 1) * ITERATION):
                said = [texts[(7 * number + turn) % len(texts)] for turn in range(4)]
                store_scale.play(run, number, said, (number * 0.618) % 1)
            run.flush()
            rows.append({"check": f"{ITERATION} new rollouts", **_measure(checker.check)})
    return rows


def _measure(check: partial[AuditReport] | Any) -> dict[str, Any]:
    started, used = time.perf_counter(), time.process_time()
    report: AuditReport = check()
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    failed = [result.audit for result in report.results if result.error is not None]
    return {
        "audits": len(report.results), "failed": len(failed), "seconds": seconds, "CPU seconds": cpu,
        "peak MB": measure.peak_megabytes(),
    }  # fmt: skip


def slowest(path: Path) -> list[dict[str, Any]]:
    """CPU time of the statements of audits over one iteration: of all, and of the most expensive."""
    times: dict[str, float] = {}
    with open_run(path) as run, closing(TableSource(run, 0)) as source:
        source.iterations(None)
        for audit in select_audits():
            if audit.input is AuditInput.TABLES:
                call = partial(_run_audit, audit, source)
                call()
                times[audit.name] = 1000 * measure.cpu_seconds(call)
    ranked = sorted(times, key=lambda name: -times[name])[:_SLOWEST]
    return [{"audit": "all", "CPU ms": sum(times.values())}, *({"audit": one, "CPU ms": times[one]} for one in ranked)]


def _run_audit(audit: Audit, source: TableSource) -> None:
    list(audit.function(AuditTables(source, CheckSettings(), audit)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a run, and measure it in child processes."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--child", nargs=2, metavar=("PART", "RUN"), help="what a child process is started with")
    options = parser.parse_args(arguments)
    parts = {"whole": whole, "newest": newest, "slowest": slowest}
    if options.child:
        part, path = options.child
        print(json.dumps(parts[part](Path(path))))
        return
    rollouts = _QUICK if options.quick else options.rollouts
    tables: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        store_scale.write(path, str(rollouts))
        for part in parts:
            command = [sys.executable, __file__, "--child", part, str(path)]
            child = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - this file
            tables[part] = json.loads(child.stdout)
    report = {
        "benchmark": "checks", **measure.machine(), "figures": tables,
        "parameters": {"rollouts": rollouts, "iteration": ITERATION},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
