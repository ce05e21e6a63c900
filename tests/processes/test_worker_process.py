import os
import signal
import sys
import time

import pytest

from rolltrace.errors import EnvError, InputError, WorkerError
from rolltrace.processes import worker_process
from rolltrace.processes.pool import ProcessPool
from rolltrace.processes.worker_process import ProcessSettings
from waiting import is_running

POOL = ProcessPool()

# A worker imports the function that it calls and cannot import a test, so it is given `eval`.
FOREVER = "any(False for _ in iter(int, 1))"
PROCESS = "__import__('os').getpid()"
REPLIES = "__import__('sys')._getframe(3).f_locals['replies']"
"""The pipe to the caller, from inside a worker."""


def evaluated(text, seconds=5.0, **options):
    return POOL.run_sync(eval, text, cpu_seconds=seconds, **options)


def test_a_value_comes_back_as_json_has_it():
    """JSON values come back as they are; any other value comes back as its text."""
    assert evaluated("[1.5, None, {'a': (1, 2)}, '\\ud800\\x00', {1}]") == [
        1.5, None, {"a": [1, 2]}, "\ud800\x00", "{1}",
    ]  # fmt: skip
    assert evaluated(PROCESS) != os.getpid()


def test_bytes_come_back_as_bytes():
    """Bytes are returned unencoded, whatever they begin with."""
    assert [evaluated(text) for text in ("b'=\\xff'", "b''", "b'{}'")] == [b"=\xff", b"", b"{}"]


def test_a_call_may_have_a_limit_by_the_clock_alone_or_none():
    """Waiting uses no CPU seconds, so `wall_seconds` ends it; a call may also have no limit."""
    with pytest.raises(WorkerError, match=r"^It took more than 0.1 seconds, and was stopped\.$") as caught:
        POOL.run_sync(time.sleep, 3600, wall_seconds=0.1)
    assert caught.value.timed_out
    assert POOL.run_sync(abs, -3) == 3


def test_settings_limit_a_process(tmp_path, monkeypatch):
    """Memory and reply size have the pool's limits; the process's temporary folder is deleted with it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    pool = ProcessPool(ProcessSettings(memory_bytes=2**28, reply_bytes=1000, private_temp_folder=True), max_processes=1)
    folder = pool.run_sync(eval, "__import__('os').environ['TMPDIR']")
    assert [folder] == [str(path) for path in tmp_path.iterdir()]
    with pytest.raises(WorkerError, match=r"^MemoryError"):
        pool.run_sync(eval, "len(bytearray(2**29))")
    with pytest.raises(WorkerError, match=r"^Expected a reply of at most 1000 bytes, got 2013\.$"):
        pool.run_sync(eval, "'x' * 2000")
    pool.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "^ZeroDivisionError: division by zero$"),
        ("exit(3)", "^SystemExit: 3$"),
        ("len(bytearray(2**33))", "^MemoryError"),
        ("__import__('os')._exit(3)", "^The worker process ended with code 3"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "^The worker process ended with code -9"),
        ("'x' * 3000 + 1", "^TypeError"),
    ],
)
def test_whatever_goes_wrong_is_a_worker_error(text, message):
    """Raising, exiting, running out of memory and dying all become a WorkerError, and the next call is answered."""
    with pytest.raises(WorkerError, match=message):
        evaluated(text)
    assert evaluated("6 * 7") == 42


def test_an_input_error_keeps_its_type():
    """An InputError that a worker raises stays an InputError."""
    with pytest.raises(InputError, match=r"^no such thing$"):
        evaluated("(_ for _ in ()).throw(__import__('rolltrace.errors').errors.InputError('no such thing'))")


def test_work_that_does_not_end_is_ended():
    """Computing or waiting for too long ends the process and not the caller; another process takes its place."""
    POOL.stop()
    before = evaluated(PROCESS)
    with pytest.raises(WorkerError, match=r"^It took more than 0.3 seconds, and was stopped\.$"):
        evaluated(FOREVER, seconds=0.3)
    assert not is_running(before)
    with pytest.raises(WorkerError, match=r"^It took more than 0.1 seconds, and was stopped\.$"):
        POOL.run_sync(time.sleep, 3600, cpu_seconds=0.1)
    assert evaluated(PROCESS) != before


def test_printed_text_cannot_forge_a_reply():
    """Standard output and input are not the pipes to the caller."""
    assert evaluated("print('{}' * 100) or __import__('os').write(1, b'forged') or input") is not None
    assert evaluated("6 * 7") == 42
    with pytest.raises(WorkerError, match="EOFError"):
        evaluated("input()")


def test_a_worker_that_cannot_be_prepared_runs_nothing(tmp_path):
    """A failed preparation is an EnvError, because the input is not at fault, and the call is not run."""
    begun = tmp_path / "begun"
    with pytest.raises(EnvError, match="could not be prepared: SystemExit"):
        evaluated(f"__import__('pathlib').Path({str(begun)!r}).touch()", prepare=sys.exit)
    assert evaluated("6 * 7") == 42
    assert not begun.exists()


def test_hashes_are_the_same_in_every_worker():
    """Hash seeds are fixed, so that the order of a set does not depend on the process."""
    first = evaluated("hash('text')")
    POOL.stop()
    assert evaluated("hash('text')") == first


def test_a_long_request_arrives_whole():
    """A request may be longer than a pipe's buffer."""
    assert POOL.run_sync(len, "x" * 5_000_000, cpu_seconds=5) == 5_000_000


