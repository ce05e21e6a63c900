"""Processes that fork and end in various ways: each has its own files, and everything handed in is kept."""

import _thread
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter

import pytest

from file_reads import open_descriptors
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from waiting import until

PROLOGUE = """
import gc, multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording

def play(run, name):
    with run.rollout(env="sums", task="t", group=name, index=0) as recorder:
        recorder.step("1 + 1?", "2", 1.0)

def fork(action):
    child = os.fork()
    if child == 0:
        action()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""


def run_script(tmp_path, body):
    """Runs a program from a file, so that its processes can import what it defines."""
    script = tmp_path / "program.py"
    script.write_text(PROLOGUE + "\n" + textwrap.dedent(body))
    said = tmp_path / "said"
    with said.open("wb") as file:
        command = [sys.executable, script, tmp_path / "run"]
        program = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        status = program.wait(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)  # a forked process that hangs too
        program.wait()
        pytest.fail(f"the program hangs: {said.read_text()}")
    assert status == 0, said.read_text()


def groups(tmp_path):
    """The groups of the rollouts that can be read, by session."""
    reader = RunReader(tmp_path / "run")
    sessions = {}
    for rollout in reader.rollouts():
        sessions.setdefault(rollout.session, []).append(rollout.group)
    assert reader.read_errors == ()
    assert all(ledger.is_balanced for ledger in reader.ledgers().values())
    return sorted(sessions.values())


def test_child_has_its_own_session(tmp_path):
    """A forked child writes its own files, and its parent continues with its own."""
    run_script(
        tmp_path,
        """
        run = create_run(sys.argv[1])
        play(run, "before")
        assert run.flush()
        fork(lambda: play(run, "child"))
        play(run, "after")
        run.close()
        """,
    )
    assert groups(tmp_path) == [["before", "after"], ["child"]]
    assert all(ledger.closed for ledger in RunReader(tmp_path / "run").ledgers().values())


def test_child_does_not_write_what_its_parent_has_queued(tmp_path):
    """Lines in the parent's queue at the fork are written once, by the parent."""
    run_script(
        tmp_path,
        """
        real, goes_on, hangs = os.write, threading.Event(), threading.Event()

        def hang(descriptor, data):
            if data[:1] == b"{" and not goes_on.is_set():
                hangs.set()
                goes_on.wait()
            return real(descriptor, data)

        run = create_run(sys.argv[1])
        os.write = hang
        play(run, "first")
        hangs.wait()
        for number in range(5):
            play(run, f"queued {number}")

        def child():
            goes_on.set()
            play(run, "child")
            assert run.flush()

        fork(child)
        goes_on.set()
        assert run.flush()
        run.close()
        """,
    )
    assert groups(tmp_path) == [["child"], ["first", *(f"queued {number}" for number in range(5))]]


@pytest.mark.parametrize("ending", ["pass", "del run; gc.collect()", "run.close()", "run.flush() and os._exit(0)"])
def test_child_that_never_writes_leaves_nothing(tmp_path, ending):
    """A child that does not record ends normally, and has a session only if it flushes."""
    run_script(
        tmp_path,
        f"""
        run = create_run(sys.argv[1])
        play(run, "parent")

        def child():
            global run
            {ending}

        fork(child)
        """,
    )
    assert groups(tmp_path) == [["parent"]]
    assert len(list((tmp_path / "run/ledger").iterdir())) == (2 if "flush" in ending else 1)


def test_grandchildren(tmp_path):
    """A child of a child is a third session."""
    run_script(
        tmp_path,
        """
        run = create_run(sys.argv[1])
        play(run, "parent")

        def child():
            play(run, "child")
            fork(lambda: play(run, "grandchild"))
            play(run, "child again")

        fork(child)
        """,
    )
    assert groups(tmp_path) == [["child", "child again"], ["grandchild"], ["parent"]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path, method):
    """A writer that is passed to another process, by any start method, is a session there, and needs no closing."""
    run_script(
        tmp_path,
        f"""
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            run = create_run(sys.argv[1])
            play(run, "parent")
            processes = [context.Process(target=play, args=(run, f"child {{number}}")) for number in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
                assert process.exitcode == 0
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                pool.submit(play, run, "pool").result()
        """,
    )
    assert groups(tmp_path) == [["child 0"], ["child 1"], ["parent"], ["pool"]]


