"""The queue of lines to write: in order, within its bounds, and without losses."""

import asyncio
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from examples import examples
from rolltrace.store import write_queue as module
from rolltrace.store.write_queue import MAX_WAIT_FRACTION, QueuedLine, SignalSafeEvent, WriteQueue
from rolltrace.trace.blob import Blob

LIMIT, BATCH = 100, 20


class WriteQueueMachine(RuleBasedStateMachine):
    """A queue on which no caller waits, compared with a list of what must be in it."""

    def __init__(self):
        super().__init__()
        self.queue = WriteQueue(LIMIT, max_wait_seconds=0.0)
        self.expected = []
        self.closed = False
        self.refusing = False

    @property
    def size(self):
        return sum(item.size for item in self.expected if isinstance(item, QueuedLine))

    @rule(size=st.one_of(st.integers(0, 60), st.integers(90, 150)))
    def put(self, size):
        job = QueuedLine("rollouts", b"x" * size)
        reason = self.queue.put(job)
        if not self.expected or self.size <= LIMIT // 2:
            self.refusing = False
        if self.closed:
            assert reason == "closed"
        elif self.expected and (self.refusing or self.size + size > LIMIT):
            assert reason == "queue full"
            self.refusing = True
        else:  # it fits, or the queue is empty
            assert reason is None
            self.expected.append(job)

    @rule()
    def send(self):
        barrier = SignalSafeEvent()
        self.queue.put_barrier(barrier)
        self.expected.append(barrier)

    @precondition(lambda self: self.expected or self.closed)
    @rule()
    def take(self):
        taken = self.queue.take(0)
        if not self.expected:
            assert taken is None
            return
        assert taken
        assert taken == self.expected[: len(taken)]
        assert self.expected[len(taken) :] == [] or sum(j.size for j in taken if isinstance(j, QueuedLine)) >= BATCH
        self.expected = self.expected[len(taken) :]

    @precondition(lambda self: not self.expected and not self.closed)
    @rule()
    def take_nothing(self):
        assert self.queue.take(0) == []

    @precondition(lambda self: self.expected)
    @rule(is_time=st.integers(0, 19))
    def close(self, is_time):
        if is_time == 19:  # rare, since it ends everything else
            self.queue.close()
            self.closed = True

    @invariant()
    def bound_is_kept(self):
        lines = [item for item in self.expected if isinstance(item, QueuedLine)]
        assert self.size <= LIMIT or len(lines) == 1


class TestWriteQueueMachine(WriteQueueMachine.TestCase):
    """The property, with batches small enough to leave some lines behind, and without a batch delay."""

    settings = settings(max_examples=examples(200), stateful_step_count=30)

    def setUp(self):
        self._before = module.BATCH_BYTES, module.BATCH_DELAY_SECONDS
        module.BATCH_BYTES, module.BATCH_DELAY_SECONDS = BATCH, 0.0

    def tearDown(self):
        module.BATCH_BYTES, module.BATCH_DELAY_SECONDS = self._before


def test_blobs_take_up_room():
    """The bytes of a line's blobs count for the queue's size."""
    blob = Blob.of(b"x" * 90)
    assert QueuedLine("rollouts", b"x" * 10, "id", (blob, Blob(blob.name))).size == 100


def test_waiting_caller_continues_when_there_is_room():
    """A caller that waits for room continues as soon as there is some."""
    queue = WriteQueue(10, max_wait_seconds=60)
    queue.put(QueuedLine("rollouts", b"x" * 10))
    reasons = []
    thread = threading.Thread(target=lambda: reasons.append(queue.put(QueuedLine("rollouts", b"y" * 10))))
    thread.start()
    assert [job.data[:1] for job in queue.take(60)] == [b"x"]
    thread.join()
    assert reasons == [None]
    assert [job.data[:1] for job in queue.take(60)] == [b"y"]


def test_waiting_callers_are_woken_by_close():
    """Closing wakes callers that wait for room, and the thread that waits for lines."""
    queue = WriteQueue(10, max_wait_seconds=60)
    queue.put(QueuedLine("rollouts", b"x" * 10))
    reasons = []
    thread = threading.Thread(target=lambda: reasons.append(queue.put(QueuedLine("rollouts", b"y" * 10))))
    thread.start()
    queue.close()
    thread.join()
    assert reasons == ["closed"]
    assert len(queue.take(60)) == 1
    assert queue.take(60) is None


def test_refusing_ends_when_half_of_the_room_is_free(monkeypatch):
    """Once a line was refused, no caller waits and no line is accepted until half of the queue is free."""
    monkeypatch.setattr(module, "BATCH_BYTES", 1)  # one line at a time
    queue = WriteQueue(10, max_wait_seconds=3600)
    for _ in range(5):
        assert queue.put(QueuedLine("rollouts", b"xx")) is None

    def put():
        with monkeypatch.context() as patch:
            patch.setattr(SignalSafeEvent, "wait", lambda *_: pytest.fail("a caller waits"))
            return queue.put(QueuedLine("rollouts", b"y"))

    async def put_in_event_loop():
        return put()

    assert asyncio.run(put_in_event_loop()) == "queue full"
    for taken in range(3):
        assert put() == "queue full", f"{2 * taken} of 10 bytes are free"
        assert len(queue.take(0)) == 1
    assert put() is None


