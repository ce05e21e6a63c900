"""Compression of full segments in the background, also if threads cannot be started."""

import gc
import threading
import weakref

from rolltrace.store import disk_writer
from rolltrace.store.create import create_run
from rolltrace.store.disk_writer import SegmentCompressor

SECONDS = 20


def in_thread(action):
    """Runs a function that must end in a thread; the returned function waits for it."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()

    def join():
        thread.join(SECONDS)
        assert not thread.is_alive(), "it does not end"

    return join


def test_segment_whose_thread_cannot_be_started_stays(tmp_path, monkeypatch):
    """If no thread can be started, a segment stays plain; those before it are compressed."""
    is_compressing, may_compress, compressed = threading.Event(), threading.Event(), []
    start = disk_writer.start_thread

    def compress(path):
        is_compressing.set()
        assert may_compress.wait(SECONDS)
        compressed.append(path.name)

    monkeypatch.setattr(disk_writer, "compress_segment", compress)
    compressor = SegmentCompressor(lambda error: None)
    compressor.compress(tmp_path / "a")
    assert is_compressing.wait(SECONDS)
    compressor.compress(tmp_path / "b")
    monkeypatch.setattr(disk_writer, "start_thread", lambda action: False)
    compressor.compress(tmp_path / "c")
    monkeypatch.setattr(disk_writer, "start_thread", start)
    may_compress.set()
    in_thread(compressor.wait)()
    assert compressed == ["a", "b"]


def test_waiting_for_segments_does_not_depend_on_threads(tmp_path, monkeypatch):
    """A segment that no thread has started to compress is compressed by the thread that waits."""
    compressed = []
    monkeypatch.setattr(disk_writer, "compress_segment", lambda path: compressed.append(path.name))
    monkeypatch.setattr(disk_writer, "start_thread", lambda action: True)  # it never runs
    compressor = SegmentCompressor(lambda error: None)
    compressor.compress(tmp_path / "a")
    compressor.compress(tmp_path / "b")
    in_thread(compressor.wait)()
    assert compressed == ["a", "b"]


def test_pending_rollouts_of_one_group_leave_nothing(tmp_path):
    """Pending rollouts of one group do not accumulate memory."""

    def dead_references():
        gc.collect()
        return sum(issubclass(type(thing), weakref.ref) and thing() is None for thing in gc.get_objects())

    before = dead_references()
    with create_run(tmp_path / "run") as run:
        for index in range(1000):
            recorder = run.rollout(env="sums", task="t", group="g", index=index)
            recorder.step("1 + 1?", "2", None)
            recorder.end(pending=True)
            del recorder
        assert dead_references() - before < 100
