"""Users' SQL reads the run's tables and nothing else, within bounds, and does not delay other requests."""

import asyncio
import concurrent.futures
import http.client
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from asking import answer, ask, post
from rolltrace.viewer import sql_worker_pool
from viewing import Viewer, viewing

REFUSED = (
    "select * from read_text('/etc/passwd')", "select * from '/etc/passwd'", "from read_csv('/etc/passwd')",
    "select * from read_parquet('*.parquet')", "select * from glob('/*')", "attach '/tmp/other.db'",
    "attach ':memory:' as other", "copy rollouts to '/tmp/stolen.csv'", "install httpfs", "load httpfs",
    "select * from read_json('http://127.0.0.1:1/x')", "create table t as select 1", "drop view rollouts",
    "set memory_limit = '100GB'", "pragma database_list", "select getenv('PATH')", "select 1; select 2", "",
    "insert into rollouts select * from rollouts", "explain analyze select 1", "call pragma_version()",
    "select * from duckdb_settings()", "select current_setting('memory_limit')", "export database '/tmp/x'",
    "update rollouts set reward = 1", "delete from rollouts", "vacuum", "checkpoint", "not sql at all",
)  # fmt: skip
GREEDY = (
    "select repeat('x', 10000000000)", "select repeat('x', 100000000) from range(1000)",
    "select repeat('x', 3000000) from range(100000)", "select list_aggregate(range(1000000000), 'sum')",
    "select list(range) from range(1000000000)", "select string_agg(repeat('x', 1000), '') from range(10000000)",
    "with recursive t as (select 'x' as a union all select a || a from t) select max(length(a)) from t",
)  # fmt: skip
ENDLESS = (
    "select count(*) from range(1000000000000)",
    "select count(*) from range(1000000) a, range(1000000) b, range(1000000) c where a.range + b.range < c.range",
)
RUN = {"run": "arithmetic"}


def test_a_statement_is_answered(viewer: Viewer):
    """An answer has columns with their types, rows as JSON, and whether there are more."""
    reply = post(viewer, "sql", sql="select iteration, count(*) as n from rollouts group by 1 order by 1", **RUN).json
    assert reply["columns"] == [{"name": "iteration", "type": "BIGINT"}, {"name": "n", "type": "BIGINT"}]
    assert reply["rows"] == [[iteration, 16] for iteration in range(5)]
    assert reply["more"] is False
    assert len(post(viewer, "sql", sql="select * from range(50)", limit=50, **RUN).json["rows"]) == 50
    some = post(viewer, "sql", sql="select * from range(51)", limit=50, **RUN).json
    assert (len(some["rows"]), some["more"]) == (50, True)


def test_every_kind_of_value_is_json(viewer: Viewer):
    """Numbers that are not finite or not exact in a browser are text, and times are marked as UTC."""
    sql = """
        select 'NaN'::double, '-inf'::double, 9007199254740993, 1::hugeint << 100, 1.25::decimal(9, 2), true, null,
            timestamp '2026-01-02 03:04:05.678', date '2026-01-02', interval 1 day, [1, null, 'NaN'::double],
            {'a': 1}, map([1, 2], ['x', 'y']), 'ab'::blob, uuid '00000000-0000-0000-0000-000000000001', '<b>&'
    """
    [row] = post(viewer, "sql", sql=sql, **RUN).json["rows"]
    assert row[:7] == ["NaN", "-Infinity", "9007199254740993", str(1 << 100), "1.25", True, None]
    assert row[7:11] == ["2026-01-02T03:04:05.678000Z", "2026-01-02", "1 day", [1, None, "NaN"]]
    assert row[11:] == [
        {"a": 1}, {"1": "x", "2": "y"}, "ab", "00000000-0000-0000-0000-000000000001", "<b>&",
    ]  # fmt: skip


def test_answers_are_of_bounded_size(viewer: Viewer):
    """Long cells are truncated with a mark, and the number of rows is bounded by their total size."""
    [[cell]] = post(viewer, "sql", sql="select repeat('é', 150000)", **RUN).json["rows"]
    assert cell == "é" * 100_000 + "… (50,000 more characters)"
    many = post(viewer, "sql", sql="select repeat('x', 90000) from range(5000)", limit=5000, **RUN)
    assert many.json["more"] is True
    assert len(many.body) < 21_000_000
    for limit in (0, -1, 10_001):
        assert post(viewer, "sql", sql="select 1", limit=limit, **RUN).status == 400


def test_statements_that_do_more_than_read_are_refused(viewer: Viewer):
    """Files, other databases, the network, settings and every statement that changes something are refused."""
    for sql in REFUSED:
        reply = post(viewer, "sql", sql=sql, **RUN)
        assert reply.status == 400, sql
        assert reply.json["error"]["message"]
        assert b"root:" not in reply.body
    assert not Path("/tmp/stolen.csv").exists()
    assert post(viewer, "sql", sql="select count(*) from rollouts", **RUN).json["rows"] == [[80]]


