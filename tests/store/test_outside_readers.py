"""DuckDB, Polars and pandas read plain and compressed segments with the code that `docs/format.md` shows."""

import json
import math
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

import rollout_builders
from rolltrace.store.compression import compress_segment
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Status

duckdb = pytest.importorskip("duckdb")
polars = pytest.importorskip("polars")
pandas = pytest.importorskip("pandas")

pytestmark = pytest.mark.core

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text().partition("## Columns")[2]
TEXT = 'a "quote", \\back\\slash, \n\t\x00\x01\x7f é 😀 \u2028 </script> {"a": 1}'
SEED = 2**62 + 1
"""Larger than what a float can hold exactly."""
LATE = 21_000
"""So many lines come before a key first appears: more than the 20,480 from which DuckDB guesses types by default."""


def short_line():
    """A minimal line, since there are many."""
    return (
        RolloutBuilder(rollout_builders.header(id="r1", task="17", policy_version=7))
        .encode(rollout_builders.outcome(reward=None, reward_so_far=0.0, status=Status.ERROR))
        .data
    )


def line(number, *, reward=1.0, metrics=None, reward_data=None, free_form=None, arguments="{}", **header):
    """One line; its free-form fields are the same everywhere."""
    free_form = free_form or {}
    rollout_builder = RolloutBuilder(
        rollout_builders.header(**{"id": f"r{number}", "task": "17", "task_data": free_form, **header})
    )
    rollout_builder.metrics = metrics or {}
    rollout_builder.extend([Message("user", TEXT)])
    rollout_builder.mark_prompt_sent()
    said = Message("assistant", TEXT, tool_calls=(ToolCall("look", arguments, id="c1"),))
    rollout_builder.step(said, reward=0.5, reward_data=reward_data or {}, env_state=free_form, metrics=metrics or {})
    status = Status.ERROR if reward is None else Status.OK
    return rollout_builder.encode(
        rollout_builders.outcome(reward=reward, reward_so_far=reward or 0.0, status=status)
    ).data


def many_lines():
    """Very many lines without rewards or map keys, and then lines with everything."""
    yield line(0, reward=None)
    yield from [short_line()] * (LATE - 1)
    yield line(
        LATE,
        reward=0.1 + 0.2,
        metrics={"late": math.nan, "flag": True},
        reward_data={"late": math.inf, "correct": 1},
        free_form={"late": {TEXT: [TEXT, None, 0.1 + 0.2, SEED]}},
        arguments='{"late": 1}',
        policy_version="7b",
        seed=SEED,
        tags=("math", TEXT),
        episode=3,
    )
    yield line(LATE + 1, reward=math.nan, metrics={"late": -0.0}, policy_version=8)
    yield line(LATE + 2, reward=-math.inf, metrics={"late": 5e-324}, seed=-5)


@pytest.fixture(scope="module")
def segments(tmp_path_factory):
    """The same lines in two segments, plain and compressed."""
    folders = {form: tmp_path_factory.mktemp(form) for form in ("plain", "sealed")}
    lines = list(many_lines())
    (folders["plain"] / "session-000000.jsonl").write_bytes(b"".join(lines[:-1]))
    (folders["plain"] / "session-000001.jsonl").write_bytes(lines[-1])
    for path in sorted(folders["plain"].iterdir()):
        compress_segment(Path(shutil.copy(path, folders["sealed"])))
    paths = {form: [str(path) for path in sorted(folder.iterdir())] for form, folder in folders.items()}
    assert all(path.endswith(".jsonl.zst") for path in paths["sealed"])
    assert Path(paths["sealed"][0]).read_bytes().count(b"\x28\xb5\x2f\xfd") > 10  # many frames, not one
    return paths


@pytest.fixture(scope="module", params=["plain", "sealed"])
def shown(request, segments):
    """The tables that the document's programs read from the segments."""
    defined = {"segments": segments[request.param]}
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "docs/format.md", "exec"), defined)
    return defined


@pytest.fixture(scope="module")
def truth():
    """The same records, as the standard library reads them."""
    return [json.loads(data) for data in many_lines()]


def same(found, expected):
    """Equal, with NaN equal to itself and zeros told apart by sign."""
    return repr(found) == repr(expected)


def floats(values):
    """Numbers of the record as floats; None stays None."""
    return [None if value is None else float(value) for value in values]


def times(values):
    """Times of the record."""
    return [datetime.fromisoformat(value).astimezone(UTC) for value in values]


def test_duckdb_reads_every_column(shown, truth):
    """Scalars are typed, maps are maps of floats, and free-form fields are the JSON that was written."""
    relation = shown["rollouts"]
    assert [str(kind) for kind in relation.types] == [
        kind.replace("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE") for kind in shown["COLUMNS"].values()
    ]
    chosen = ", ".join(
        f'epoch_us("{name}")' if kind.startswith("TIMESTAMP") else f'"{name}"'
        for name, kind in shown["COLUMNS"].items()
    )
    rows = duckdb.sql(f"select {chosen} from relation").fetchall()
    assert len(rows) == len(truth) == LATE + 3
    for place in (0, 1, *range(LATE - 1, LATE + 3)):
        for (name, kind), found in zip(shown["COLUMNS"].items(), rows[place], strict=True):
            expected = truth[place].get(name)
            if kind == "JSON":
                found = None if found is None else json.loads(found)
            elif kind.startswith("MAP"):
                expected = {key: float(value) for key, value in expected.items()}
            elif kind == "DOUBLE":
                [expected] = floats([expected])
            elif kind.startswith("TIMESTAMP"):
                [moment] = times([expected])
                expected = round(moment.timestamp() * 1_000_000)
            elif name == "policy_version" and expected is not None:
                expected = str(expected)
            assert same(found, expected), (place, name)


