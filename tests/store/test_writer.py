"""Writing into a run: whole lines, and a ledger that adds up."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.ledger import LedgerCounter
from rolltrace.store.reader import RunReader
from rolltrace.trace.blob import Blob
from rolltrace.trace.message import Message, Part
from stage import Meddling, Remembering, Stage, said

READS_STRICT_JSON = {"parse_constant": lambda name: pytest.fail(f"not strict JSON: {name}")}


async def test_writer_is_a_sink(tmp_path):
    """The runner can be given a writer, and what it plays is recorded there."""
    with create_run(tmp_path / "run") as writer:
        runner = Runner(Remembering(said("4")), sink=writer)
        assert len([group async for group in runner.play([Stage(lambda number: Meddling(turns=1))], iteration=0)]) == 1
    [rollout] = RunReader(tmp_path / "run").rollouts()
    assert (rollout.run, rollout.session) == (writer.info.id, writer.session)
    assert rollout.steps[0].trace.policy_response.content == "4"


def test_each_line_is_one_rollout(tmp_path, make_line):
    """A segment is named after its writer and holds one strict JSON object per line."""
    with create_run(tmp_path / "run") as writer:
        lines = [make_line(writer, index=index) for index in range(3)]
        for line in lines:
            line.record()
    path = tmp_path / f"run/rollouts/{writer.session}-000000.jsonl"
    records = [json.loads(line, **READS_STRICT_JSON) for line in path.read_text().splitlines()]
    assert [record["id"] for record in records] == [line.id for line in lines]


def test_ledger_follows_a_rollout(tmp_path, make_line):
    """A rollout is in flight from its beginning until its line is written."""
    with create_run(tmp_path / "run") as writer:
        line = make_line(writer)
        assert (writer.ledger.dispatched, writer.ledger.in_flight, writer.ledger.recorded) == (1, 1, 0)
        line.record()
        assert writer.flush()
        assert (writer.ledger.dispatched, writer.ledger.in_flight, writer.ledger.recorded) == (1, 0, 1)
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.recorded, ledger.closed, ledger.is_balanced) == (1, True, True)
    assert (tmp_path / f"run/ledger/{writer.session}.jsonl").is_file()


@given(st.lists(st.tuples(st.sampled_from(["begin", "recorded", "dropped", "unrecordable"]), st.sampled_from("abc"))))
def test_ledger_adds_up_whatever_happens(events):
    """Dispatched = recorded + unrecordable + dropped + in flight, after any sequence of events."""
    tally = LedgerCounter()
    begun = set()
    for event, rollout in events:
        if event == "begin":
            if rollout not in begun:
                tally.start_rollout(rollout)
                begun.add(rollout)
        else:
            tally.settle(rollout, event, "" if event == "recorded" else "reason")
            begun.discard(rollout)
        assert tally.ledger("run", "session").is_balanced


def test_rollouts_in_flight_at_the_end_are_counted(tmp_path, make_line):
    """Closing counts a rollout without a line as in flight."""
    with create_run(tmp_path / "run") as writer:
        make_line(writer)
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.dispatched, ledger.in_flight, ledger.closed) == (1, 1, True)


def test_flushed_rollouts_survive_a_kill(tmp_path):
    """Flushed rollouts can be read after `kill -9`, and the ledger counts those in flight."""
    script = """
import os, signal, sys
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.rollout import Header
writer = create_run(sys.argv[1])
def begin(index):
    return writer.begin(Header(id=new_id(), run=writer.run, session=writer.session, env="e", task="t", group="g",
                               index=index, started_at=utc_now()))
outcome = dict(ended_at=utc_now(), status="ok", stop_reason="completed", stopped_by="env", error=None, reward=1.0,
               reward_so_far=1.0, unclamped_reward=None)
begin(1)
writer.end(begin(0), outcome)
assert writer.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script, tmp_path / "run"], check=False)
    assert ended.returncode == -signal.SIGKILL
    reader = RunReader(tmp_path / "run")
    assert [rollout.index for rollout in reader.rollouts()] == [0]
    [ledger] = reader.ledgers().values()
    assert (ledger.recorded, ledger.in_flight, ledger.closed) == (1, 1, False)