def test_a_worker_that_reads_no_request_is_ended(monkeypatch):
    """Sending a request has a time limit, so a worker that does not read it is ended."""
    POOL.stop()
    process = evaluated(PROCESS)
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(worker_process, "PREPARE_SECONDS", 0.2)
    with pytest.raises(EnvError, match=r"did not start\. It took more than 0.2 seconds, and was stopped\.$"):
        POOL.run_sync(len, "x" * 5_000_000, cpu_seconds=5)
    assert not is_running(process)


def test_a_reply_that_is_too_long_is_not_read():
    """A reply has a largest size; a worker that exceeds it is ended."""
    assert len(evaluated("'x' * 10_000_000")) == 10_000_000
    POOL.stop()
    before = evaluated(PROCESS)
    with pytest.raises(WorkerError, match=r"^Expected a reply of at most 16777216 bytes, got 20000013\.$"):
        evaluated("'x' * 20_000_000")
    assert not is_running(before)
    assert evaluated("6 * 7") == 42


@pytest.mark.parametrize("reply", [b"forged", b"[" * 100_000])
def test_a_reply_that_is_not_json_ends_the_worker(reply):
    """Code that writes to the pipe can neither break the caller nor forge the reply of the next call."""
    frame = f"({len(reply)}).to_bytes(8, 'big') + {reply[:1]!r} * {len(reply) - 1} + b'x'"
    with pytest.raises(WorkerError, match=r"^Expected a reply in JSON, got"):
        evaluated(f"{REPLIES}.write({frame})")
    assert evaluated("6 * 7") == 42


def test_a_worker_that_closes_the_pipe_is_ended(monkeypatch):
    """A worker that closes its pipe would never answer, so it is ended."""
    monkeypatch.setattr(worker_process, "EXIT_SECONDS", 0.1)
    with pytest.raises(WorkerError, match=r"^The worker process closed its pipe\.$"):
        evaluated(f"{REPLIES}.close() or __import__('time').sleep(3600)")
    assert evaluated("6 * 7") == 42


def test_a_child_of_a_worker_does_not_hold_up_the_caller():
    """The caller does not wait for a child that keeps the pipe open after the worker has ended."""
    with pytest.raises(WorkerError, match=r"^It took more than 0.1 seconds, and was stopped\.$"):
        evaluated("__import__('os').fork() and __import__('os')._exit(3) or __import__('time').sleep(3600)", 0.1)
    assert evaluated("6 * 7") == 42


def test_a_worker_gets_no_keys(monkeypatch):
    """A worker's environment has only the variables that it needs to start, and no secrets."""
    secrets = ["OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "ANYTHING_ELSE"]
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_TIME", "C")
    workers = ProcessPool()
    try:
        seen = workers.run_sync(eval, "dict(__import__('os').environ)", cpu_seconds=5)
    finally:
        workers.stop()
    assert "secret" not in seen.values()
    assert not set(secrets) & set(seen)
    assert (seen["PATH"], seen["LC_TIME"], seen["PYTHONHASHSEED"]) == (os.environ["PATH"], "C", "0")