def test_duckdb_takes_steps_apart(shown):
    """The maps of a step are typed too, and a key that first appears late is found."""
    assert shown["by_part"] == [(1.0, math.inf)]
    [(iteration, _, late)] = shown["by_iteration"]
    assert iteration == 0
    assert math.isnan(late)
    steps = shown["steps"]  # noqa: F841 - DuckDB finds it by its name
    [(state, late, flag)] = duckdb.sql(
        f"select env_state, reward_data['late'], metrics['flag'] from steps where id = 'r{LATE}'"
    ).fetchall()
    assert json.loads(state) == {"late": {TEXT: [TEXT, None, 0.1 + 0.2, SEED]}}
    assert (late, flag) == (math.inf, 1.0)


def test_polars_reads_every_column(shown, truth):
    """Scalars are typed, everything else is the text of the JSON that was written."""
    names = [*Rollout.__struct_encode_fields__, "crc"]
    # Each column is looked up in every line: a few lines at the end are enough for all forty.
    lazy = polars.scan_lines(shown["segments"]).tail(4).select(shown["column"](name) for name in names)
    frame = lazy.collect()
    last = truth[-4:]
    for name in names:
        found, expected = frame[name].to_list(), [row.get(name) for row in last]
        kind = shown["COLUMNS"][name]
        if kind in ("JSON", "VARCHAR[]") or kind.startswith("MAP"):
            assert frame[name].dtype == polars.String
            found = [None if value is None else json.loads(value) for value in found]
        elif kind == "DOUBLE":
            expected = floats(expected)
        elif kind.startswith("TIMESTAMP"):
            assert frame[name].dtype == polars.Datetime("us", "UTC")
            assert found == times(expected)
            continue
        elif name == "policy_version":
            expected = [None if value is None else str(value) for value in expected]
        assert same(found, expected), name


def test_polars_finds_a_late_key(shown, truth):
    """All segments are read whole, and a key that first appears late is found."""
    frame = shown["frame"]
    assert frame.height == LATE + 3
    assert frame["id"].to_list() == [row["id"] for row in truth]
    assert same(frame["reward"].to_list()[-4:], [None, 0.1 + 0.2, math.nan, -math.inf])
    assert frame["steps[0].reward_data.late"].to_list()[-4:] == [None, "Infinity", None, None]
    assert json.loads(frame["metrics"][LATE]) == {"late": "NaN", "flag": True}


def test_pandas_reads_every_column(shown, truth):
    """Scalars are typed and exact, everything else is dicts and lists."""
    frame = shown["table"]
    assert list(frame.columns) == [*Rollout.__struct_encode_fields__, "crc"]
    kinds = {
        "BIGINT": "Int64",
        "DOUBLE": "float64",
        "VARCHAR": "string",
        "TIMESTAMP WITH TIME ZONE": "datetime64[us, UTC]",
    }
    for name, kind in shown["COLUMNS"].items():
        assert str(frame[name].dtype) == kinds.get(kind, "object"), name
        found, expected = frame[name].tolist(), [row.get(name) for row in truth]
        assert len(found) == LATE + 3
        found, expected = found[:2] + found[-5:], expected[:2] + expected[-5:]
        if kind == "DOUBLE":
            expected = [math.nan if value is None else float(value) for value in expected]
        elif kind.startswith("TIMESTAMP"):
            found, expected = [moment.to_pydatetime() for moment in found], times(expected)
        elif kind in ("BIGINT", "VARCHAR"):
            found = [None if value is pandas.NA else value for value in found]
            if name == "policy_version":
                expected = [None if value is None else str(value) for value in expected]
        assert same(found, expected), name


def test_the_table_names_the_types_of_the_programs(shown):
    """The table of columns agrees with the programs."""
    rows = [
        [cell.strip(" `") for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| `.*$", DOCUMENT, re.MULTILINE)
    ]
    assert {row[0]: row[1] for row in rows} == shown["COLUMNS"]
    in_polars = {"BIGINT": "Int64", "DOUBLE": "Float64", "VARCHAR": "String"}
    in_pandas = {"BIGINT": "Int64", "DOUBLE": "float64", "VARCHAR": "string"}
    for name, kind, polars_kind, pandas_kind in rows:
        if kind.startswith("TIMESTAMP"):
            assert (polars_kind, pandas_kind) == ('Datetime("us", "UTC")', "datetime64[us, UTC]"), name
        else:
            assert polars_kind == in_polars.get(kind, "String, of JSON"), name
            assert pandas_kind == in_pandas.get(kind, "object"), name
