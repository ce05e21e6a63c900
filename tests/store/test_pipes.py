"""A pipe where a file should be makes nobody wait: whoever opened it would wait for a writer for ever."""

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
    """A run of one rollout; a test that waits is ended."""
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


def instead(path: Path) -> Path:
    """Put a pipe in the place of a file."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    "name", ["ledger/zz.jsonl", "rollouts/zz-000000.jsonl", "rollouts/zz-000000.jsonl.zst", "scores/zz-000000.jsonl"]
)
def test_pipe_among_the_files(run, name):
    """It is told of as what it is; all else is read."""
    instead(run / name)
    with RunReader(run) as reader:
        [rollout] = reader.rollouts()
        assert list(reader.scores()) == []
        assert len(reader.ledgers()) == 1
        assert reader.get(rollout.id) == rollout
        assert [problem.message for problem in reader.read_errors] == ["Expected a regular file."]
    assert list_runs(run.parent).runs[0].rollouts == 1
    assert not check_run(run).ok


def test_pipe_for_run_json(run):
    """Without a file of that name it is no run, and nothing waits for the pipe."""
    instead(run / "run.json")
    with pytest.raises(RunNotFoundError, match=r"run\.json"):
        RunReader(run)
    assert list_runs(run.parent).runs == ()


def test_pipe_for_an_index(run):
    """An index by id that is not a file is skipped, and left where it is."""
    compact(run)
    [path] = run.glob("cache/*/ids.index")
    pipe = instead(path)
    [rollout] = RunReader(run).rollouts()
    # In a process of its own: a signal does not reach one that waits inside a library.
    program = (
        "import sys; from rolltrace.store.reader import RunReader; print(RunReader(sys.argv[1]).get(sys.argv[2]).id)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, run, rollout.id], timeout=_SECONDS, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == rollout.id
    assert pipe.is_fifo()


def test_pipe_for_a_blob(run):
    """A blob that is no file is not there."""
    (blob,) = (run / "blobs").iterdir()
    instead(blob)
    with pytest.raises(RecordError, match="Expected a regular file"):
        RunReader(run).blob(blob.name)
    assert [result.audit for result in check_run(run).with_findings] == ["missing_blobs"]


@pytest.mark.parametrize("strange", ["pipe", "directory", "loop", "nowhere"])
def test_strange_run_json_costs_no_other_run(run, strange):
    """A directory with something else of that name is no run; those that are are listed, also those in it."""
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
