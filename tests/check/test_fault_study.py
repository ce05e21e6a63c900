"""Every fault that other recorders had is caught here, and the documentation says by what."""

import ast
from dataclasses import replace

import pytest

import fault_study
from fault_study import ROOT, SOURCES, changed, main, table
from known_faults import FAULTS, PAGE_SCRIPT
from rolltrace.check.audit_registry import built_in_audits


def test_the_documentation_has_the_table():
    """Run `python tests/fault_study.py` and put its output there after a change of the faults."""
    assert f"\n\n{table(FAULTS)}\n" in (ROOT / "docs" / "checks.md").read_text()


def test_what_catches_a_fault_exists():
    """Each fault has one thing that catches it, and each test and audit that is named exists."""
    audits = {audit.name for audit in built_in_audits()}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert [bool(fault.tests), bool(fault.audit), bool(fault.code)].count(True) == 1, fault.name
        assert not fault.audit or fault.audit in audits
        for test in fault.tests:
            file, name = test.partition("[")[0].split("::")
            tree = ast.parse((ROOT / file).read_text())
            assert name in {getattr(node, "name", None) for node in tree.body}, test


def test_every_change_applies():
    """The sources still have the text that each fault replaces."""
    for fault in FAULTS:
        for file, old, new in fault.changes:
            if file != PAGE_SCRIPT:  # it is built
                source = (SOURCES / file).read_text()
                assert source.count(old) == 1, (fault.name, old)
                compile(changed(source, old, new), file, "exec")


@pytest.mark.slow
def test_every_fault_is_caught(capsys, monkeypatch):
    """With each fault injected, what is named for it complains; without one, nothing does."""
    monkeypatch.chdir(ROOT)
    assert main([]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_fault_that_is_not_caught_is_reported(capsys, monkeypatch):
    """A fault whose test passes nevertheless is named, and the exit code is 1."""
    fault = next(fault for fault in FAULTS if fault.name == "bare_nan")
    other = "tests/trace/test_json_numbers.py::test_asking_a_hostile_object_does_not_raise"
    monkeypatch.setattr(fault_study, "FAULTS", [replace(fault, tests=(other,))])
    assert main([]) == 1
    assert f"bare_nan: not caught by {other}" in capsys.readouterr().err
