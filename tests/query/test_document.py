"""The page about tables agrees with the tables."""

import re
from pathlib import Path

import pytest

from answers import write
from rolltrace.query.run import open_run
from rolltrace.query.sql_check import TABLES
from rolltrace.store.create import create_run

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with values in most columns."""
    path = tmp_path_factory.mktemp("documented") / "run"
    with create_run(path) as writer:
        for index in range(4):
            write(writer, index=index, iteration=index % 2, reward=index / 2, step={"reward_data": {"correct": index}})
    with open_run(path) as opened:
        yield opened


def documented(table):
    return re.findall(r"^\| `(\w+)` \| (.+?) \| .*\|$", SECTIONS[table], re.MULTILINE)


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_documented(run, table):
    """Each table has a section with exactly its columns and their types, in order."""
    result = run.sql(f"select * from {table}")
    columns = documented("rollouts") + documented(table) if table == "every_rollout" else documented(table)
    assert columns == list(zip(result.columns, result.types, strict=True))


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_questions_can_be_asked(run, sql):
    """Each example statement of the page runs."""
    assert run.sql(sql).columns
    run.sql(sql).fetchall()


def test_python_of_the_page_runs(run, monkeypatch, capsys):
    """The Python example of the page runs."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(run.path.parent)
    exec(code.replace("runs/gsm8k", "run").replace("parse_error", "completed"), {})  # the page's own code
    assert "avg(reward)" in capsys.readouterr().out