class SlowDisk:
    """A clock that advances only while a caller waits or works, and a disk that takes a fixed time per line."""

    def __init__(self, queue, seconds_per_line, monkeypatch):
        self.now = self.waited = 0.0
        self._queue, self._seconds_per_line, self._done = queue, seconds_per_line, 0.0
        monkeypatch.setattr(module, "BATCH_BYTES", 1)
        monkeypatch.setattr(module, "BATCH_DELAY_SECONDS", 0.0)
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(SignalSafeEvent, "wait", lambda flag, seconds: self._wait(seconds))

    def work(self, seconds):
        """The caller does something else."""
        self._advance(seconds)

    def _wait(self, seconds):
        """The caller waits until the disk has written the next line."""
        if seconds > 0:  # else the disk asks whether there is more
            needed = self._seconds_per_line if self._queue.is_pending else 0.0
            spent = min(seconds, max(0.0, self._done + needed - self.now) + 1e-9)
            self.waited += spent
            self._advance(spent)
        return True

    def _advance(self, seconds):
        self.now += seconds
        while self._queue.is_pending and self._done + self._seconds_per_line <= self.now:
            self._done += self._seconds_per_line
            self._queue.take(0)
        if not self._queue.is_pending:
            self._done = self.now


@pytest.mark.parametrize("rate", [10, 1_000, 50_000, 99_000, 200_000])
def test_slow_disk_takes_a_small_part_of_the_time(rate, monkeypatch):
    """Callers wait for `max_wait_seconds`, then for a small fraction of the time, and further lines are refused."""
    patience, pause, size = 1.0, 0.001, 100  # 100,000 bytes a second are handed in
    queue = WriteQueue(2_000, patience)
    disk = SlowDisk(queue, size / rate, monkeypatch)
    refused = 0
    for _ in range(60_000):
        refused += queue.put(QueuedLine("rollouts", b"x" * size)) is not None
        disk.work(pause)
    assert disk.waited <= patience + MAX_WAIT_FRACTION * disk.now + 1e-6
    assert (refused == 0) == (rate >= 99_000)
    taken = 60_000 - refused
    assert taken >= min(0.4 * rate * disk.now / size, 60_000 * 0.9)  # the disk is still used


def test_caller_in_an_event_loop_never_waits():
    """A caller in a running event loop is refused at once, whatever `max_wait_seconds` is."""
    queue = WriteQueue(10, max_wait_seconds=3600)

    async def put_too_much():
        return [queue.put(QueuedLine("rollouts", b"x" * 10)) for _ in range(3)]

    assert asyncio.run(put_too_much()) == [None, "queue full", "queue full"]
    assert [job.size for job in queue.take(0)] == [10]
    assert queue.put(QueuedLine("rollouts", b"x" * 10)) is None


def test_unbounded_wait_never_refuses():
    """With `max_wait_seconds=inf`, callers wait and no line is refused."""
    queue = WriteQueue(10, max_wait_seconds=float("inf"))
    queue.put(QueuedLine("rollouts", b"x" * 10))
    reasons = []
    thread = threading.Thread(target=lambda: reasons.append(queue.put(QueuedLine("rollouts", b"y" * 10))))
    thread.start()
    assert len(queue.take(60)) == 1
    thread.join()
    assert reasons == [None]


def test_threads_lose_nothing():
    """Lines that many threads put in are taken once, and in the order of each thread."""
    queue = WriteQueue(500, max_wait_seconds=60)
    taken = []

    def fill(name):
        for number in range(200):
            assert queue.put(QueuedLine("rollouts", b"x" * (number % 40), f"{name} {number}")) is None

    def drain():
        while (batch := queue.take(1)) is not None:
            taken.extend(job.rollout for job in batch)

    threads = [threading.Thread(target=fill, args=(name,)) for name in "abcd"]
    drainer = threading.Thread(target=drain)
    for thread in (*threads, drainer):
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()
    drainer.join()
    assert len(taken) == 800
    for name in "abcd":
        assert [each for each in taken if each.startswith(name)] == [f"{name} {number}" for number in range(200)]


def test_barrier_comes_after_earlier_lines():
    """Lines that were put before a barrier are taken before it."""
    queue = WriteQueue(100, max_wait_seconds=0)
    queue.put(QueuedLine("rollouts", b"a"))
    queue.put_barrier(SignalSafeEvent())
    queue.put(QueuedLine("rollouts", b"b"))
    assert [type(item) for item in queue.take(0)] == [QueuedLine, SignalSafeEvent, QueuedLine]


def test_event_ends_one_wait():
    """An event that is set, once or several times, ends one wait, which returns whether it was set in time."""
    flag = SignalSafeEvent()
    assert flag.wait(0) is False
    flag.set()
    flag.set()
    assert flag.wait() is True
    assert flag.wait(0) is False