POOLS = {
    "executor": """
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                for future in [pool.submit(task, run, str(number)) for number in range(40)]:
                    future.result()
    """,
    "pool": """
            with context.Pool(2) as pool:  # which ends its processes with SIGTERM
                pool.starmap(task, [(run, str(number)) for number in range(40)], chunksize=1)
    """,
    "threads": """
            with ProcessPoolExecutor(2, mp_context=context) as pool:
                for future in [pool.submit(threaded, pickle.dumps(run), number) for number in range(10)]:
                    future.result()
    """,
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("closes", [False, True])
def test_pool_is_one_session_per_process(tmp_path, method, kind, closes):
    """A writer that is pickled into tasks is one session per process, also if tasks close it or run in threads."""
    run_script(
        tmp_path,
        f"""
        import pickle

        def task(run, name):
            play(run, name)
            {"run.close()" if closes else "run.flush()"}

        def threaded(pickled, first):
            threads = [
                threading.Thread(target=lambda n=n: task(pickle.loads(pickled), f"{{first}} {{n}}")) for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            run = create_run(sys.argv[1])
            play(run, "parent")
{POOLS[kind]}
        """,
    )
    sessions = groups(tmp_path)
    assert "parent" in {name for session in sessions for name in session}
    assert sum(map(len, sessions)) == 41
    assert len(sessions) <= 3
    ledgers = RunReader(tmp_path / "run").ledgers().values()
    assert len(ledgers) == len(sessions)
    assert all(ledger.closed for ledger in ledgers)


@pytest.mark.parametrize(
    "ending", ["pass", "sys.exit(0)", "del run", "del run; gc.collect()", "run.flush()", "run.close(); run.close()"]
)
def test_exit_without_close(tmp_path, ending):
    """A program that exits without closing keeps everything handed in, also segments that are being compressed."""
    run_script(
        tmp_path,
        f"""
        run = create_run(sys.argv[1], trace=Recording(segment_bytes=3000))
        for number in range(200):
            play(run, str(number))
        {ending}
        """,
    )
    assert groups(tmp_path) == [[str(number) for number in range(200)]]


def test_exit_of_a_program_whose_writer_is_in_a_thread(tmp_path):
    """Lines from a thread that outlives the main thread are kept."""
    run_script(
        tmp_path,
        """
        run = create_run(sys.argv[1])
        over = threading.main_thread()

        def late():
            over.join()
            play(run, "late")

        threading.Thread(target=late).start()
        """,
    )
    assert groups(tmp_path) == [["late"]]


def play(run, name):
    with run.rollout(env="sums", task="t", group=name, index=0) as recorder:
        recorder.step("1 + 1?", "2", 1.0)


def test_garbage_collected_writer_ends_its_thread(tmp_path):
    """A garbage-collected writer writes its queue and closes its files; its ledger says `closed: false`."""
    run = create_run(tmp_path / "run")
    play(run, "kept")
    run.flush()
    assert open_descriptors(tmp_path)
    play(run, "late")
    cycle = [run]
    cycle.append(cycle)
    del run, cycle
    gc.collect()
    until(lambda: not open_descriptors(tmp_path))
    assert groups(tmp_path) == [["kept", "late"]]
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.recorded, ledger.closed) == (2, False)


def test_pickled_writer_is_another_session(tmp_path):
    """A pickled copy writes the same run with the same settings, as a session of its own."""
    with create_run(tmp_path / "run", trace=Recording(level="numbers")) as run:
        play(run, "original")
        with pickle.loads(pickle.dumps(run)) as copy:
            play(copy, "copy")
            assert pickle.loads(pickle.dumps(run)) is copy
            assert (copy.run, copy.recording) == (run.run, run.recording)
    assert groups(tmp_path) == [["copy"], ["original"]]
    copy.close_always()


def test_use_after_close(tmp_path):
    """After closing, nothing raises, late records are counted, and `flush` returns False."""
    run = create_run(tmp_path / "run")
    play(run, "kept")
    run.close()
    assert run.flush() is True
    play(run, "late")
    run.score("kept", "advantage", 1.0)
    assert run.flush() is False
    run.close()
    assert groups(tmp_path) == [["kept"]]
    assert run.ledger.dropped == run.ledger.scores_dropped == {"closed": 1}
    assert run.ledger.is_balanced


def test_flush_waits_for_a_concurrent_close(tmp_path, monkeypatch):
    """A flush during a close in another thread returns when everything is written."""
    closing, goes_on, fsync = threading.Event(), threading.Event(), os.fsync
    run = create_run(tmp_path / "run")
    play(run, "kept")
    run.flush()

    def sync_slowly(descriptor):
        closing.set()
        goes_on.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_slowly)
    closer = threading.Thread(target=run.close)
    closer.start()
    closing.wait()
    flushed = threading.Thread(target=run.flush)
    flushed.start()
    flushed.join(0.05)
    waited = flushed.is_alive()
    goes_on.set()
    assert waited
    flushed.join()
    closer.join()


def test_flush_close_and_put_from_many_threads(tmp_path):
    """Whatever threads do at once, each accepted line is written once, and each refused one is counted."""
    run = create_run(tmp_path / "run", trace=Recording(segment_bytes=5000))
    start = threading.Barrier(9)
    flushed = Counter()

    def work(name):
        start.wait()
        for number in range(60):
            play(run, f"{name} {number}")
            flushed[run.flush()] += 1

    def close():
        start.wait()
        while run.ledger.recorded < 100:
            run.flush()
        run.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    threads.append(threading.Thread(target=close))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [names] = groups(tmp_path)
    assert len(set(names)) == len(names) == run.ledger.recorded
    assert run.ledger.recorded + run.ledger.dropped.get("closed", 0) == run.ledger.dispatched == 480
    assert flushed[True] >= run.ledger.recorded // 2


def test_worker_that_is_started_twice(tmp_path, monkeypatch):
    """A signal handler may start the thread that the interrupted caller is starting: only one of them works."""
    start, ended = _thread.start_new_thread, []

    def start_twice(action, arguments):
        def note():
            action(*arguments)
            ended.append(None)

        start(note, ())
        return start(note, ())

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", start_twice)
        run = create_run(tmp_path / "run")
    until(lambda: len(ended) == 1)
    for number in range(50):
        play(run, str(number))
    run.close()
    assert groups(tmp_path) == [[str(number) for number in range(50)]]
    assert len(list((tmp_path / "run/ledger").iterdir())) == 1
