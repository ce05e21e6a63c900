"""A pipe in place of a file is never opened, since that would block until a writer comes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.errors import RecordError, RunNotFoundError
from rolltrace.query.compact import compact
from rolltrace.query.run_listing import list_runs
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader

_SECONDS = 120


@pytest.fixture
def run(tmp_path: Path):
    """A run of one rollout; an alarm fails a test that blocks."""
    with create_run(tmp_path / "run") as writer, writer.rollout(env="e", task="t", group="g", index=0) as rollout:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
        rollout.step([{"role": "user", "content": [picture]}], "r", 1.0)

    def give_up(*_: object) -> None:
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(_SECONDS)
    yield tmp_path / "run"
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def replace_by_pipe(path: Path) -> Path:
    """Replaces a file by a pipe."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "name", ["ledger/zz.jsonl", "rollouts/zz-000000.jsonl", "rollouts/zz-000000.jsonl.zst", "scores/zz-000000.jsonl"]
)
def test_pipe_among_the_files(run, name):
    """A pipe is reported as not being a regular file; everything else is read."""
    replace_by_pipe(run / name)
    with RunReader(run) as reader:
        [rollout] = reader.rollouts()
        assert list(reader.scores()) == []
        assert len(reader.ledgers()) == 1
        assert reader.get(rollout.id) == rollout
        assert [problem.message for problem in reader.read_errors] == ["Expected a regular file."]
    assert list_runs(run.parent).runs[0].rollouts == 1
    assert not check_run(run).ok


def test_pipe_for_run_json(run):
    """A directory with a pipe as run.json is no run, and nothing blocks."""
    replace_by_pipe(run / "run.json")
    with pytest.raises(RunNotFoundError, match=r"run\.json"):
        RunReader(run)
    assert list_runs(run.parent).runs == ()


def test_pipe_for_an_index(run):
    """An id index that is not a file is skipped and left in place."""
    compact(run)
    [path] = run.glob("cache/*/ids.index")
    pipe = replace_by_pipe(path)
    [rollout] = RunReader(run).rollouts()
    # In a process of its own: a signal does not interrupt a wait inside a library.
    program = (
        "import sys; from rolltrace.store.reader import RunReader; print(RunReader(sys.argv[1]).get(sys.argv[2]).id)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, run, rollout.id], timeout=_SECONDS, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == rollout.id
    assert pipe.is_fifo()


def test_pipe_for_a_blob(run):
    """A blob that is not a regular file counts as missing."""
    (blob,) = (run / "blobs").iterdir()
    replace_by_pipe(blob)
    with pytest.raises(RecordError, match="Expected a regular file"):
        RunReader(run).blob(blob.name)
    assert [result.audit for result in check_run(run).with_findings] == ["missing_blobs"]


@pytest.mark.parametrize("strange", ["pipe", "directory", "loop", "nowhere"])
def test_strange_run_json_costs_no_other_run(run, strange):
    """A directory whose run.json is not a file is no run; other runs are listed, also those inside it."""
    place = run.parent / "strange" / "run.json"
    place.parent.mkdir()
    if strange == "pipe":
        os.mkfifo(place)
    elif strange == "directory":
        place.mkdir()
    else:
        place.symlink_to("run.json" if strange == "loop" else "nothing")
    create_run(place.parent / "inner").close()
    assert [listed.name for listed in list_runs(run.parent).runs] == ["strange/inner", "run"]
