"""A disk that fails in every way: the program continues, ledger and one warning report it, and recording recovers."""

import _thread
import contextlib
import errno
import io
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from file_reads import open_descriptors
from rolltrace.errors import StorageError
from rolltrace.store import disk_writer, segment_writer
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.store.write_queue import SignalSafeEvent
from rolltrace.trace.blob import Blob
from rolltrace.trace.message import Message, Part
from waiting import until

ROOT = os.geteuid() == 0


@pytest.fixture
def mount(tmp_path):
    """Mounts a small file system; the returned function remounts it with other options."""
    place = tmp_path / "disk"
    place.mkdir()

    def run_mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)

    if not ROOT or run_mount("size=64k").returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    yield place, lambda options: run_mount(f"remount,{options}")
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def fail(monkeypatch):
    """Makes a function of `os` raise for files whose name holds a text; the returned function ends that."""

    def begin(name, number, text):
        original = getattr(os, name)

        def refuse(file, *rest, **named):
            place = str(Path(f"/proc/self/fd/{file}").readlink() if isinstance(file, int) else file)
            if text in place:
                raise OSError(number, os.strerror(number))
            return original(file, *rest, **named)

        monkeypatch.setattr(os, name, refuse)
        return lambda: monkeypatch.setattr(os, name, original)

    return begin


@pytest.fixture
def only_flush_syncs(monkeypatch):
    """Lines are written soon, and synced only by `flush` and `close`."""
    monkeypatch.setattr(disk_writer, "SYNC_SECONDS", 3600.0)


def write(writer, index, text="1 + 1?"):
    """Records a rollout of one step."""
    with writer.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step(text, "2", 1.0)
    return recorder.id


def indices(path):
    """The indexes of the rollouts that can be read."""
    return [rollout.index for rollout in RunReader(path).rollouts()]


def assert_reported(writer, caplog, *reasons):
    """Asserts that the ledger adds up and has these reasons, and that there is one warning for each."""
    assert writer.ledger.is_balanced
    assert set(writer.ledger.dropped) == set(reasons)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == len(reasons), messages
    assert all(any(reason in message for message in messages) for reason in reasons)


