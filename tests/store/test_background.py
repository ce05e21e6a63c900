"""Work in threads of its own, where threads cannot be started at times."""

import gc
import threading
import weakref

from rolltrace.store import background
from rolltrace.store.background import SegmentCompressor
from rolltrace.store.create import create_run

SECONDS = 20


def in_thread(action):
    """Do something that must end; what is returned waits for it."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()

    def join():
        thread.join(SECONDS)
        assert not thread.is_alive(), "it does not end"

    return join


def test_segment_whose_thread_cannot_be_started_stays(tmp_path, monkeypatch):
    """Where no thread can be started one segment stays as it is; one that is being sealed, and the next, are sealed."""
    is_sealing, may_seal, sealed = threading.Event(), threading.Event(), []
    start = background.start_thread

    def seal(path):
        is_sealing.set()
        assert may_seal.wait(SECONDS)
        sealed.append(path.name)

    monkeypatch.setattr(background, "compress_segment", seal)
    sealer = SegmentCompressor(lambda error: None)
    sealer.seal(tmp_path / "a")
    assert is_sealing.wait(SECONDS)
    sealer.seal(tmp_path / "b")
    monkeypatch.setattr(background, "start_thread", lambda action: False)
    sealer.seal(tmp_path / "c")
    monkeypatch.setattr(background, "start_thread", start)
    may_seal.set()
    in_thread(sealer.wait)()
    assert sealed == ["a", "b"]


def test_waiting_for_segments_does_not_depend_on_threads(tmp_path, monkeypatch):
    """What no thread has begun to seal is sealed by the thread that waits for it."""
    sealed = []
    monkeypatch.setattr(background, "compress_segment", lambda path: sealed.append(path.name))
    monkeypatch.setattr(background, "start_thread", lambda action: True)  # it gets no time
    sealer = SegmentCompressor(lambda error: None)
    sealer.seal(tmp_path / "a")
    sealer.seal(tmp_path / "b")
    in_thread(sealer.wait)()
    assert sealed == ["a", "b"]


def test_pending_rollouts_of_one_group_leave_nothing(tmp_path):
    """A loop that records all rollouts without a reward under one group does not grow with their number."""

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
