"""Adding an optional field to a record takes one edit: the record."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from viewing import viewing

ROOT = Path(__file__).parents[1]
STEP_FIELDS = '''\
    teacher_remark: Omittable[Text | None] = None
    """What the teacher model remarked about the turn."""
    teacher_scores: Omittable[Numbers] = {}
    """The teacher model's scores."""
'''
HEADER_FIELD = '''\
    curriculum: Omittable[Float | None] = None
    """How far the curriculum had advanced."""
'''
RECORD = """
import sys
import rolltrace

for level in ("full", "numbers"):
    with rolltrace.create_run(f"{sys.argv[1]}/{level}", trace=level) as run:
        with run.rollout(env="e", task="t", group="g", index=0, curriculum=0.25) as r:
            r.step(
                "2 + 2?", "4", 1.0,
                teacher_remark="Quite right.", teacher_scores={"tone": float("nan"), "style": "fine"},
            )
            r.step(None, "5", 0.0)
"""
READ = """
import json, sys
import rolltrace

found = {}
for level in ("full", "numbers"):
    run = rolltrace.open_run(f"{sys.argv[1]}/{level}")
    [rollout] = run.rollouts()
    first, second = rollout.steps
    found[level] = {
        "record": [rollout.curriculum, first.teacher_remark, str(first.teacher_scores["tone"]), first.extra],
        "default": [second.teacher_remark, second.teacher_scores],
        "sql": run.sql(
            "select curriculum, teacher_remark, isnan(teacher_scores['tone']) from rollouts r join steps s"
            " on s.rollout = r.id order by step"
        ).fetchall(),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package and its documents, in which two records have new fields."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tree / "docs", ignore=shutil.ignore_patterns("__pycache__", "pictures"))
    records = tree / "src/rolltrace/trace/rollout.py"
    source = records.read_text()
    for end_of_fields, fields in (
        ("\n    @property\n    def trace(self)", STEP_FIELDS),
        ("\n    @property\n    def identity(self)", HEADER_FIELD),
    ):
        assert source.count(end_of_fields) == 1
        source = source.replace(end_of_fields, fields + end_of_fields)
    records.write_text(source)
    return tree


@pytest.fixture(scope="module")
def python(tree):
    """Runs a program with the changed package."""

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def runs(tree, python):
    """Runs with values in the new fields."""
    python("-c", RECORD, tree / "runs")
    return tree / "runs"


def test_the_field_is_in_the_record_and_in_sql(python, runs):
    """The value is read from Python and from SQL; a step without the field has its default."""
    found = json.loads(python("-c", READ, runs))["full"]
    assert found["record"] == [0.25, "Quite right.", "nan", {"teacher_scores.style": "fine"}]
    assert found["default"] == [None, {}]
    assert found["sql"] == [[0.25, "Quite right.", True], [0.25, None, None]]
    [segment] = runs.glob("full/rollouts/*.jsonl")
    first, second = json.loads(segment.read_text())["steps"]
    assert (first["teacher_remark"], first["teacher_scores"]) == ("Quite right.", {"tone": "NaN"})
    assert not {"teacher_remark", "teacher_scores"} & second.keys()


def test_the_field_is_hashed_under_numbers(python, runs):
    """Its text is not recorded, its numbers are."""
    found = json.loads(python("-c", READ, runs))["numbers"]
    curriculum, remark, tone, extra = found["record"]
    assert (curriculum, tone) == (0.25, "nan")
    assert remark.startswith("hashed:12:")
    assert found["sql"][0][1] == remark
    assert extra["teacher_scores.style"].startswith("hashed:4:")
    assert b"Quite right" not in b"".join(path.read_bytes() for path in runs.glob("numbers/*/*") if path.is_file())


def test_the_field_is_sent_to_the_page(tree, python, runs, monkeypatch):
    """The viewer's responses have it, the table of rollouts offers its column, and the page's types name it."""
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    with viewing(runs / "full") as viewer:

        def ask(path):
            request = urllib.request.Request(f"{viewer.origin}/api/{path}")
            request.add_header("Authorization", f"Bearer {viewer.token}")
            return json.load(urllib.request.urlopen(request, timeout=60))

        [run] = ask("runs")["runs"]
        assert "curriculum" in {column["name"] for column in ask(f"run?run={run['key']}")["columns"]}
        [row] = ask(f"rollouts?run={run['key']}&columns=curriculum")["rows"]
        assert row["curriculum"] == 0.25
        rollout = ask(f"rollout?run={run['key']}&id={row['id']}")["rollout"]
    assert (rollout["curriculum"], rollout["steps"][0]["teacher_remark"]) == (0.25, "Quite right.")
    types = python(tree / "docs/typescript_types.py")
    for line in (
        "curriculum?: Float;",
        "teacher_remark?: string;",
        "teacher_scores?: Record<string, boolean | Float>;",
    ):
        assert f"  {line}\n" in types


def test_the_field_is_in_the_documents(tree, python):
    """The tables of the format and of SQL list it with its type and its docstring."""
    python(tree / "docs/record_tables.py")
    meaning = "What the teacher model remarked about the turn."
    page = (tree / "docs/format.md").read_text()
    assert f"| `teacher_remark` | string or null | {meaning} Left out while it is null. |" in page
    assert "| `curriculum` | DOUBLE | Float64 | float64 |" in page
    assert f"| `teacher_remark` | VARCHAR | {meaning} |" in (tree / "docs/tables.md").read_text()
