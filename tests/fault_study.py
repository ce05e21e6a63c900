"""Injects each fault that other recorders had, and shows which test, audit or type catches it.

    python tests/fault_study.py [NAME …]

Prints a table in Markdown. Exits with 1 if a fault is not caught, or if a test or an audit complains without one.
"""

import importlib.machinery
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType
from typing import Any

from known_faults import FAULTS, PAGE_SCRIPT, Fault

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "rolltrace"
FAULT_VARIABLE = "ROLLTRACE_FAULT"
"""Names the fault that this module injects when it is imported, which `sitecustomize` does in each process."""
FOLDER_VARIABLE = "ROLLTRACE_FAULT_FOLDER"
"""Names a folder for changed copies of the viewer's page."""
SECONDS = 900
MIN_SAMPLE = 50
"""What the run has of everything: less than some audits need by default."""


class FaultFinder(MetaPathFinder):
    """Imports modules of the package with the changes of a fault."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's place, with a loader that changes its source."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name.startswith("rolltrace.") else None
        if spec is None or spec.origin is None:
            return None
        changes = [(old, new) for file, old, new in self._fault.changes if Path(spec.origin) == SOURCES / file]
        if name == "rolltrace.viewer.page_files" and self._fault.changes[0][0] == PAGE_SCRIPT:
            changes = [('Path(__file__).parent / "page"', f"Path({self._changed_page()!r})")]
        if changes:
            spec.loader = FaultyLoader(name, spec.origin, changes)
        return spec

    def _changed_page(self) -> str:
        folder, built = Path(tempfile.mkdtemp(dir=os.environ[FOLDER_VARIABLE])), SOURCES / "viewer" / "page"
        for file in filter(Path.is_file, built.rglob("*")):
            copy = folder / file.relative_to(built)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes())
        script = folder / Path(PAGE_SCRIPT).relative_to("viewer/page")
        for _, old, new in self._fault.changes:
            script.write_text(changed(script.read_text(), old, new))
        return str(folder)


class FaultyLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source with changes, never from the cache."""

    def __init__(self, name: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        """The changed code."""
        source = Path(self.path).read_text()
        for old, new in self._changes:
            source = changed(source, old, new)
        return compile(source, self.path, "exec", dont_inherit=True)


def changed(source: str, old: str, new: str) -> str:
    """A source with a change, which must apply."""
    if old not in source:
        raise ValueError(f"Expected {old!r} in the source, got none: adapt the change in known_faults.py.")
    return source.replace(old, new)


if FAULT_VARIABLE in os.environ:
    sys.meta_path.insert(0, FaultFinder(next(fault for fault in FAULTS if fault.name == os.environ[FAULT_VARIABLE])))


def run_tests(tests: Sequence[str], fault: str | None = None) -> dict[str, str]:
    """Run tests, with a fault or without; by test that ran, its outcome: passed, failure, error or skipped."""
    from xml.etree import ElementTree as ET

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with tempfile.TemporaryDirectory(prefix="rolltrace-study-") as folder:
        Path(folder, "sitecustomize.py").write_text("import fault_study\n")
        environment["PYTHONPATH"] = os.pathsep.join([folder, str(ROOT / "src"), str(ROOT / "tests")])
        if fault is not None:
            environment |= {FAULT_VARIABLE: fault, FOLDER_VARIABLE: folder}
        report = Path(folder, "report.xml")
        options = ["-q", "-n", "0", "--tb=native", "-p", "no:cacheprovider", f"--basetemp={folder}/tests"]
        options += [f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        said = subprocess.run(command, cwd=ROOT, env=environment, timeout=SECONDS, check=False, capture_output=True)
        if not report.exists():
            raise RuntimeError(f"pytest made no report: {said.stderr.decode()}")
        outcomes = {}
        for case in ET.parse(report).iter("testcase"):
            outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
            outcomes[f"{case.get('file')}::{case.get('name')}"] = outcome
    return outcomes


def caught_by_tests(fault: Fault) -> str | None:
    """Why the tests do not catch it, or None: each must run, and fail."""
    outcomes = run_tests(fault.tests, fault.name)
    missed = [test for test in fault.tests if outcomes.get(test) not in ("failure", "error")]
    return f"not caught by {', '.join(missed)}" if missed else None


def caught_by_type(fault: Fault) -> str | None:
    """Why the type checker does not catch it, or None."""
    with tempfile.TemporaryDirectory(prefix="rolltrace-study-") as folder:
        file = Path(folder, "user_code.py")
        file.write_text(fault.code)
        command = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(file)]
        said = subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": "src"}, check=False, capture_output=True)
    lines = said.stdout.decode().splitlines()
    return None if any("user_code.py" in line and "error:" in line for line in lines) else f"mypy says {lines}"


def caught_by_audits(faults: Sequence[Fault]) -> Iterator[tuple[Fault, str | None]]:
    """Why each fault is not found in a run, or None. The run itself must be clean."""
    from rolltrace.check.settings import AuditSettings, CheckSettings
    from seeded_runs import SeededRun, found, play_clean

    few = CheckSettings(audits={"dead_reward_term": AuditSettings(min_sample=MIN_SAMPLE)})
    with tempfile.TemporaryDirectory(prefix="rolltrace-study-") as folder:
        clean = play_clean(Path(folder, "clean"))
        assert found(SeededRun(clean, Path(folder, "copy")).check(few)) == {}
        for fault in faults:
            run = SeededRun(clean, Path(folder, fault.name))
            expected = set(fault.seed(run)) if fault.seed is not None else set()
            names = found(run.check(few))
            missed = fault.audit not in names or expected - names[fault.audit]
            yield fault, f"not found by {fault.audit}, but {sorted(names)}" if missed else None


def results(faults: Sequence[Fault]) -> Iterator[tuple[Fault, str | None]]:
    """Each fault, with the reason why it is not caught, or None."""
    for fault in faults:
        if fault.tests:
            yield fault, caught_by_tests(fault)
        elif fault.code:
            yield fault, caught_by_type(fault)
    in_records = [fault for fault in faults if fault.audit]
    if in_records:
        yield from caught_by_audits(in_records)


def table(faults: Sequence[Fault]) -> str:
    """The table in the documentation."""
    rows = [f"| {fault.fault} | {fault.injected} | {fault.caught_by} |\n" for fault in faults]
    return "| fault | injected as | caught by |\n|---|---|---|\n" + "".join(rows)


def main(names: Sequence[str]) -> int:
    """Study the faults of these names, or all."""
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        sys.stderr.write(f"Unknown faults: {', '.join(sorted(unknown))}\n")
        return 2
    faults = [fault for fault in FAULTS if not names or fault.name in names]
    tests = sorted({test for fault in faults for test in fault.tests})
    clean = run_tests(tests) if tests else {}
    reasons = [f"{test} fails without a fault" for test in tests if clean.get(test) != "passed"]
    for fault, reason in results(faults):
        sys.stderr.write(f"{fault.name}: {reason or 'caught'}\n")
        reasons += [f"{fault.name}: {reason}"] if reason is not None else []
    sys.stdout.write(table(faults))
    sys.stderr.write("".join(f"{reason}\n" for reason in reasons))
    return 1 if reasons else 0


if __name__ == "__main__":
    os.environ |= {"ROLLTRACE_WORKERS": "1", "ROLLTRACE_CACHE_KEY": "tests"}  # as for tests
    sys.exit(main(sys.argv[1:]))
