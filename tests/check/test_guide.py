"""What the guide to checking shows works, and its list of audits is whole."""

import re
import shutil
from pathlib import Path

from rolltrace.check.audit_registry import built_in_audits

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "check-run.md"


def test_the_code_of_the_guide_runs(sound_run, tmp_path, monkeypatch, capsys):
    """Each block of Python continues the one before, on a run of that name."""
    shutil.copytree(sound_run, tmp_path / "runs" / "gsm8k")
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(block, names)
    assert capsys.readouterr().out == "True\n"
    assert names["report"].ok
    assert [result.audit for result in names["report"].results[-2:]] == ["no_digit", "no_signal"]
    assert all(result.error is None for result in names["report"].results)


def test_every_audit_is_in_the_guide():
    """The table is what the audits say of themselves."""
    rows = [
        f"| `{one.name}` | {one.severity.value} | {one.function.__doc__.strip().rstrip('.')} |"
        for one in built_in_audits()
    ]
    assert GUIDE.read_text().rstrip().splitlines()[-len(rows) :] == rows
