"""Many runs as one: the same rows as each alone, at a cost that grows with the rows and not with the runs."""

import pytest
from click.testing import CliRunner

import rolltrace
from answers import score, write
from rolltrace.check.check_run import IterationChecker
from rolltrace.cli.app import cli
from rolltrace.errors import InputError, RunNotFoundError
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_tables import RunTables
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader

pytestmark = pytest.mark.core

TABLES = ("rollouts", "every_rollout", "groups", "steps", "messages", "scores", "runs")


def make_runs(folder, count=5, **options):
    """Plain runs of four rollouts in two iterations; returns their paths."""
    for number in range(count):
        with create_run(folder / f"run-{number}", **options) as writer:
            for index in range(4):
                write(writer, index=index, iteration=index // 2, reward=float(number))
    return sorted(folder.iterdir())


def test_many_runs_have_the_rows_of_each(tmp_path):
    """The rows are the same also if some runs have late scores, several sessions, repeated lines or no rollouts."""
    [late, resumed, repeated, compacted, grown, *_] = make_runs(tmp_path, 7)
    with create_run(late, join=True, continues=()) as writer, open_run(late) as run:
        score(writer, next(run.rollouts()).id, 7.0)
    with create_run(resumed, join=True) as writer:
        write(writer, index=0, iteration=0, reward=9.0)
        write(writer, index=1, iteration=0, reward=9.0, attempt=1)
    [segment] = (repeated / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes() * 2)
    compact(compacted)
    compact(grown)
    with create_run(grown, join=True, continues=()) as writer:
        write(writer, index=7, iteration=1, reward=3.0)
    create_run(tmp_path / "run-empty").close()

    def rows(path):
        selects = [f"select '{table}', t::varchar from {table} t" for table in TABLES]
        with open_run(path) as run:
            return run.sql(" union all ".join(selects)).fetchall()

    assert sorted(rows(tmp_path)) == sorted(row for path in tmp_path.iterdir() for row in rows(path))


def test_runs_with_files_of_the_same_name(tmp_path, opened):
    """A line that repeats another costs nothing in a run whose files happen to have the same names."""
    for path in make_runs(tmp_path, 2):
        with create_run(path, join=True, continues=()) as writer, open_run(path) as run:
            for rollout in run.rollouts():
                score(writer, rollout.id, 7.0)
        for folder in ("rollouts", "scores"):
            [segment] = (path / folder).iterdir()
            segment.rename(segment.with_name("rank0-000000.jsonl"))
    for folder in ("rollouts", "scores"):
        segment = path / folder / "rank0-000000.jsonl"
        first, *others = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join([first, first, *others]))
    run = opened(tmp_path)
    for table in ("rollouts", "steps", "scores"):
        assert run.sql(f"select count(*) from {table}").fetchall() == [(8,)]


def test_plain_runs_are_one_table(tmp_path, opened):
    """A statement over many runs reads one list of files, and does not plan each run."""
    for path in make_runs(tmp_path)[:2]:
        compact(path)
    run = opened(tmp_path)
    [[_, plan]] = run.sql("explain select count(*) from rollouts where iteration = 1").fetchall()
    assert plan.count("READ_PARQUET") == 1
    [[_, plan]] = run.sql("explain select count(*), avg(mean) from groups").fetchall()
    assert plan.count("READ_PARQUET") == 1


def test_runs_with_retries_are_one_table(tmp_path, opened):
    """Runs in which rollouts were retried are read together, and each says which ones."""
    paths = make_runs(tmp_path)
    for path in paths:
        with create_run(path, join=True, continues=()) as writer:
            write(writer, index=50)
            write(writer, index=50, attempt=1)
    run = opened(tmp_path)
    retried = run.sql("select run, count(*) from rollouts where retried group by run").fetchall()
    assert sorted(retried) == sorted((RunReader(path).info.id, 1) for path in paths)
    [[_, plan]] = run.sql("explain select count(*) from rollouts where retried").fetchall()
    assert plan.count("READ_PARQUET") == 1


