"""What waits to be written: in order, within its bounds, and nothing lost between coming and going."""

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rolltrace.store import backlog as module
from rolltrace.store.backlog import Backlog, Errand, Job
from rolltrace.trace.blob import Blob

LIMIT = 100


class BacklogMachine(RuleBasedStateMachine):
    """A backlog that never lets anybody wait, beside a list that says what must be in it."""

    def __init__(self):
        super().__init__()
        self.backlog = Backlog(LIMIT, patience=0.0)
        self.expected = []
        self.closed = False

    @property
    def size(self):
        return sum(item.size for item in self.expected if isinstance(item, Job))

    @rule(size=st.one_of(st.integers(0, 60), st.integers(90, 150)))
    def put(self, size):
        job = Job("rollouts", b"x" * size)
        reason = self.backlog.put(job)
        if self.closed:
            assert reason == "closed"
        elif self.size and self.size + size > LIMIT:
            assert reason == "queue full"
        else:  # it fits, or is alone
            assert reason is None
            self.expected.append(job)

    @rule()
    def send(self):
        errand = self.backlog.send(lambda: None)
        assert (errand is None) == self.closed
        if errand is not None:
            self.expected.append(errand)

    @precondition(lambda self: self.expected or self.closed)
    @rule()
    def take(self):
        taken = self.backlog.take(0)
        if not self.expected:
            assert taken is None
            return
        assert taken
        assert taken == self.expected[: len(taken)]
        assert self.expected[len(taken) :] == [] or sum(j.size for j in taken if isinstance(j, Job)) >= 50
        self.expected = self.expected[len(taken) :]

    @rule()
    def take_nothing(self):
        if not self.expected and not self.closed:
            assert self.backlog.take(0) == []

    @precondition(lambda self: self.expected)
    @rule()
    def close(self):
        self.backlog.close()
        self.closed = True

    @invariant()
    def bound_is_kept(self):
        assert self.backlog._size == self.size
        assert self.size <= LIMIT or sum(isinstance(item, Job) and item.size > 0 for item in self.expected) == 1


class TestBacklogMachine(BacklogMachine.TestCase):
    """The law, with batches small enough that some are left behind and no lingering."""

    settings = settings(max_examples=60, stateful_step_count=30)

    def setUp(self):
        self._before = module.BATCH_BYTES, module.LINGER_SECONDS
        module.BATCH_BYTES, module.LINGER_SECONDS = 50, 0.0

    def tearDown(self):
        module.BATCH_BYTES, module.LINGER_SECONDS = self._before


def test_blobs_take_up_room():
    """The bytes that a line's messages carry count."""
    blob = Blob.of(b"x" * 90)
    assert Job("rollouts", b"x" * 10, "id", (blob, Blob(blob.name))).size == 100


def test_who_waits_gets_in_when_there_is_room():
    """A caller that waits for room goes on as soon as there is some."""
    backlog = Backlog(10, patience=60)
    backlog.put(Job("rollouts", b"x" * 10))
    reasons = []
    thread = threading.Thread(target=lambda: reasons.append(backlog.put(Job("rollouts", b"y" * 10))))
    thread.start()
    assert [job.data[:1] for job in backlog.take(60)] == [b"x"]
    thread.join()
    assert reasons == [None]
    assert [job.data[:1] for job in backlog.take(60)] == [b"y"]


def test_who_waits_is_told_of_the_end():
    """Closing wakes those who wait for room, and those who wait for something to do."""
    backlog = Backlog(10, patience=60)
    backlog.put(Job("rollouts", b"x" * 10))
    reasons = []
    thread = threading.Thread(target=lambda: reasons.append(backlog.put(Job("rollouts", b"y" * 10))))
    thread.start()
    backlog.close()
    thread.join()
    assert reasons == ["closed"]
    assert len(backlog.take(60)) == 1
    assert backlog.take(60) is None


def test_refusing_ends_when_there_is_room():
    """After one wait in vain nobody waits; once something was taken, callers may wait again."""
    backlog = Backlog(10, patience=0.01)
    backlog.put(Job("rollouts", b"x" * 10))
    assert backlog.put(Job("rollouts", b"y")) == "queue full"
    backlog._patience = 3600  # whoever waits now waits for ever
    assert backlog.put(Job("rollouts", b"y")) == "queue full"
    backlog.take(0)
    assert backlog.put(Job("rollouts", b"y" * 10)) is None
    assert backlog._refusing is False


def test_threads_lose_nothing():
    """What many threads put in comes out once, and in the order of each thread."""
    backlog = Backlog(500, patience=60)
    taken = []

    def fill(name):
        for number in range(200):
            assert backlog.put(Job("rollouts", b"x" * (number % 40), f"{name} {number}")) is None

    def drain():
        while (batch := backlog.take(1)) is not None:
            taken.extend(job.rollout for job in batch)

    threads = [threading.Thread(target=fill, args=(name,)) for name in "abcd"]
    drainer = threading.Thread(target=drain)
    for thread in (*threads, drainer):
        thread.start()
    for thread in threads:
        thread.join()
    backlog.close()
    drainer.join()
    assert len(taken) == 800
    for name in "abcd":
        assert [each for each in taken if each.startswith(name)] == [f"{name} {number}" for number in range(200)]


def test_errand_comes_after_what_was_put_before_it():
    """Whoever runs errands meets them in their place."""
    backlog = Backlog(100, patience=0)
    backlog.put(Job("rollouts", b"a"))
    backlog.send(print)
    backlog.put(Job("rollouts", b"b"))
    assert [type(item) for item in backlog.take(0)] == [Job, Errand, Job]


def test_closing_inside_itself_does_not_hang():
    """The garbage collector may close a backlog in the very thread that is taking from it."""
    backlog = Backlog(100, patience=0)

    def close_while_taking():
        with backlog._lock:
            backlog.close()

    thread = threading.Thread(target=close_while_taking, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert backlog.take(0) is None