@pytest.fixture
def small_files():
    """Sets the largest file size of this process, to imitate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_drops_counts_and_recovers(tmp_path, make_line, small_files, caplog):
    """A disk that takes half a line drops that line only: it is counted, logged once, and not joined with the next."""
    with create_run(tmp_path / "run") as writer:
        lines = [make_line(writer, index=index) for index in range(4)]
        lines[0].record()
        assert writer.flush()
        small_files(len(lines[0].data) + len(lines[1].data) // 2)
        lines[1].record()
        lines[2].record()
        assert writer.flush() is False
        small_files(resource.RLIM_INFINITY)
        lines[3].record()
        assert writer.flush() is True
    reader = RunReader(tmp_path / "run")
    assert [rollout.index for rollout in reader.rollouts()] == [0, 3]
    assert reader.read_errors == ()
    assert writer.ledger.dropped == {"EFBIG": 2}
    assert writer.ledger.is_balanced
    assert len(caplog.records) == 1


def test_torn_line_that_cannot_be_cut_off_ends_the_segment(tmp_path, make_line, small_files, monkeypatch):
    """If a torn line cannot be truncated, the next line goes to a new file."""

    def refuse(*_):
        raise OSError(5, "Input/output error")

    with create_run(tmp_path / "run") as writer:
        lines = [make_line(writer, index=index) for index in range(3)]
        lines[0].record()
        assert writer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "ftruncate", refuse)
            small_files(len(lines[0].data) + 10)
            lines[1].record()
            assert not writer.flush()
        small_files(resource.RLIM_INFINITY)
        lines[2].record()
    reader = RunReader(tmp_path / "run")
    assert [rollout.index for rollout in reader.rollouts()] == [0, 2]
    [problem] = reader.read_errors
    assert (problem.file, problem.offset) == (f"rollouts/{writer.session}-000000.jsonl", len(lines[0].data))


def test_deleted_directory_does_not_raise(tmp_path, make_line, make_score, caplog):
    """Deleting a run under its writer raises nothing; the loss and the missing ledger are logged."""
    with create_run(tmp_path / "run") as writer:
        make_line(writer).record()
        assert writer.flush()
        shutil.rmtree(tmp_path / "run")
        line = make_line(writer)
        line.record()
        writer.write_score(make_score(writer, line.id, 1.0))
        assert writer.flush() is False
    assert writer.ledger.dropped == {"ENOENT": 1}
    assert writer.ledger.scores_dropped == {"ENOENT": 1}
    assert writer.ledger.is_balanced
    loss, ledger = (record.getMessage() for record in caplog.records)
    assert "ENOENT" in loss
    assert "Could not write the ledger" in ledger


def test_deleted_segment_begins_a_new_one(tmp_path, make_line):
    """If only the segment was deleted, later lines go to a new one."""
    with create_run(tmp_path / "run") as writer:
        make_line(writer, index=0).record()
        assert writer.flush()
        (tmp_path / f"run/rollouts/{writer.session}-000000.jsonl").unlink()
        make_line(writer, index=1).record()
    assert [rollout.index for rollout in RunReader(tmp_path / "run").rollouts()] == [1]


def test_rollout_that_cannot_be_encoded_is_counted(tmp_path, make_line):
    """A rollout that cannot be encoded does not raise into the caller."""
    with create_run(tmp_path / "run") as writer:
        make_line(writer)._replace(outcome={}).record()
        assert writer.ledger.unrecordable == {"TypeError": 1}
        assert writer.ledger.is_balanced
    assert list((tmp_path / "run/rollouts").iterdir()) == []


def test_late_lines_are_dropped_and_counted(tmp_path, make_line, make_score):
    """After closing, nothing is written, every record is counted as dropped, and closing again does nothing."""
    writer = create_run(tmp_path / "run")
    line = make_line(writer)
    writer.close()
    line.record()
    writer.write_score(make_score(writer, line.id, 1.0))
    writer.close()
    assert writer.ledger.dropped == {"closed": 1}
    assert writer.ledger.scores_dropped == {"closed": 1}
    assert list(RunReader(tmp_path / "run").rollouts()) == []


def test_threads_share_a_writer(tmp_path, make_line):
    """Lines of many threads stay whole, and every one is counted."""
    with create_run(tmp_path / "run") as writer:

        def play(first):
            for index in range(first, first + 50):
                make_line(writer, index=index).record()

        threads = [threading.Thread(target=play, args=(first,)) for first in range(0, 400, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = RunReader(tmp_path / "run")
    assert sorted(rollout.index for rollout in reader.rollouts()) == list(range(400))
    assert reader.read_errors == ()
    assert writer.ledger.recorded == 400


def test_blob_is_kept_once(tmp_path, make_line):
    """Bytes that several messages carry are one file named by its content, and the folder has no other file."""
    blob = Blob.of(b"png bytes")
    message = Message("user", "look", parts=(Part("image", blob=blob),))
    with create_run(tmp_path / "run") as writer:
        make_line(writer, message).record()
        make_line(writer, message).record()
    assert [path.name for path in (tmp_path / "run/blobs").iterdir()] == [blob.name]
    assert RunReader(tmp_path / "run").blob(blob.name) == b"png bytes"
    assert writer.ledger.complete


def test_blob_cannot_leave_its_folder(tmp_path, make_line):
    """A blob name that is a path is not followed when writing; the line is written and the loss counted."""
    blob = Blob.of(b"x")
    blob.name = "../../escaped"
    message = Message("user", "look", parts=(Part("image", blob=blob),))
    with create_run(tmp_path / "run") as writer:
        make_line(writer, message).record()
    assert not (tmp_path / "escaped").exists()
    assert writer.ledger.recorded == 1
    assert writer.ledger.blobs_dropped == {"bad name": 1}


def test_blob_without_bytes_is_counted(tmp_path, make_line):
    """A blob from another run's record has a name and no bytes; the missing bytes are counted."""
    message = Message("user", "look", parts=(Part("image", blob=Blob(Blob.of(b"x").name)),))
    with create_run(tmp_path / "run") as writer:
        make_line(writer, message).record()
    assert writer.ledger.blobs_dropped == {"no data": 1}


def test_score_that_cannot_be_encoded_is_counted(tmp_path, make_score):
    """A score that cannot be encoded does not raise into the caller."""
    with create_run(tmp_path / "run") as writer:
        writer.write_score(None)
        writer.write_score(make_score(writer, "fine", 1.0))
    assert writer.ledger.scores_dropped == {"AttributeError": 1}
    assert [score.rollout for score in RunReader(tmp_path / "run").scores()] == ["fine"]
