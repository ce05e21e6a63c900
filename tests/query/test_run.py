"""Opening runs: records by id and by condition, results as rows and frames."""

import contextlib
import math
import signal
import sys
import threading
from itertools import islice

import msgspec
import pytest

import rolltrace
from answers import score, write
from rolltrace.errors import InputError, QueryTimeoutError, RunNotFoundError, UnknownNameError
from rolltrace.query.copied_tables import CopiedTables
from rolltrace.query.record_reader import LineReader
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.cursor import LineLocation
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.trace.codec import encode_rollout
from rolltrace.trace.score import Grade, GroupKey

pytestmark = pytest.mark.core

ENDLESS = "range(10000000) a, range(1000000) b"


@pytest.fixture
def run(path, opened):
    """A run of four rollouts with the rewards -1, 0, 1 and 2, in two iterations."""
    with create_run(path) as writer:
        for index in range(4):
            write(
                writer, index=index, iteration=index // 2, reward=float(index - 1), step={"reward_data": {"x": index}}
            )
    return opened(path)


def test_open_run_is_public(run, path):
    """`rolltrace.open_run` opens a run, which has its path and info."""
    with rolltrace.open_run(path) as again:
        assert (again.path, again.info.id) == (path, run.info.id)
        assert str(path) in repr(again)


def test_get_gives_the_whole_rollout(run):
    """A rollout by id has its messages."""
    [[rollout]] = run.sql("select id from rollouts where reward = 2").fetchall()
    assert [message.content for message in run.get(rollout).steps[0].trace.prompt] == ["1 + 1?"]
    with pytest.raises(UnknownNameError):
        run.get("nothing")


def test_identities_are_those_of_the_rollouts(path, opened):
    """Which rollouts there are is known without reading their lines, members without a number and seats included."""
    with create_run(path) as writer:
        write(writer, index=None, group="a")
        write(writer, index=0, group="b", attempt=1, episode=0, seat=0)
    run = opened(path)
    by_id = {rollout.id: rollout.identity for rollout in run.rollouts()}
    assert {identity.id: identity for identity in run.identities()} == by_id
    assert len(by_id) == 2


def test_rollouts_by_condition_order_and_limit(run):
    """Conditions and orders are SQL over the table's columns; by default, rollouts come in the order of the files."""
    assert [rollout.index for rollout in run.rollouts()] == [0, 1, 2, 3]
    assert [rollout.index for rollout in run.rollouts(where="reward < 1")] == [0, 1]
    assert [rollout.index for rollout in run.rollouts(order_by='iteration desc, "index"', limit=3)] == [2, 3, 0]
    assert [rollout.index for rollout in run.rollouts(where="rollouts.reward = 2 -- the best")] == [3]
    assert list(run.rollouts(limit=0)) == []