def test_full_disk(mount, caplog):
    """A full disk drops what does not fit; once there is room, recording continues."""
    disk, _ = mount
    with create_run(disk / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            file.write(bytes(200_000))  # as much as fits
        for index in range(1, 20):
            write(writer, index, "x" * 5000)
        assert writer.flush() is False
        ballast.unlink()
        write(writer, 20)
        assert writer.flush() is True
    kept = indices(disk / "run")
    assert {0, 20} <= set(kept)
    assert writer.ledger.recorded == len(kept) == 21 - writer.ledger.dropped["ENOSPC"]
    assert RunReader(disk / "run").read_errors == ()
    [ledger] = RunReader(disk / "run").ledgers().values()
    assert ledger.dropped == writer.ledger.dropped
    assert_reported(writer, caplog, "ENOSPC")


def test_read_only_file_system(mount, caplog):
    """A file system that becomes read-only drops records while it is, and leaves the files intact."""
    disk, remount = mount
    with create_run(disk / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        for descriptor in open_descriptors(disk):
            os.close(descriptor)  # a file that is open for writing keeps the disk writable
        assert remount("ro").returncode == 0
        write(writer, 1)
        assert writer.flush() is False
        assert remount("rw").returncode == 0
        write(writer, 2)
        assert writer.flush() is True
    assert indices(disk / "run") == [0, 2]
    assert_reported(writer, caplog, "EROFS")


def test_read_only_directory(tmp_path, fail, caplog):
    """A directory in which no file can be created drops records while it is so."""
    with create_run(tmp_path / "run") as writer:
        end = fail("open", errno.EROFS, "rollouts")
        write(writer, 0)
        assert writer.flush() is False
        end()
        write(writer, 1)
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [1]
    assert_reported(writer, caplog, "EROFS")


def test_deleted_directory_that_comes_back(tmp_path, caplog):
    """Records that come while the directory is missing are counted as dropped; once it exists, recording continues."""
    with create_run(tmp_path / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        (tmp_path / "run").rename(tmp_path / "kept")
        (tmp_path / "kept/rollouts").rename(tmp_path / "kept/old")
        for file in (tmp_path / "kept/old").iterdir():
            file.unlink()
        write(writer, 1)
        assert writer.flush() is False
        (tmp_path / "kept").rename(tmp_path / "run")
        (tmp_path / "run/rollouts").mkdir()
        write(writer, 2)
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [2]
    assert_reported(writer, caplog, "ENOENT")


def test_deleted_before_flush_is_reported(tmp_path, only_flush_syncs):
    """A file that was deleted between writing and flushing is a loss, and `flush` returns False."""
    with create_run(tmp_path / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        write(writer, 1)
        until(lambda: indices(tmp_path / "run") == [0, 1])
        [segment] = (tmp_path / "run/rollouts").iterdir()
        segment.unlink()
        assert writer.flush() is False
        write(writer, 2)
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [2]


def test_closed_descriptor_loses_nothing(tmp_path, caplog):
    """If the descriptor is closed from outside, the next line begins a new file."""
    with create_run(tmp_path / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        [descriptor] = open_descriptors(tmp_path / "run/rollouts")
        os.close(descriptor)
        write(writer, 1)
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [0, 1]
    assert caplog.records == []


@pytest.mark.parametrize("ending", ["write", "flush", "close"])
def test_descriptor_that_was_reused(tmp_path, only_flush_syncs, ending):
    """If a closed descriptor's number refers to another file by now, that file is not written, truncated or closed."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    writer = create_run(tmp_path / "run")
    write(writer, 0)
    assert writer.flush()
    write(writer, 1)
    until(lambda: indices(tmp_path / "run") == [0, 1])
    [number] = open_descriptors(tmp_path / "run/rollouts")
    foreign = os.open(other, os.O_RDWR)
    os.dup2(foreign, number)
    os.close(foreign)
    try:
        if ending == "write":
            write(writer, 2)
        if ending != "close":
            assert writer.flush() is True
        writer.close()
        assert os.pread(number, 100, 0) == b"precious"  # still open
        assert other.read_bytes() == b"precious"
    finally:
        os.close(number)
    assert indices(tmp_path / "run") == ([0, 1, 2] if ending == "write" else [0, 1])


def test_torn_line_is_never_cut_off_another_file(tmp_path, monkeypatch):
    """If a descriptor comes to refer to another file during a write, that file is not truncated."""
    other = tmp_path / "other"
    other.write_bytes(b"precious" * 1000)
    real = os.write
    with create_run(tmp_path / "run") as writer:
        write(writer, 0)
        assert writer.flush()
        [number] = open_descriptors(tmp_path / "run/rollouts")

        def write_and_lose(descriptor, data):
            if descriptor != number:
                return real(descriptor, data)
            foreign = os.open(other, os.O_RDONLY)
            os.dup2(foreign, number)
            os.close(foreign)
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_and_lose)
            write(writer, 1)
            assert writer.flush() is False
        write(writer, 2)
        assert writer.flush() is True
    os.close(number)
    assert other.read_bytes() == b"precious" * 1000
    assert indices(tmp_path / "run") == [0, 2]


def test_failing_fsync(tmp_path, fail, caplog):
    """If fsync fails, `flush` returns False; the lines count as recorded, since they were written."""
    with create_run(tmp_path / "run") as writer:
        end = fail("fsync", errno.EIO, "rollouts")
        write(writer, 0)
        assert writer.flush() is False
        assert writer.flush() is False
        end()
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [0]
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert ledger.sync_failed["EIO"] >= 2
    assert ledger.is_balanced
    assert not ledger.complete
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "EIO" in caplog.text


def test_failing_fsync_of_a_full_segment_is_reported(tmp_path, fail, only_flush_syncs):
    """If fsync of a full segment fails, the next `flush` returns False, and no line is lost."""
    with create_run(tmp_path / "run", trace=Recording(segment_bytes=1)) as writer:
        write(writer, 0)
        assert writer.flush() is True
        write(writer, 1)
        until(lambda: indices(tmp_path / "run") == [0, 1])
        end = fail("fsync", errno.EIO, "-000001.jsonl")
        write(writer, 2)
        assert writer.flush() is False
        assert writer.flush() is True
        end()
    assert indices(tmp_path / "run") == [0, 1, 2]
    assert writer.ledger.dropped == {}


def test_failing_compression_keeps_the_plain_file(tmp_path, fail, caplog):
    """A full segment that cannot be compressed stays plain, with one warning."""
    with create_run(tmp_path / "run", trace=Recording(segment_bytes=1)) as writer:
        fail("replace", errno.EIO, ".zst")
        for index in range(5):
            write(writer, index)
            assert writer.flush() is True
    assert indices(tmp_path / "run") == list(range(5))
    assert {file.suffix for file in (tmp_path / "run/rollouts").iterdir()} == {".jsonl"}
    assert len(caplog.records) == 1
    assert "stays uncompressed" in caplog.text


def test_thread_that_cannot_be_started(tmp_path, monkeypatch):
    """Without a thread, `flush` and `close` write the queue; once threads can be started, one does."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        writer = create_run(tmp_path / "run")
        write(writer, 0)
        assert indices(tmp_path / "run") == []
        assert writer.flush() is True
        assert indices(tmp_path / "run") == [0]
        write(writer, 1)
    write(writer, 2)
    until(lambda: indices(tmp_path / "run") == [0, 1, 2])  # without a flush
    writer.close()
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        writer = create_run(tmp_path / "run", join=True)
        write(writer, 3)
        writer.close()
    assert sorted(indices(tmp_path / "run")) == [0, 1, 2, 3]
    assert writer.ledger.complete


@pytest.fixture
def hanging_disk(monkeypatch):
    """Hangs in the first write of a line; returns the events of its hanging and of its release."""
    hangs, goes_on, real = threading.Event(), threading.Event(), os.write

    def hang(descriptor, data):
        if data[:1] == b"{" and not goes_on.is_set():
            hangs.set()
            goes_on.wait()
        return real(descriptor, data)

    def begin():
        monkeypatch.setattr(os, "write", hang)
        return hangs, goes_on

    yield begin
    goes_on.set()  # a test that fails must not hang


def test_hanging_disk(tmp_path, hanging_disk, monkeypatch, caplog):
    """The caller waits once for the set time, then lines are dropped at once; after the disk is back, none are."""
    trace = Recording(queue_bytes=10_000, queue_seconds=0.2)
    with create_run(tmp_path / "run", trace=trace) as writer, contextlib.ExitStack() as ending:
        hangs, goes_on = hanging_disk()
        ending.callback(goes_on.set)  # before the run is closed
        write(writer, 0)
        hangs.wait()
        waited = {}
        wait = SignalSafeEvent.wait

        def note_wait(flag, seconds):
            if threading.current_thread() is threading.main_thread():
                waited[index] = seconds
            return wait(flag, seconds)

        with monkeypatch.context() as patch:
            patch.setattr(SignalSafeEvent, "wait", note_wait)
            for index in range(1, 10):
                write(writer, index, "x" * 3000)
        [(first, seconds)] = waited.items()  # and the rest did not wait
        assert 0 < seconds <= 0.2
        dropped = 10 - first
        assert writer.ledger.dropped == {"queue full": dropped}
        goes_on.set()
        assert writer.flush() is False
        write(writer, 10, "x" * 3000)
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [*range(10 - dropped), 10]
    assert_reported(writer, caplog, "queue full")


def test_log_handler_that_raises(tmp_path, fail, caplog):
    """A logging filter that raises costs nothing beyond the fault that it should have logged."""

    class Raising:
        def filter(self, record):
            raise RuntimeError(record.getMessage())

    logger = logging.getLogger("rolltrace.store.disk_writer")
    raising = Raising().filter
    logger.addFilter(raising)
    try:
        with create_run(tmp_path / "run") as writer:
            end = fail("open", errno.EIO, "rollouts")
            for index in range(3):
                write(writer, index)
            assert writer.flush() is False
            end()
            write(writer, 3)
            assert writer.flush() is True
    finally:
        logger.removeFilter(raising)
    assert indices(tmp_path / "run") == [3]
    assert writer.ledger.dropped == {"EIO": 3}
    assert writer.ledger.is_balanced


def test_each_thread_learns_of_a_loss(tmp_path, fail):
    """`flush` reports a loss once to each thread, since the lost line may have been its own."""
    with create_run(tmp_path / "run") as writer:
        end = fail("open", errno.EIO, "rollouts")
        write(writer, 0)
        assert writer.flush() is False
        end()
        told = []
        thread = threading.Thread(target=lambda: told.extend([writer.flush(), writer.flush()]))
        thread.start()
        thread.join()
        assert told == [False, True]
        assert writer.flush() is True


def test_one_warning_from_many_threads(tmp_path, hanging_disk, caplog):
    """Threads that lose lines at the same time log one warning."""
    start = threading.Barrier(8)
    trace = Recording(queue_bytes=1, queue_seconds=0)
    with create_run(tmp_path / "run", trace=trace) as writer, contextlib.ExitStack() as ending:
        assert writer.flush()
        hangs, goes_on = hanging_disk()
        ending.callback(goes_on.set)  # before the run is closed
        write(writer, 0)
        hangs.wait()
        write(writer, 1)  # a line that is alone in the queue is accepted, however large

        def lose():
            start.wait()
            for index in range(20):
                write(writer, index)

        threads = [threading.Thread(target=lose) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.ledger.dropped == {"queue full": 160}
    assert indices(tmp_path / "run") == [0, 1]
    assert_reported(writer, caplog, "queue full")


def test_full_disk_while_making_a_run(tmp_path, fail):
    """A run that cannot be created raises StorageError, and can be created later at the same path."""
    end = fail("fsync", errno.ENOSPC, "run.json")
    with pytest.raises(StorageError, match="No space left"):
        create_run(tmp_path / "run")
    end()
    create_run(tmp_path / "run").close()
    assert sorted(file.name for file in (tmp_path / "run").iterdir() if file.is_file()) == ["run.json"]


# Blobs


def show(writer, index, data):
    """Records a rollout whose prompt carries bytes."""
    message = Message("user", "look", parts=(Part("image", blob=Blob.of(data)),))
    with writer.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step([message], "2", 1.0)


@pytest.fixture
def synced(monkeypatch):
    """The names of files and folders that were synced, in order."""
    real, names = os.fsync, []

    def note(descriptor):
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_flush_brings_blobs_to_the_disk_before_their_lines(tmp_path, synced, only_flush_syncs):
    """Each blob is synced once, then their folder once, then the lines; nothing is synced again."""
    blobs = {Blob.of(bytes([number])).name for number in range(20)}
    with create_run(tmp_path / "run") as writer:
        assert writer.flush()
        synced.clear()
        for number in range(40):
            show(writer, number, bytes([number % 20]))
        assert writer.flush()
        line = synced.index(f"{writer.session}-000000.jsonl")
        assert sorted(synced[:20]) == sorted(blobs)
        assert synced[20:line] == ["blobs"]
        synced.clear()
        show(writer, 40, b"\x00")
        assert writer.flush()
        assert not blobs & set(synced)
        assert "blobs" not in synced


def test_blob_of_another_writer_is_made_safe(tmp_path, synced):
    """A blob that another writer has written may not be synced yet, so each writer that refers to it syncs it."""
    with create_run(tmp_path / "run") as first, create_run(tmp_path / "run", join=True) as second:
        for writer in (first, second):
            synced.clear()
            show(writer, 0, b"png")
            assert writer.flush()
            assert Blob.of(b"png").name in synced


@pytest.mark.parametrize("left", [b"", b"\x00\x00\x00", b"pn"])
def test_blob_that_a_power_loss_left_is_written_again(tmp_path, left):
    """A blob file with other bytes, as a power loss may leave it, is written again."""
    with create_run(tmp_path / "run") as writer:
        (tmp_path / "run/blobs" / Blob.of(b"png").name).write_bytes(left)
        show(writer, 0, b"png")
        assert writer.flush()
    assert RunReader(tmp_path / "run").blob(Blob.of(b"png").name) == b"png"


@pytest.mark.parametrize("text", ["sha256-", "run/blobs"])
def test_failing_fsync_of_blobs_is_reported(tmp_path, fail, text):
    """If fsync of blobs or of their folder fails, `flush` returns False and counts it until it succeeds."""
    with create_run(tmp_path / "run") as writer:
        end = fail("fsync", errno.EIO, text)
        show(writer, 0, b"png")
        assert writer.flush() is False
        assert writer.flush() is False
        end()
        assert writer.flush() is True
        assert set(writer.ledger.sync_failed) == {"EIO"}
        assert writer.flush() is True
    assert indices(tmp_path / "run") == [0]


def test_known_blobs_are_bounded(tmp_path, monkeypatch):
    """Only the last blob names are remembered; the file of a forgotten one is compared again."""
    monkeypatch.setattr(disk_writer, "MAX_KNOWN_BLOBS", 5)
    blobs = [bytes([number]) for number in range(30)]
    files = [tmp_path / "run/blobs" / Blob.of(data).name for data in blobs]
    with create_run(tmp_path / "run") as writer:
        for number, data in enumerate(blobs):
            show(writer, number, data)
        assert writer.flush()
        for file in files:
            file.write_bytes(b"?")
        for number in (*range(25, 30), *range(25)):
            show(writer, 30 + number, blobs[number])
        assert writer.flush()
    assert [file.read_bytes() for file in files] == blobs[:25] + [b"?"] * 5
    assert writer.ledger.complete


# Descriptors


@pytest.fixture
def run_out_of_descriptors(monkeypatch):
    """Makes the next opens of matching paths fail with EMFILE; the returned function counts the failures."""

    def begin(pattern, failures):
        count = 0

        def out_of_descriptors(original):
            def open_or_refuse(path, *rest, **named):
                nonlocal count
                if count < failures and re.search(pattern, str(path)):
                    count += 1
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return original(path, *rest, **named)

            return open_or_refuse

        monkeypatch.setattr(os, "open", out_of_descriptors(os.open))
        monkeypatch.setattr(io, "open", out_of_descriptors(io.open))
        return lambda: count

    monkeypatch.setattr(segment_writer, "RETRY_SECONDS", 0)
    return begin


@pytest.mark.parametrize(
    "pattern",
    ["/rollouts/.+", "/rollouts$", "/scores/.+", "/scores$", "/ledger/.+", "/ledger$",
     r"/blobs/\.sha256-", "/blobs/sha256-", "/blobs$"],
)  # fmt: skip
def test_flush_retries_while_there_is_no_descriptor(tmp_path, run_out_of_descriptors, caplog, pattern):
    """Whichever file or folder cannot be opened for want of a descriptor, `flush` retries, and nothing is lost."""
    count = run_out_of_descriptors(pattern, 5)
    with create_run(tmp_path / "run") as writer:
        show(writer, 0, b"png")
        writer.score("rollout", "quality", 1.0)
        assert writer.flush() is True
        assert count() == 5
    assert indices(tmp_path / "run") == [0]
    assert writer.ledger.complete
    assert writer.ledger.sync_failed == {}
    assert caplog.records == []


def test_retries_for_a_descriptor_end(tmp_path, run_out_of_descriptors, caplog):
    """Retries end after a while with a sync failure, and the next flush does not retry as long."""
    with create_run(tmp_path / "run") as writer:
        assert writer.flush()
        count = run_out_of_descriptors("/rollouts$", 10**9)
        write(writer, 0)
        assert writer.flush() is False
        assert count() > segment_writer.MAX_RETRIES
        assert writer.flush() is False
        assert count() < 2 * segment_writer.MAX_RETRIES
        assert set(writer.ledger.sync_failed) == {"EMFILE"}
    assert indices(tmp_path / "run") == [0]
    assert len(caplog.records) == 1


def test_recording_resumes_when_descriptors_are_free(tmp_path):
    """A program with very many connections loses no line: the file is opened as soon as a descriptor is free."""
    code = """
import os, resource, sys, threading, time
from rolltrace.store.create import create_run
real_sleep, retries = time.sleep, threading.Event()
def sleep(seconds):
    retries.set()
    real_sleep(seconds)
time.sleep = sleep
with create_run(sys.argv[1]) as run:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    with run.rollout(env="e", task="t", group="g", index=0) as r:
        r.step(prompt="?", response="!", reward=1.0)
    flushed = []
    flushing = threading.Thread(target=lambda: flushed.append(run.flush()))
    flushing.start()
    retries.wait(60)
    for descriptor in taken:
        os.close(descriptor)
    flushing.join()
    print(flushed, run.ledger.recorded, run.ledger.dropped)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[True] 1 {}\n", ran.stderr
    assert len(list(RunReader(tmp_path / "run").rollouts())) == 1
