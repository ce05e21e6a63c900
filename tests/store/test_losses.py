"""Losses are counted on disk: records after closing, and those that a full or slow disk could not take."""

import subprocess
import sys
import textwrap

from file_reads import open_descriptors
from rolltrace.store import disk_thread, disk_writer
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from waiting import until

PROLOGUE = """
import asyncio, atexit, gc, os, resource, signal, sys, threading
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording

def play(run, index=0, text="1 + 1?"):
    with run.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step(text, "2", 1.0)
"""


def run_program(tmp_path, body, seconds=240):
    """Runs a program on its own run; returns what it printed."""
    command = [sys.executable, "-c", PROLOGUE + textwrap.dedent(body), str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def play(run, index=0, text="1 + 1?"):
    """Records a rollout of one step."""
    with run.rollout(env="sums", task="t", group="g", index=index) as recorder:
        recorder.step(text, "2", 1.0)


def ledger_on_disk(path):
    """The one ledger of a run, asserted to add up and to match the number of recorded lines."""
    reader = RunReader(path)
    [ledger] = reader.ledgers().values()
    assert reader.read_errors == ()
    assert ledger.is_balanced
    assert ledger.recorded == len(list(reader.rollouts()))
    return ledger


# After closing


def test_threads_that_go_on_after_closing(tmp_path):
    """Rollouts that threads hand in after the run is closed are in the ledger on disk when the process has ended."""
    run_program(
        tmp_path,
        """
        closed = threading.Event()

        def work():
            for index in range(500):
                play(run, index)
            closed.wait()
            for index in range(500):
                play(run, index)

        with create_run(sys.argv[1]) as run:
            for _ in range(5):
                threading.Thread(target=work).start()
        closed.set()
        """,
    )
    ledger = ledger_on_disk(tmp_path / "run")
    assert ledger.closed
    assert ledger.dispatched == ledger.recorded + ledger.dropped["closed"] == 5000
    assert ledger.dropped["closed"] >= 2500


def test_process_that_ends_while_a_late_ledger_is_written(tmp_path):
    """A process waits for the ledger that counts losses after closing, also if the disk is slow."""
    run_program(
        tmp_path,
        """
        import time
        real, is_writing = os.write, threading.Event()

        def slow(descriptor, data):
            is_writing.set()
            time.sleep(1.5)
            return real(descriptor, data)

        run = create_run(sys.argv[1])
        run.close()
        os.write = slow
        play(run)
        assert is_writing.wait(30)
        """,
    )
    assert ledger_on_disk(tmp_path / "run").dropped == {"closed": 1}


def test_losses_after_closing_are_written_while_the_process_goes_on(tmp_path):
    """Losses after closing are soon in the ledger on disk without any further call, in the same file."""
    run = create_run(tmp_path / "run")
    play(run)
    run.close()
    closed_at = ledger_on_disk(tmp_path / "run").written_at
    for index in range(10):
        play(run, index)
    run.score("id", "advantage", 1.0)
    until(lambda: ledger_on_disk(tmp_path / "run").scores_dropped == {"closed": 1})
    assert ledger_on_disk(tmp_path / "run").dropped == {"closed": 10}
    play(run)
    assert run.flush() is False
    assert ledger_on_disk(tmp_path / "run").dropped == {"closed": 11}
    assert ledger_on_disk(tmp_path / "run").written_at == closed_at  # the session has not become longer
    assert len(list((tmp_path / "run/ledger").iterdir())) == 1
    assert open_descriptors(tmp_path) == []


def test_losses_at_exit_are_written(tmp_path):
    """Records of `atexit` handlers before the run is closed are written; those after it are counted."""
    run_program(
        tmp_path,
        """
        runs = []
        atexit.register(lambda: [play(runs[0], index) for index in range(20)])  # runs last
        runs.append(create_run(sys.argv[1]))
        atexit.register(lambda: [play(runs[0], index) for index in range(30)])  # runs first
        """,
    )
    ledger = ledger_on_disk(tmp_path / "run")
    assert (ledger.recorded, ledger.dropped, ledger.closed) == (30, {"closed": 20}, True)


def test_losses_of_a_child_are_its_own(tmp_path):
    """A process that was forked after closing does not touch its parent's ledger."""
    run_program(
        tmp_path,
        """
        run = create_run(sys.argv[1])
        play(run)
        run.close()
        child = os.fork()
        if child == 0:
            play(run)
            sys.exit()
        os.waitpid(child, 0)
        play(run)
        """,
    )
    parent, child = sorted(RunReader(tmp_path / "run").ledgers().values(), key=lambda ledger: -ledger.recorded)
    assert (parent.recorded, parent.dropped) == (1, {"closed": 1})
    assert (child.recorded, child.dropped, child.job) == (0, {"closed": 1}, parent.session)


# A full disk


def test_disk_that_is_full_from_the_start(tmp_path):
    """If not one rollout fits, the ledger on disk still counts them, in the space of its first line."""
    said, _ = run_program(
        tmp_path,
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run = create_run(sys.argv[1])
        run.flush()
        [ledger] = os.scandir(os.path.join(sys.argv[1], "ledger"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (ledger.stat().st_size + 60, resource.RLIM_INFINITY))
        for number in range(3):
            for index in range(100):
                play(run, index, "x" * 5000)
            print(run.flush())
        """,
    )
    assert said == "False\n" * 3
    ledger = ledger_on_disk(tmp_path / "run")
    assert (ledger.dispatched, ledger.dropped, ledger.closed) == (300, {"EFBIG": 300}, True)


def test_ledger_that_cannot_be_written_is_written_later(tmp_path):
    """If the ledger cannot be written at closing, one warning is logged, and it is written at exit."""
    create_run(tmp_path / "run").close()
    for file in (tmp_path / "run/ledger").iterdir():
        file.unlink()
    said, warned = run_program(
        tmp_path,
        """
        real = os.open

        def refuse(path, flags, *rest, **named):
            if flags & os.O_CREAT:
                raise OSError(28, "No space left on device")
            return real(path, flags, *rest, **named)

        os.open = refuse
        run = create_run(sys.argv[1], join=True)
        for index in range(5):
            play(run, index)
        run.close()
        run.close()
        print(os.listdir(os.path.join(sys.argv[1], "ledger")))
        os.open = real
        del run  # closing it at exit would write the ledger, too
        gc.collect()
        """,
    )
    assert said == "[]\n"
    [missing] = [line for line in warned.splitlines() if "Could not write the ledger" in line]
    assert "5 of 5 rollouts" in missing
    assert ledger_on_disk(tmp_path / "run").dropped == {"ENOSPC": 5}


# A slow disk


def test_slow_disk_does_not_stop_the_loop(tmp_path):
    """Callers wait for a slow disk within a bound; further lines are dropped and counted."""
    said, _ = run_program(
        tmp_path,
        """
        real, asked, may_write = os.write, threading.Semaphore(0), threading.Semaphore(0)

        def slow(descriptor, data):
            if data[:1] == b"{" and len(data) > 1000:
                may_write.acquire()
            return real(descriptor, data)

        from rolltrace.store import write_queue
        write_queue.BATCH_BYTES = 1
        wait, waits = write_queue.SignalSafeEvent.wait, 0

        def make_room(flag, seconds=None):  # whenever the loop waits for room, the disk takes one line
            global waits
            if threading.current_thread() is threading.main_thread() and not done:
                waits += 1
                may_write.release()
            return wait(flag, seconds)

        done = False
        run = create_run(sys.argv[1], trace=Recording(queue_bytes=50_000, queue_seconds=0.05))
        run.flush()
        os.write, write_queue.SignalSafeEvent.wait = slow, make_room
        for index in range(20_000):
            play(run, index, "x" * 5000)
            if run.ledger.dropped:
                break
        print(index, waits, run.ledger.dropped)
        done = True
        may_write.release(100_000)
        run.close()
        """,
    )
    index = int(said.split()[0])
    assert index < 19_999
    assert ledger_on_disk(tmp_path / "run").dropped["queue full"] == 1


def test_event_loop_is_never_blocked(tmp_path):
    """In a running event loop nothing waits for a disk that hangs, however long other callers may wait."""
    run_program(
        tmp_path,
        """
        real, goes_on = os.write, threading.Event()

        def hang(descriptor, data):
            if data[:1] == b"{" and len(data) > 1000:
                goes_on.wait()
            return real(descriptor, data)

        async def loop(run):
            for index in range(100):
                play(run, index, "x" * 5000)
                await asyncio.sleep(0)

        with create_run(sys.argv[1], trace=Recording(queue_bytes=50_000, queue_seconds=3600)) as run:
            os.write = hang
            asyncio.run(loop(run))
            goes_on.set()
        """,
    )
    ledger = ledger_on_disk(tmp_path / "run")
    assert ledger.dispatched == 100
    assert ledger.dropped["queue full"] >= 50


# An open session


def test_idle_session_writes_its_ledger(tmp_path, monkeypatch):
    """An open, idle session writes its ledger periodically, from the moment it is opened."""
    monkeypatch.setattr(disk_writer, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(disk_writer, "SYNC_SECONDS", 0.01)
    monkeypatch.setattr(disk_thread, "SYNC_SECONDS", 0.01)
    with create_run(tmp_path / "run") as run:
        path = tmp_path / f"run/ledger/{run.session}.jsonl"
        until(lambda: path.exists() and len(path.read_bytes().splitlines()) >= 4)
        before = ledger_on_disk(tmp_path / "run")
        until(lambda: ledger_on_disk(tmp_path / "run").written_at > before.written_at)
        assert not before.closed
    assert ledger_on_disk(tmp_path / "run").closed


def test_heartbeat_is_shorter_than_readers_expect():
    """Readers consider a session dead if its ledger is older than half a minute; it is written every ten seconds."""
    assert disk_writer.HEARTBEAT_SECONDS + disk_writer.SYNC_SECONDS <= 10