def test_groups_are_rows_of_the_table_with_their_rollouts(path, opened):
    """`run.groups` gives typed rows of `groups`, by condition, order and limit, and reads members lazily."""
    with create_run(path) as writer:
        for index in range(8):
            rollout = write(writer, index=index % 2, group=str(10 * (index // 2)), task=f"t{index}", reward=None)
            if index < 6:
                score(writer, rollout, float(index * (index < 4)), data={"group_grade": 1.0})
    run = opened(path)
    groups = list(run.groups())
    assert [group.group for group in groups] == ["0", "10", "20", "30"]  # as numbers
    rows = list(run.sql('select * from groups order by "group"::int').dicts())
    for group, row in zip(groups, rows, strict=True):
        facts = {name: value for name, value in row.items() if name != "members"}
        assert {name: getattr(group, name) for name in facts} == facts
        assert [msgspec.structs.asdict(member) for member in group.members] == row["members"]
    first = groups[0]
    assert (first.key, first.task, first.n, first.mean) == (GroupKey("train", 0, "sums", "0"), "t0", 2, 0.5)
    assert [(member.reward, member.advantage) for member in first.members] == [(0.0, -0.5), (1.0, 0.5)]
    assert [one.id for one in first.rollouts()] == [member.id for member in first.members]
    assert [one.reward for one in first.rollouts()] == [0.0, 1.0]
    assert [group.group for group in run.groups(where="has_signal", order_by="mean desc", limit=1)] == ["10"]
    assert [group.group for group in run.groups(where="n = 0 or mean = 0", offset=1)] == ["30"]
    for wrong in (
        {"where": "1) union all from groups where (1"},
        {"where": "reward > 0"},
        {"order_by": "mean; drop table groups"},
        {"limit": -1},
    ):
        with pytest.raises(InputError):
            list(run.groups(**wrong))


def test_a_rollout_has_its_late_scores(path, opened):
    """`get`, `rollouts` and `follow` give a rollout the scores written so far, and its reward by them."""
    with create_run(path) as writer:
        rollout = write(writer, reward=None)
        other = write(writer, index=1, reward=0.5)
        writer.flush()
        run = opened(path)
        assert (run.get(rollout).reward, run.get(rollout).scores) == (None, ())
        data = {"group_grade": 0.25, "reward_data": {"wins": 1}, "extra": {"met": "b"}}
        score(writer, rollout, 1.25, data=data, producer="judge")
        score(writer, rollout, 0.75, name="advantage")
        score(writer, other, None)
        writer.flush()
        stop = threading.Event()
        stop.set()
        listed = {one.id: one for one in run.rollouts()}
        followed = {one.id: one for one in run.follow("rollouts", stop=stop)}
        for read in (run.get, listed.__getitem__, followed.__getitem__):
            found = read(rollout)
            assert (found.reward, found.line_reward) == (1.25, None)
            assert found.group_grade == Grade(0.25, {"wins": 1}, {"met": "b"})
            assert [(one.name, one.value, one.producer) for one in found.scores] == [
                ("reward", 1.25, "judge"), ("advantage", 0.75, ""),
            ]  # fmt: skip
            assert (read(other).reward, read(other).line_reward, read(other).group_grade) == (None, 0.5, None)


def test_a_rollout_that_is_copied_into_another_run_keeps_its_line(path, opened, tmp_path):
    """Late scores are not written onto the line of a copy: `line_reward` stays the same."""
    with create_run(path) as writer:
        rollout = write(writer, reward=None)
        score(writer, rollout, 1.25)
    read = opened(path).get(rollout)
    assert read.reward == 1.25
    create_run(tmp_path / "copy").close()
    (tmp_path / "copy/rollouts/copied-000000.jsonl").write_bytes(encode_rollout(read))
    again = opened(tmp_path / "copy").get(rollout)
    assert (again, again.reward, again.line_reward, again.scores) == (read, None, None, ())


def test_a_score_whose_line_was_damaged_costs_only_itself(path, opened):
    """A score that can no longer be read is a problem; the rollout and its other scores are returned."""
    with create_run(path) as writer:
        rollout = write(writer, reward=None)
        for value in (1.0, 2.0):
            score(writer, rollout, value)
    run = opened(path)
    assert run.get(rollout).reward == 2.0
    [segment] = (path / "scores").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b'"value":2.0', b'"value":3.0'))
    assert run.get(rollout).reward == 1.0
    assert [problem.file for problem in run.problems] == [f"scores/{segment.name}"]


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_all_rollouts_come_in_the_order_of_the_files_however_many_are_sorted_at_once(
    tmp_path, opened, monkeypatch, rows
):
    """All rollouts and scores of all runs come once, by run, file and line, whatever the size of a page."""
    for name in ("a", "b"):
        with create_run(tmp_path / name, trace=Recording(segment_bytes=1500)) as writer:
            for index in range(7):
                score(writer, write(writer, index=index, reward=None), float(index))
    run = opened(tmp_path)
    order = "order by run, session, started_at"
    expected = run.sql(f"select id, reward from rollouts {order}").fetchall()
    monkeypatch.setattr("rolltrace.query.run.PAGE_ROWS", rows)
    assert [(one.id, one.reward) for one in run.rollouts()] == expected
    assert [one.rollout for one in run.scores()] == [rollout for rollout, _ in expected]
    odd = [(rollout, reward) for rollout, reward in expected if reward % 2]
    assert [(one.id, one.reward) for one in run.rollouts(where="reward % 2 = 1")] == odd


def test_wrong_location_is_detected(run):
    """A location that holds another rollout, or nothing, still gives the right rollout."""
    first, second = run.sql("select id from rollouts order by reward limit 2").fetchall()
    [place] = list(RunReader(run.path).cursor("rollouts").read())[:1]
    with LineReader(RunReader(run.path)) as lines:
        assert lines.rollout(first[0], place[0]).id == first[0]
        assert lines.rollout(second[0], place[0]).id == second[0]
        assert lines.rollout(second[0], LineLocation(place[0].file, 7, 10**6)).id == second[0]
        assert lines.rollout(second[0], LineLocation("rollouts/nothing", 0, 10)).id == second[0]


def test_condition_uses_the_latest_reward(path, opened):
    """A condition uses the reward with late scores."""
    with create_run(path) as writer:
        wanted = write(writer, reward=0.0)
        write(writer, index=1, reward=0.0)
        score(writer, wanted, 5.0)
    assert [rollout.id for rollout in opened(path).rollouts(where="reward > 1")] == [wanted]


@pytest.mark.parametrize(
    "where",
    [
        "true) union all select id from rollouts where (true",
        "true) limit 1 --",
        "true) order by (id",
        "true); drop table rollouts; --",
        "reward <",
        " ",
        "true) group by (id",
    ],
)
def test_condition_is_one_expression(run, where):
    """A text that is more than a condition is refused before anything is read."""
    with pytest.raises(InputError, match="Expected an SQL expression"):
        run.rollouts(where=where)


@pytest.mark.parametrize("order_by", ["id limit 1", "id; select 1", "id union select 1", "", "id offset 2"])
def test_order_is_an_order(run, order_by):
    """A text that is more than an order is refused."""
    with pytest.raises(InputError, match="Expected an SQL expression"):
        run.rollouts(order_by=order_by)


def test_conditions_are_sandboxed(run):
    """A condition is limited like a statement."""
    with pytest.raises(InputError, match="not allowed"):
        run.rollouts(where="exists (select * from read_text('/etc/passwd'))")
    with pytest.raises(InputError, match="rewrd"):
        run.rollouts(where="rewrd < 1")
    with pytest.raises(InputError, match="limit of 0 or more"):
        run.rollouts(limit=-1)


def test_result_is_rows_or_dicts(run):
    """A result knows its columns, and yields each row once, as a tuple or as a dict."""
    result = run.sql("select iteration, sum(reward) as total, 1 as total from rollouts group by 1 order by 1")
    assert result.columns == ("iteration", "total", "total")
    assert result.types[:2] == ("BIGINT", "DOUBLE")
    assert next(result.dicts()) == {"iteration": 0, "total": -1.0, "total_2": 1}
    assert result.fetchall() == [(1, 3.0, 1)]
    assert (result.fetchall(), list(result), result.fetchone(), result.fetchmany(2)) == ([], [], None, [])


def test_rows_continue_where_they_stopped(run):
    """However rows are taken, each comes once and in order, and printing the result takes none."""
    result = run.sql("select range from range(5000)")
    assert repr(result).splitlines()[1] == "0"
    assert (result.fetchone(), result.fetchmany(2)) == ((0,), [(1,), (2,)])
    for (number,) in result:
        if number == 1500:
            break
    assert repr(result).splitlines()[1] == "1501"
    assert [row["range"] for row in islice(result.dicts(), 2)] == [1501, 1502]
    assert result.fetchall() == [(number,) for number in range(1503, 5000)]


def test_no_row_is_left_out(run):
    """However many rows there are, every way to read them returns all."""
    sql = "select range as n from range(12000)"
    assert len(run.sql(sql).fetchall()) == len(list(run.sql(sql))) == len(list(run.sql(sql).dicts())) == 12000
    assert len(run.sql(sql).fetchmany(20000)) == 12000


def test_loop_over_fetchone_ends(run):
    """The loop of every database client ends after the last row."""
    result, rows = run.sql('select "index" from rollouts order by 1'), []
    while row := result.fetchone():
        rows.append(row)
    assert rows == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("take", ["fetchone", "fetchall", "arrow", "pandas", "polars", "dicts"])
def test_result_is_of_the_moment_in_which_it_was_asked_for(path, opened, take):
    """However its rows are taken, a statement sees its tables as they were when `sql` was called."""
    if take in ("arrow", "pandas", "polars"):
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas" if take != "polars" else "polars")
    with create_run(path) as writer:
        write(writer)
        writer.flush()
        run = opened(path)
        result = run.sql("select id from rollouts")
        write(writer, index=1)
    rows = getattr(result, take)()
    assert len(list(rows)) == 1
    assert run.sql("select count(*) from rollouts").fetchone() == (2,)


def test_result_shows_itself_safely(run):
    """A printed result is a table without terminal control characters."""
    shown = repr(run.sql("select 'a' as text union all select 'b\x1b[2J\n' order by 1"))
    assert shown.splitlines() == ["text", "a", "b␛[2J␊"]
    assert repr(run.sql("select range from range(100)")).endswith("19\n…")


def test_frames(run):
    """Results become Arrow, pandas and Polars tables with the same numbers."""
    pytest.importorskip("pyarrow")
    result = run.sql("select id, reward, tags from rollouts order by reward")
    assert result.arrow().column("reward").to_pylist() == [-1, 0, 1, 2]
    pandas = pytest.importorskip("pandas")
    assert isinstance(result.pandas(), pandas.DataFrame)
    assert list(result.pandas()["reward"]) == [-1, 0, 1, 2]
    pytest.importorskip("polars")
    assert result.polars()["reward"].to_list() == [-1, 0, 1, 2]


@pytest.mark.parametrize("kind", ["pyarrow", "pandas", "polars"])
def test_missing_library_is_named(run, kind, monkeypatch):
    """The error of a missing library says what to install."""
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(InputError, match=f"pip install {kind}"):
        getattr(run.sql("select 1"), "arrow" if kind == "pyarrow" else kind)()


def test_many_runs_are_one(tmp_path, opened):
    """A directory or list of runs has the rows of all, told apart by `run`."""
    runs = {}
    for name in ("a", "b"):
        with create_run(tmp_path / name) as writer:
            runs[writer.run] = {write(writer, index=index, reward=0.0 if name == "a" else 1.0) for index in range(2)}
    both = opened(tmp_path)
    found = both.sql("select run, list(id) from rollouts group by run").fetchall()
    assert {run: set(ids) for run, ids in found} == runs
    assert both.sql("select count(*), count(distinct run) from groups").fetchall() == [(2, 2)]
    assert both.sql("select id from runs order by path").fetchall() == [(run,) for run in runs]
    assert {rollout.id for rollout in both.rollouts()} == set().union(*runs.values())
    last = list(runs.values())[1].pop()
    assert both.get(last).id == last
    assert opened([tmp_path / "b"]).sql("select count(*) from rollouts").fetchone() == (2,)


def test_a_path_without_runs_is_named(tmp_path):
    """The error names a path without runs."""
    with pytest.raises(RunNotFoundError, match="got nothing"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(RunNotFoundError, match="got neither"):
        open_run(tmp_path)
    with pytest.raises(InputError, match="at least one"):
        open_run([])


def test_empty_run_has_empty_tables(path, opened):
    """A run without rollouts has tables without rows and the same columns."""
    create_run(path).close()
    run = opened(path)
    for table in ("rollouts", "every_rollout", "steps", "messages", "scores", "groups"):
        assert run.sql(f"select * from {table}").fetchall() == []
    assert run.sql("select count(*), avg(reward) from rollouts").fetchone() == (0, None)


def test_slow_statement_is_given_up(run):
    """A statement that takes too long ends with an error that says so."""
    with pytest.raises(QueryTimeoutError, match=r"longer than 0\.05 seconds"):
        run.sql(f"select sum(sqrt(a.range * b.range)) from {ENDLESS}", timeout=0.05).fetchall()
    assert run.sql("select 1", timeout=60).fetchall() == [(1,)]


@pytest.mark.parametrize("copied", [False, True])
def test_ctrl_c_ends_a_statement(run, copied):
    """DuckDB raises an ordinary error in its place, which an audit or a loop would take for its own."""
    sql = f"select sum(sqrt(a.range * b.range)) from {ENDLESS}"
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    # With more threads, DuckDB notices a signal only when a statement ends.
    with open_run(run.path, threads=1) as alone, contextlib.closing(CopiedTables(alone, None)) as tables:
        rows = tables.rows(sql) if copied else alone.sql(sql)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(KeyboardInterrupt):
                list(rows)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("take", ["fetchall", "arrow", "pandas"])
def test_fetching_counts_too(run, take):
    """The time-out covers fetching too: many fast rows count like one slow statement."""
    if take != "fetchall":
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas")
    with pytest.raises(QueryTimeoutError, match="longer than"):
        getattr(run.sql(f"select a.range from {ENDLESS}", timeout=0.1), take)()


def test_iterating_has_one_clock(run):
    """The time-out is not reset while rows are taken one by one."""
    with pytest.raises(QueryTimeoutError, match="longer than"):  # on a busy machine it may be over before the first row
        for _ in run.sql(f"select a.range from {ENDLESS}", timeout=0.1):
            pass


def test_memory_is_an_amount():
    """An invalid memory limit is refused."""
    with pytest.raises(InputError, match="such as 2GB"):
        open_run(".", memory="lots'; --")


def test_closed_run_opens_again(run):
    """A closed run can be queried again."""
    run.close()
    assert run.sql("select count(*) from rollouts").fetchone() == (4,)
    assert math.isnan(run.sql("select 'nan'::double").fetchone()[0])


def test_parameters_are_separate_from_the_statement(run):
    """Parameters are positional or named, and never interpreted as SQL."""
    assert run.sql('select "index" from rollouts where reward > ? and env = ?', [1.5, "sums"]).fetchall() == [(3,)]
    named = run.sql('select "index" from rollouts where reward = $wanted', {"wanted": -1})
    assert named.fetchall() == [(0,)]
    hostile = "'); drop view rollouts; --"
    assert run.sql("select $text", {"text": hostile}).fetchall() == [(hostile,)]
    assert run.sql('select count(*) from rollouts where "index" in (select unnest(?))', [[0, 3]]).fetchone() == (2,)
    assert run.sql("explain select ?", [1]).fetchall()


def test_parameters_work_with_frames(run):
    """A statement with parameters becomes a frame as any other does."""
    pytest.importorskip("pyarrow")
    assert run.sql("select range + ? as n from range(2)", [5]).arrow().column("n").to_pylist() == [5, 6]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("select ?", None),
        ("select ?", [1, 2]),
        ("select 1", [1]),
        ("select $a", {"b": 1}),
        ("select $a", [1]),
        ("select ?, ?", {"a": 1}),
        ("select ?", "x"),
        ("select ?", 5),
        ("select ?", [object()]),
        ("select ?", [2**200]),
        ("select ?", ["\ud800"]),
        ("select ?", [[{}]]),
        ("select ? + $a", [1]),
    ],
)
def test_wrong_parameters_are_explained(run, sql, parameters):
    """Parameters that do not match the statement, or of a type that SQL lacks, are refused with a reason."""
    with pytest.raises(InputError):
        run.sql(sql, parameters)