def test_the_states_of_many_runs_are_counted_at_once(tmp_path, opened, monkeypatch):
    """The state of a run with a plan depends on its rollouts: those of all runs are read in one statement."""
    make_runs(tmp_path, 6, planned=4)
    refreshed = []
    refresh = RunTables.refresh

    def count(run, *arguments, **options):
        refreshed.append(run)
        refresh(run, *arguments, **options)

    monkeypatch.setattr(RunTables, "refresh", count)
    assert opened(tmp_path).sql("select state, count(*) from runs group by 1").fetchall() == [("complete", 6)]
    assert len(refreshed) <= 2 * 6


def test_several_runs_and_patterns_are_queried(tmp_path):
    """RUN may be given several times, and may be a pattern, which matches runs and directories of runs."""
    make_runs(tmp_path / "old", 3)
    make_runs(tmp_path / "new", 2)
    (tmp_path / "new" / "notes").mkdir()
    make_runs(tmp_path / ".trash", 1)
    (tmp_path / "new" / "run-latest").symlink_to(tmp_path / "new" / "run-1")

    def query(*paths):
        return CliRunner().invoke(cli, ["query", *(str(tmp_path / path) for path in paths), "from runs", "--json"])

    def count(*paths):
        asked = query(*paths)
        assert asked.exit_code == 0, asked.stderr
        return len(asked.stdout.splitlines())

    assert count("old/run-0", "old/run-1", "new") == 4
    assert count("old/run-[01]") == 2
    assert count("*/run-0") == 2
    assert count("n?w") == 2
    assert count("new/*") == 2, "other folders and links are skipped"
    assert "copies of the same run" in query("old", "o*").stderr
    with pytest.raises(RunNotFoundError, match=r"nothing-\*"):
        open_run(tmp_path / "nothing-*")


def test_unreadable_files_are_named_with_their_run(tmp_path):
    """Files of two runs may have the same name; for a single run the name has no prefix."""
    first, second, _ = make_runs(tmp_path, 3)
    for path in (first, second):
        (path / "rollouts" / "notes.txt").touch()

    def errors(path):
        asked = CliRunner().invoke(cli, ["query", str(path), "select count(*) from rollouts", "--json"])
        return asked.stderr.splitlines()

    message = "Expected a printable name"
    assert [line.partition(message)[0] for line in errors(tmp_path)] == [
        f"Not read: {path}/rollouts/notes.txt: " for path in (first, second)
    ]
    assert [line.partition(message)[0] for line in errors(first)] == ["Not read: rollouts/notes.txt: "]


@pytest.mark.parametrize("data", [b"", b'{"v":1,', b'{"v":99}\n'], ids=["empty", "truncated", "of another version"])
def test_a_run_without_a_valid_run_json_is_left_out(tmp_path, data):
    """The other runs of a directory or pattern are queried, and one line names it; its own path is refused."""
    first, second, _ = make_runs(tmp_path, 3)
    (second / "run.json").write_bytes(data)

    def query(*paths):
        return CliRunner().invoke(cli, ["query", *map(str, paths), "select count(*) from rollouts", "--json"])

    for path in (tmp_path, tmp_path / "run-*"):
        asked = query(path)
        assert (asked.exit_code, asked.stdout) == (0, '{"count_star()":8}\n')
        [line] = asked.stderr.splitlines()
        assert line.startswith(f"Not read: {second}/run.json: Expected a run at {second} ")
        assert line.endswith("The other runs are read without it.")
    asked = query(first, second)
    assert asked.exit_code != 0
    assert f"Expected a run at {second} " in asked.stderr
    for path in (first, tmp_path / "run-2"):
        (path / "run.json").write_bytes(data)
    with pytest.raises(RunNotFoundError, match=f"Expected a run at {first}"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        lambda path: rolltrace.regrade(path, "exact"),
        lambda path: rolltrace.replay_run(path),
        lambda path: rolltrace.log_metrics(path, ()),
        lambda path: rolltrace.play(resume=path),
        lambda path: IterationChecker(path),
    ],
    ids=["regrade", "replay", "metrics", "resume", "check"],
)
def test_commands_about_one_run_refuse_several(tmp_path, command):
    """Several runs are refused also if only one of them can be read: the other may be the one that is meant."""
    first, _ = make_runs(tmp_path, 2)
    with pytest.raises(InputError, match=f"Expected one run, got {tmp_path} with 2 runs: name one of them"):
        command(tmp_path)
    (first / "run.json").write_bytes(b"")
    with pytest.raises(InputError, match=f"Expected one run, got {tmp_path} with 2 runs: name one of them"):
        command(tmp_path)
