"""Files outside the run: nothing is written or deleted through a link, and nothing without run.json is a run."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.errors import RolltraceError, RunNotFoundError, StorageError
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_summary import summarize
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording

FOLDERS = ("rollouts", "scores", "ledger", "blobs", "cache")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def record(run, index, text="42"):
    with run.rollout(env="sums", task="17+25", group="g", index=index) as rollout:
        rollout.step(
            prompt=[{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}], response=text, reward=1
        )
    run.score(rollout.id, "advantage", 0.5)
    return rollout.id


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of several closed segments, with scores and a blob."""
    with create_run(tmp_path / "run", trace=Recording(segment_bytes=1000)) as writer:
        for index in range(6):
            record(writer, index)
    return tmp_path / "run"


def moved_out(run: Path, folder: str) -> Path:
    """Moves a folder elsewhere, among other files, and puts a link in its place."""
    elsewhere = run.parent / "elsewhere"
    if (run / folder).exists():
        shutil.move(run / folder, elsewhere)
    else:
        elsewhere.mkdir()
    for name in (
        "data.parquet", "rollouts-abc-00000000.parquet", ".rollouts-abc.parquet", ".part-rollouts-0123456789abcdef",
        "part-rollouts-0123456789abcdef", "ids.index", "shard-000000.jsonl", "shard-000001.jsonl",
        ".shard-000000.jsonl.zst.0123456789abcdef",
    ):  # fmt: skip
        (elsewhere / name).write_text("somebody else's\n")
        os.utime(elsewhere / name, (0, 0))
    (run / folder).symlink_to(elsewhere)
    return elsewhere


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def use(run: Path) -> None:
    """Runs everything that reads a run, ignoring errors; index and parts are written however small they are."""
    for read in (
        lambda: RunReader(run).get("nothing"),
        lambda: [RunReader(run).get(rollout.id) for rollout in RunReader(run).rollouts()],
        lambda: open_run(run).sql("select count(*) from rollouts join scores on true join messages on true").fetchall(),
        lambda: summarize(run),
        lambda: check_run(run),
    ):
        try:
            read()
        except RolltraceError:
            continue


@pytest.fixture
def eager(monkeypatch):
    """Parts of any size are written to the run's cache."""
    monkeypatch.setattr("rolltrace.query.run_tables.MIN_CACHED_BYTES", 1)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_written_or_deleted_through_a_linked_folder(run, folder):
    """With any folder of a run being a link, reading and compacting do not change its target."""
    elsewhere = moved_out(run, folder)
    before = contents(elsewhere)
    use(run)
    assert contents(elsewhere) == before
    if folder in ("rollouts", "scores", "cache"):
        with pytest.raises(StorageError, match=rf"{folder}.*link"):
            compact(run)
    else:
        compact(run)
    assert contents(elsewhere) == before


@pytest.mark.parametrize("folder", ["rollouts", "scores", "ledger", "blobs"])
def test_a_run_with_a_linked_folder_is_not_joined(run, folder):
    """Joining a run that would write through a link is refused, and the error names the folder."""
    elsewhere = moved_out(run, folder)
    before = contents(elsewhere)
    with pytest.raises(StorageError, match=rf"{folder}.*link"):
        create_run(run, join=True)
    assert contents(elsewhere) == before


@pytest.mark.parametrize("folder", ["rollouts", "scores", "ledger", "blobs"])
def test_a_folder_that_becomes_a_link_costs_records_and_nothing_else(tmp_path, folder):
    """A writer whose folder is replaced by a link creates no file behind it, and counts what it could not write."""
    writer = create_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / folder)
    elsewhere = moved_out(tmp_path / "run", folder)
    before = contents(elsewhere)
    record(writer, 0)
    try:
        writer.close()
    except RolltraceError:
        assert folder != "blobs"
    assert contents(elsewhere) == before


@pytest.mark.usefixtures("eager")
def test_a_link_to_the_run_itself_is_fine(run, tmp_path):
    """The run's directory itself may be reached through a link."""
    (tmp_path / "link").symlink_to(run)
    with create_run(tmp_path / "link", join=True) as writer:
        record(writer, 9)
    assert compact(tmp_path / "link").compressed > 0
    assert len(list(RunReader(run).rollouts())) == 7
    assert list((run / "cache").glob("part-*/rollouts.parquet"))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("folder", FOLDERS)
