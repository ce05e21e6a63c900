"""Lines that are missing or repeated: every reader says so, and each rollout counts once."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from answers import score, write
from rolltrace.cli.app import cli
from rolltrace.query import late_rewards, part_writer, run_tables
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_summary import summarize
from rolltrace.store.create import create_run
from rolltrace.store.read_errors import ReadErrorKind
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

COUNTS = {
    "rollouts": 6, "every_rollout": 6, "steps": 6, "messages": 12, "scores": 2, "groups": 2,
}  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    """A run of two groups of three, with a late score in each."""
    with create_run(tmp_path / "run") as writer:
        for group in ("a", "b"):
            ids = [write(writer, group=group, index=index, reward=float(index)) for index in range(3)]
            score(writer, ids[0], 5.0)
    return tmp_path / "run"


def counts(run):
    """How many rows each table has."""
    return {table: run.sql(f"select count(*) from {table}").fetchall()[0][0] for table in COUNTS}


def kinds(run):
    """The kinds of problems that are reported."""
    return sorted(problem.kind for problem in run.problems)


def written(path):
    """The lines of each file, by folder; call it before the run is compacted."""
    return {folder: next((path / folder).iterdir()).read_bytes() for folder in ("rollouts", "scores")}


def repeat_line(path, lines):
    """The second line once more, at the end."""
    for folder, data in lines.items():
        [file] = (path / folder).iterdir()
        is_compressed = file.suffix == ".zst"
        file = file.with_name(file.name.replace("-000000.jsonl.zst", "-000001.jsonl"))
        second = data.splitlines(keepends=True)[1]
        file.write_bytes(second if is_compressed else data + second)


def copy_segment(path, lines):
    """Each file once more, as that of another session."""
    for folder, data in lines.items():
        (path / folder / "copied-000000.jsonl").write_bytes(data)


@pytest.mark.parametrize("damage", [repeat_line, copy_segment])
@pytest.mark.parametrize("parts", ["one part", "a part for each line", "compacted", "compacted before"])
def test_repeated_lines_count_once(path, damage, parts, monkeypatch):
    """In every table, in groups, and in listings; whether they are in one part or in several."""
    with open_run(path) as run:
        assert (counts(run), run.problems) == (COUNTS, ())
        groups = run.sql('select "group", size, n, mean, members from groups order by 1').fetchall()
    lines = written(path)
    if parts == "compacted before":
        compact(path)
    damage(path, lines)
    if parts == "a part for each line":
        monkeypatch.setattr(part_writer, "BATCH_BYTES", 1)
    if parts == "compacted":
        compact(path)
    with open_run(path) as run:
        assert counts(run) == COUNTS
        assert run.sql('select "group", size, n, mean, members from groups order by 1').fetchall() == groups
        assert len(list(run.rollouts())) == 6
        assert [len(list(group.rollouts())) for group in run.groups()] == [3, 3]
        assert kinds(run) == [ReadErrorKind.REPEATED] * 2
        assert "repeat" in str(run.problems[0])
    summary = summarize(path)
    assert (summary.rollouts, summary.problem_count) == (6, 2)
    [listed] = list_runs(path).runs
    assert (listed.rollouts, listed.groups, listed.problem_count) == (6, 2, 2)


def test_repeated_lines_have_one_late_reward(tmp_path, monkeypatch):
    """Also if late rewards are looked up for each part alone, and two parts have a line of the same rollout."""
    path = tmp_path / "run"
    with create_run(path) as writer:
        ids = [write(writer, index=index, reward=float(index)) for index in range(20)]
        score(writer, ids[0], 100.0)
    copy_segment(path, {"rollouts": written(path)["rollouts"]})
    monkeypatch.setattr(part_writer, "BATCH_BYTES", 1)
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    monkeypatch.setattr(late_rewards, "PARTS_AT_ONCE", 1)
    with open_run(path) as run:
        assert [one.reward for one in run.rollouts()] == [100.0, *range(1, 20)]
        assert run.sql("select count(*), sum(reward) from rollouts").fetchall() == [(20, 290.0)]
        assert run.sql("select size from groups").fetchall() == [(20,)]


def test_repeated_lines_that_are_written_later(path):
    """A run that is open finds lines that repeat those that it has read."""
    lines = written(path)
    with open_run(path) as run:
        assert counts(run) == COUNTS
        repeat_line(path, lines)
        assert counts(run) == COUNTS
        copy_segment(path, lines)
        assert counts(run) == COUNTS
        assert len(run.problems) == 4


def test_what_another_session_repeats_is_not_missing(tmp_path):
    """Rollouts that were imported twice, under the same ids, count once; no line is missing."""
    for _ in range(2):
        with create_run(tmp_path / "run", join=(tmp_path / "run").exists()) as writer:
            for number in range(5):
                with writer.rollout(env="e", task="t", group="g", index=number, id=f"old-{number}") as r:
                    r.step("?", "!", 1.0)
    with open_run(tmp_path / "run") as run:
        assert run.sql("select count(*) from rollouts").fetchone() == (5,)
        assert {error.kind for error in run.problems} == {ReadErrorKind.REPEATED}


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_missing_last_segment(path, is_compacted):
    """No later segment shows that it is missing: the ledger does. Its rows are not shown."""
    if is_compacted:
        compact(path)
    for folder in ("rollouts", "scores"):
        for file in (path / folder).iterdir():
            file.unlink()
    with open_run(path) as run:
        assert counts(run) == dict.fromkeys(COUNTS, 0)
        assert [str(problem).partition(": ")[2] for problem in run.problems] == [
            "6 rollouts were recorded, 0 can be read.",
            "2 scores were recorded, 0 can be read.",
        ]
    assert summarize(path).problem_count == 2
    assert list_runs(path).runs[0].problem_count == 2


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_damaged_line_is_reported_once_and_again(path, is_compacted):
    """By its place when it is read, and by the ledger to one who reads only the tables that were made before."""
    [file] = (path / "rollouts").iterdir()
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"index":1', b'"index":7', 1))
    if is_compacted:
        compact(path)
    with open_run(path) as run:
        assert counts(run)["rollouts"] == 5
        assert len(run.problems) == 1


def test_a_run_that_grows_misses_nothing(tmp_path):
    """A ledger is read before the lines that it counts, whatever is written meanwhile."""
    with create_run(tmp_path / "run") as writer, open_run(tmp_path / "run") as run:
        for index in range(30):
            write(writer, index=index)
            if index % 3 == 0:
                writer.flush()
            run.sql("select count(*) from rollouts").fetchall()
            assert run.problems == ()


def test_the_commands_say_so(path):
    """A line in `summary`, `show` and `ls`, and on the standard error of `query`."""
    [file] = (path / "rollouts").iterdir()
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:4]))
    message = "6 rollouts were recorded, 4 can be read."
    for command in (["ls", path.parent], ["show", path], ["summary", path], ["query", path, "from groups"]):
        shown = CliRunner().invoke(cli, list(map(str, command)))
        assert message in (shown.stdout if command[0] == "summary" else shown.stderr)


def test_the_viewer_says_so(path):
    """In the list of runs, on the page of the run, and to every other page."""
    copy_segment(path, written(path))
    library = OpenRuns(path.parent)
    api = Api(library)

    def ask(question, **parameters):
        return json.loads(api.handlers[question](RequestParameters(list(parameters.items()))))

    try:
        assert ask("runs")["runs"][0]["problem"] == "Its files are damaged in 2 places: its page lists them."
        assert ask("damage", run="run")["problem_count"] == 2
        overview = ask("run", run="run")
        assert (overview["rollouts"], overview["problem_count"]) == (6, 2)
        assert ask("rollouts", run="run")["total"] == 6
        group = ask("group", run="run", split="train", iteration="0", env="sums", group="a")["group"]
        assert len(group["members"]) == 3
    finally:
        library.close()


def test_a_damaged_line_does_not_hide_one_that_is_missing(path):
    """Each error counts for one line, however many readers of the file have found it."""
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], lines[1].replace(b"reward", b"drawer", 1), *lines[2:-1]]))
    with open_run(path) as run:
        assert run.sql("select count(*) from rollouts").fetchall() == [(4,)]
        assert kinds(run) == [ReadErrorKind.DAMAGED, ReadErrorKind.MISSING]
        assert str(run.problems[1]).endswith("6 rollouts were recorded, 4 can be read.")