def test_an_expression_is_no_more_than_that(viewer: Viewer):
    """A filter expression cannot close its bracket, add clauses, read files or name other tables' columns."""
    for where in (
        "true) union select id from rollouts --", "true limit 1", "true order by 1", "1; select 1",
        "id in (select content from read_text('/etc/passwd'))", "getenv('HOME') = 'x'", "nothing = 1", "r.id = 'x'",
        "j0.value > 1", "true /*", "true) limit (1", "true) order by (1",
        "true) union all select * from rollouts where (true", "(", "true group by all", "j0 is null",
    ):  # fmt: skip
        for question in ("rollouts", "series", "histogram", "facets", "outcomes", "environments", "neighbours"):
            reply = ask(viewer, question, where=where, id="x", columns="env", sort="reward_data.correct", **RUN)
            assert reply.status == 400, (question, where)
    rows = answer(viewer, "rollouts", where="reward > 0.5 -- only the good", columns="reward", **RUN)["rows"]
    assert {row["reward"] for row in rows} == {1.0}
    wider = answer(viewer, "rollouts", where="true) or (true", filter="reward:min:2", **RUN)
    assert wider["total"] == 0
    steps = answer(viewer, "rollouts", where="id in (select rollout from steps where step > 5)", **RUN)
    assert steps["total"] == 0


def test_unbounded_memory_is_refused(viewer: Viewer):
    """A statement or expression that allocates without bound is cancelled, and the server does not grow."""
    status = Path(f"/proc/{viewer.process.pid}/status")
    for sql in GREEDY:
        assert post(viewer, "sql", sql=sql, **RUN).status == 400, sql
    assert ask(viewer, "rollouts", where="length(repeat('x', 100000000 + index)) = 1", **RUN).status == 400
    if status.exists():
        [peak] = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        assert int(peak) < 500_000
    assert post(viewer, "sql", sql="select count(*) from rollouts", **RUN).json["rows"] == [[80]]
    assert answer(viewer, "rollouts", **RUN)["total"] == 80


def test_endless_statements_time_out_and_delay_no_other(viewer: Viewer):
    """While two endless statements run, pages are answered; then both get a time-out."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = [pool.submit(post, viewer, "sql", sql=sql, **RUN) for sql in ENDLESS]
        answered_meanwhile = 0
        for question in ("runs", "run", "rollouts", "series", "outcomes", "revisions"):
            assert ask(viewer, question, **RUN).status == 200
            answered_meanwhile += not any(one.done() for one in running)
        assert answered_meanwhile >= 2  # on a busy machine the time of the statements may be over before the last
        for one in running:
            assert one.result().json["error"]["type"] == "QueryTimeoutError"
    assert post(viewer, "sql", sql="select 42", **RUN).json["rows"] == [[42]]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at where the system shows them")
def test_an_abandoned_statement_is_ended(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If the client disconnects, the process of its statement is ended, and no file is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with viewing(runs) as viewer:
        parts = urlsplit(viewer.origin)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        headers = {"Authorization": f"Bearer {viewer.token}", "Content-Type": "application/json"}
        assert post(viewer, "sql", sql="select 1", **RUN).status == 200
        [process] = children(viewer.process.pid)
        before = ticks(process)
        connection.request("POST", "/api/sql", json.dumps({"sql": ENDLESS[0], **RUN}), headers)
        until(lambda: ticks(process) > before + 20)  # it is busy with the statement
        connection.close()
        until(lambda: not Path(f"/proc/{process}").exists())
        assert post(viewer, "sql", sql="select 42", **RUN).json["rows"] == [[42]]
    assert list(tmp_path.iterdir()) == []


async def test_a_statement_that_waits_too_long_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch):
    """If all slots are busy, another statement gets status 429 after a while."""
    monkeypatch.setattr(sql_worker_pool, "QUEUE_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(sql_worker_pool, "MAX_STATEMENTS", 1)
    pool = sql_worker_pool.SqlWorkerPool(runs)

    def run(sql: str) -> "asyncio.Task[object]":
        parameters = (("run", "arithmetic"), ("sql", sql))
        return asyncio.create_task(pool.run("arithmetic", "sql", parameters, asyncio.Event().wait))

    running = run(ENDLESS[0])
    await asyncio.sleep(0)
    assert await run("select 1") == sql_worker_pool.SERVER_BUSY
    assert sql_worker_pool.SERVER_BUSY.status == 429
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert b'"rows":[[1]]' in await run("select 1")
    await pool.close()


def children(process: int) -> list[str]:
    """The children that any thread of a process started."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def ticks(process: str) -> int:
    """The CPU time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def until(holds: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    for _ in range(3_000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it never came to hold")


@pytest.mark.parametrize("body", [{}, {"run": "arithmetic"}, {"sql": "select 1"}, {"run": 1, "sql": "select 1"}])
def test_an_invalid_body_is_refused(viewer: Viewer, body: dict[str, object]):
    """The message names the missing or mistyped field."""
    reply = post(viewer, "sql", **body)
    assert reply.status == 400
    assert re.search("`(run|sql|int)`", reply.json["error"]["message"])


def test_an_unknown_run_is_refused(viewer: Viewer):
    """An unknown run is refused as in any other request."""
    assert post(viewer, "sql", run="nothing", sql="select 1").status == 404
    assert post(viewer, "check", run="../arithmetic").status == 404
    assert ask(viewer, "rollouts", run="nothing", where="true").status == 404