def test_pages(run):
    """A listing can begin anywhere."""
    assert [rollout.index for rollout in run.rollouts(limit=2, offset=1)] == [1, 2]
    assert [rollout.index for rollout in run.rollouts(order_by='"index" desc', offset=3)] == [0]
    assert list(run.scores(offset=5)) == []
    with pytest.raises(InputError, match="offset of 0 or more"):
        run.rollouts(offset=-1)


def test_follow_gives_the_records_of_all_runs(tmp_path, opened):
    """Several runs are followed as one, up to what was written before the stop."""
    written, stop = set(), threading.Event()
    for name in ("a", "b"):
        with create_run(tmp_path / name) as writer:
            written |= {write(writer, index=index) for index in range(2)}
    both = opened(tmp_path)
    following = both.follow("rollouts", stop=stop, seconds=0.001)
    seen = [next(following).id for _ in range(4)]
    with create_run(tmp_path / "a", join=True) as writer:
        late = write(writer, index=5)
    assert next(following).id == late
    stop.set()
    assert list(following) == []
    assert set(seen) == written
    assert {ledger.recorded for ledger in both.follow("ledger", stop=stop)} >= {1, 2}
    with pytest.raises(InputError, match="to follow"):
        both.follow("nothing")


def test_get_uses_indexed_runs_first(tmp_path, opened, file_reads):
    """Of many runs, the one whose index has the id is used; the others are not scanned."""
    names = ("a", "b", "c")
    ids = {}
    with contextlib.ExitStack() as stack:
        writers = {name: stack.enter_context(create_run(tmp_path / name)) for name in names}
        for name, writer in writers.items():
            ids[name] = write(writer)
            writer.flush()
        runs = opened(tmp_path)
        runs.get(ids["b"])
        for writer in writers.values():
            write(writer, index=1)
            writer.flush()
        file_reads.clear()
        assert runs.get(ids["b"]).id == ids["b"]
        read = {name: file_reads.bytes_read(tmp_path / name / "rollouts") for name in names}
    assert read["b"] > 0
    assert (read["a"], read["c"]) == (0, 0)


def test_rollouts_leaves_damaged_lines_out(path, opened):
    """A line that was damaged after its table was built is reported and left out; later rollouts follow."""
    with create_run(path) as writer:
        for index in range(5):
            with writer.rollout(env="e", task="t", group="g", index=index) as rollout:
                rollout.step(prompt="?", response=f"answer {index}", reward=0.0)
    run = opened(path)
    assert len(list(run.rollouts())) == 5
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b"answer 2", b"answer\x002"))
    assert [one.index for one in run.rollouts()] == [0, 1, 3, 4]
    [problem] = run.problems
    assert problem.file.startswith("rollouts/")
