"""What the guide to checking shows works, and its list of audits is whole."""

import re
import shutil
from pathlib import Path

from rolltrace.check.audit_registry import built_in_audits
from rolltrace.check.record_index import RecordIndex
from rolltrace.query.table_schema import STORED_COLUMNS

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


def test_the_columns_of_the_catalogue_are_in_the_guide():
    """The guide has each table with its columns, and what SQL has is called as there."""
    catalogue = RecordIndex()
    for table in ("rollouts", "scores", "blobs"):
        columns = [row["name"] for row in catalogue.rows(f"select name from pragma_table_info('{table}')")]
        assert f"| `{table}` | {', '.join(f'`{name}`' for name in columns)} |" in GUIDE.read_text()
        own = {"file", "offset", "file_session", "reward_so_far"}
        assert table == "blobs" or set(columns) - own <= STORED_COLUMNS[table].keys()
    catalogue.close()


def test_every_audit_is_in_the_guide():
    """The table is what the audits say of themselves."""
    rows = [
        f"| `{one.name}` | {one.severity.value} | {one.function.__doc__.strip().rstrip('.')} |"
        for one in built_in_audits()
    ]
    assert GUIDE.read_text().rstrip().splitlines()[-len(rows) :] == rows