def test_linked_files_are_left_alone(run, tmp_path, folder):
    """A linked file of a run is not written through, and its target is not deleted."""
    compact(run)
    with create_run(run, join=True) as writer:
        record(writer, 9)
    target = tmp_path / "target"
    target.mkdir()
    for number, path in enumerate(sorted((run / folder).iterdir())):
        shutil.move(path, target / f"{number}-{path.name}")
        path.symlink_to(target / f"{number}-{path.name}")
    before = contents(target)
    use(run)
    compact(run)
    with create_run(run, join=True) as writer:
        record(writer, 10)
    assert contents(target) == before


@pytest.mark.usefixtures("eager")
def test_files_of_others_in_the_cache_stay(run):
    """Compacting and reading delete only files of the cache that have Rolltrace's names."""
    use(run)
    names = ("data.parquet", "rollouts.parquet", "ids.index", ".part-mine", ".data.parquet", "notes.txt")
    for name in names:
        (run / "cache" / name).write_text("somebody else's")
        os.utime(run / "cache" / name, (0, 0))
    compact(run)
    use(run)
    assert set(names) <= {path.name for path in (run / "cache").iterdir()}


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_file_whose_name_is_not_valid_text(run, suffix):
    """The file is reported, and every command works."""
    segment = next((run / "rollouts").iterdir())
    (run / "rollouts" / (os.fsdecode(b"\xff") + suffix)).write_bytes(segment.read_bytes())
    with open_run(run) as opened:
        assert opened.sql("select count(*) from rollouts").fetchall() == [(6,)]
        assert [problem.file for problem in opened.problems] == [f"rollouts/\\udcff{suffix}"]
    for path in run.glob("*/*"):
        os.utime(path, (1, 1))  # so that the numbers of the listing are stored
    assert list_runs(run.parent).runs[0].rollouts == 6
    assert summarize(run).problem_count == 1
    assert not check_run(run).ok
    assert compact(run).rows["rollouts"] == 6


def test_segments_without_a_ledger_are_not_compressed(run):
    """Files that look like segments of a session unknown to the run are left as they are."""
    for number in range(2):
        (run / "rollouts" / f"shard-{number:06d}.jsonl").write_text('{"text": "training data"}\n')
    assert compact(run).compressed > 0
    assert sorted(path.name for path in (run / "rollouts").glob("shard*")) == [
        "shard-000000.jsonl",
        "shard-000001.jsonl",
    ]


@pytest.mark.parametrize(
    "content", [None, "", "{", "{}", '{"name": "of another tool"}', '{"v": 2, "id": "x"}', '{"v": 1}', '{"v": 99}']
)
def test_nothing_is_a_run_without_a_valid_run_file(run, content):
    """Without a valid run.json nothing is opened, compacted or joined, and the error says what to do."""
    (run / "run.json").unlink()
    if content is not None:
        (run / "run.json").write_text(content)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    wanted = {'{"v": 1}': "never released; record the run again", '{"v": 99}': "newer Rolltrace"}.get(
        content, "Restore it"
    )
    for touch in (RunReader, open_run, compact, check_run, summarize, lambda path: create_run(path, join=True)):
        with pytest.raises(RunNotFoundError, match=rf"run\.json.*{wanted}"):
            touch(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_directory_of_training_shards_is_not_a_run(tmp_path):
    """A foreign directory with rollouts/*.jsonl is neither listed nor changed."""
    shards = tmp_path / "data" / "rollouts"
    shards.mkdir(parents=True)
    for number in range(3):
        (shards / f"part-{number:06d}.jsonl").write_text('{"text": "training data"}\n')
    before = contents(shards)
    with pytest.raises(RunNotFoundError):
        compact(tmp_path / "data")
    with pytest.raises(RunNotFoundError):
        RunReader(tmp_path / "data").get("x")
    assert contents(shards) == before
    assert list_runs(tmp_path).total == 0


def test_a_listing_names_what_it_cannot_read(run):
    """A directory with a damaged run.json is not among the runs; the listing reports it."""
    (run / "run.json").write_text("{")
    listing = list_runs(run.parent)
    assert (listing.runs, listing.total) == ((), 0)
    [told] = listing.unreadable
    assert str(run) in told
    assert "run.json" in told
