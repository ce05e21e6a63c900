"""Recording a run in an object store, over a real S3 server that fails, and with processes that are killed."""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from object_store import BUCKET, record
from rolltrace.cli.app import cli
from rolltrace.errors import InputError, RunExistsError, StorageError
from rolltrace.query.run import open_run
from rolltrace.store import object_files, upload
from rolltrace.store.create import create_run
from rolltrace.store.object_files import ObjectFiles
from rolltrace.store.reader import RunReader
from rolltrace.trace.blob import Blob
from rolltrace.trace.message import Part
from waiting import until

pytestmark = pytest.mark.core

WRITER = """
import sys, rolltrace
with rolltrace.create_run(sys.argv[1], **({"join": True, "continues": ()} if sys.argv[2] == "join" else {})) as run:
    print(run.session, flush=True)
    for index in range(int(sys.argv[3])):
        with run.rollout(env="sums", task="t", group=sys.argv[4], index=index) as one:
            one.step(prompt=[{"role": "user", "content": "1 + 1? " * 100}], response="2", reward=1.0)
        if index % 5 == 4:
            assert run.flush() or sys.argv[2] == "join"
            print(one.id, flush=True)
"""


@pytest.fixture
def quick_retries(monkeypatch):
    """Failures are not retried for long."""
    monkeypatch.setattr(object_files, "_RETRIES", {**object_files._RETRIES, "max_retries": 0})
    monkeypatch.setattr(upload, "RETRY_SECONDS", 0.0)
    object_files.forget_connections()


def add(run, group: str, index: int = 0, words: int = 3) -> str:
    """Records one rollout."""
    with run.rollout(env="sums", task="t", group=group, index=index) as one:
        one.step(prompt=[{"role": "user", "content": "word " * words}], response="2", reward=1.0)
    return one.id


def stored_ids(address: str) -> list[str]:
    """The ids of all lines in the store, in which `check` finds nothing wrong."""
    with open_run(address) as run:
        ids = [row[0] for row in run.sql("select id from every_rollout").fetchall()]
        assert run.problems == ()
    return ids


def spooled(user_cache) -> list[str]:
    """The files that wait in the spool."""
    return [path.name for path in (user_cache / "rolltrace" / "spool").rglob("*.jsonl*")]


def test_a_run_is_recorded_at_an_address(store, tmp_path, user_cache):
    """A run at an address has the same files as one in a directory; it is not created twice, and can be joined."""
    address = f"s3://{BUCKET}/made/one"
    ids = record(address, 10)
    assert CliRunner().invoke(cli, ["check", address]).exit_code == 0
    with pytest.raises(RunExistsError, match=f"Expected no run at {address}, got one"):
        create_run(address)
    with pytest.raises(StorageError, match="Cannot write a run at s3://other-bucket/x: there is no bucket"):
        create_run("s3://other-bucket/x")
    ids += record(address, 5, join=True, continues=())
    assert sorted(stored_ids(address)) == sorted(ids)
    files = ObjectFiles(address)
    assert [len(files.list_files(folder)) for folder in ("", "rollouts", "ledger")] == [1, 2, 2]
    assert spooled(user_cache) == []
    assert not (tmp_path / "s3:").exists()


def test_flush_returns_after_the_upload(store):
    """Records before a flush can be read by others after it, and the ledger counts them."""
    address = f"s3://{BUCKET}/flushed/one"
    with create_run(address) as run:
        for count in range(1, 4):
            add(run, f"g{count}")
            assert run.flush()
            with open_run(address) as reader:
                assert reader.sql("select count(*) from rollouts").fetchall() == [(count,)]
                [ledger] = reader.ledgers().values()
                assert (ledger.recorded, ledger.not_uploaded, ledger.closed) == (count, 0, False)


def test_files_are_uploaded_in_the_order_in_which_they_were_written(tmp_path):
    """Files are ordered by number, also if a segment's number has more digits than earlier ones."""
    names = ["a-999999.jsonl", "a-999999.jsonl.zst", "a-1000000.jsonl", "a-1000001.jsonl.zst"]
    for name in (*names, ".a-5.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in upload._in_order(tmp_path)] == names


def test_after_a_failure_only_a_flush_uploads_for_a_while(store, monkeypatch):
    """After a failure the store is not tried every few seconds; the next flush uploads what waits."""
    monkeypatch.setattr(object_files, "_RETRIES", {**object_files._RETRIES, "max_retries": 0})
    monkeypatch.setattr(upload, "UPLOAD_SECONDS", 0.1)
    object_files.forget_connections()
    address = f"s3://{BUCKET}/paused/one"
    with create_run(address) as run:
        store.fault = lambda method, path, number: "500"
        first = add(run, "g0")
        assert not run.flush()
        store.fault = lambda method, path, number: ""
        store.requests.clear()
        second = add(run, "g1")
        time.sleep(2.5)
        assert [path for method, path, _ in store.requests if "/rollouts/" in path] == []
        assert run.flush()
        assert sorted(stored_ids(address)) == sorted([first, second])


def test_blobs_are_uploaded_before_the_lines_that_refer_to_them(store, user_cache):
    """A reader never misses a blob; a session uploads each once, and then deletes it from the spool."""
    address = f"s3://{BUCKET}/blobs/one"
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    with create_run(address) as run:
        for index in range(2):
            with run.rollout(env="sums", task="t", group="g", index=index) as one:
                one.step(prompt=[{"role": "user", "content": [picture]}], response="2", reward=1.0)
            assert run.flush()
    folders = [path.split("/")[4] for method, path, _ in store.requests if method == "PUT" and path.count("/") == 5]
    assert [folder for folder in folders if folder != "ledger"] == ["blobs", "rollouts", "rollouts"]
    [file] = ObjectFiles(address).list_files("blobs")
    assert RunReader(address).blob(file.name) == b"hello"
    assert not list((user_cache / "rolltrace" / "spool").rglob("blobs/*"))
    read = next(open_run(address).rollouts()).messages[0]  # its blob has a name and no data
    with create_run(address, join=True, continues=()) as run:
        for index, parts in enumerate([read.parts, (Part("image", blob=Blob(f"sha256-{'0' * 64}")),)]):
            with run.rollout(env="sums", task="t", group="again", index=index) as one:
                one.step(prompt=[replace(read, parts=parts)], response="2", reward=1.0)
    assert run.ledger.blobs_dropped == {"no data": 1}  # the other one is in the store


def test_uploads_cost_at_most_three_times_the_bytes(store):
    """A flush after each rollout uploads less than three times the recorded bytes, in few files."""
    address = f"s3://{BUCKET}/often/one"
    with create_run(address) as run:
        for index in range(120):
            add(run, f"g{index}", words=100)
            assert run.flush()
    puts = [size for method, path, size in store.requests if method == "PUT" and "/rollouts/" in path]
    files = ObjectFiles(address).list_files("rollouts")
    assert sum(puts) < 3 * sum(file.size for file in files)
    assert len(files) < 60
    assert len(stored_ids(address)) == 120


def test_large_segments_are_closed_and_compressed(store, user_cache):
    """A flush closes a segment of more than a megabyte, uploads it, compressed if it is new, and empties the spool."""
    address = f"s3://{BUCKET}/large/one"
    with create_run(address) as run:
        add(run, "small")
        assert run.flush()
        for number in range(2):
            for index in range(5):
                add(run, f"g{number}", index, words=60_000)
            assert run.flush()
            assert [name for name in spooled(user_cache) if name != f"{run.session}.jsonl"] == []
        add(run, "last")
    names = [file.name for file in ObjectFiles(address).list_files("rollouts")]
    assert [name.partition(".")[2] for name in names] == ["jsonl", "jsonl.zst", "jsonl"]
    assert len(stored_ids(address)) == 12


def test_an_outage_is_counted_and_overcome(store, user_cache, quick_retries):
    """During an outage, lines wait in the spool and the ledger counts them; later they are uploaded once."""
    address = f"s3://{BUCKET}/outage/one"
    with create_run(address) as run:
        first = add(run, "g0")
        assert run.flush()
        store.fault = lambda method, path, number: "500" if "/rollouts/" in path else ""
        second = add(run, "g1")
        assert not run.flush()
        [ledger] = open_run(address).ledgers().values()
        assert (ledger.recorded, ledger.not_uploaded) == (2, 1)
        assert ledger.sync_failed
        assert spooled(user_cache)
        store.fault = lambda method, path, number: ""
        assert run.flush()
    assert stored_ids(address) == [first, second]


def test_a_spool_that_is_deleted_is_recreated(store, user_cache, monkeypatch):
    """Lines that waited there count as not uploaded, and later ones are uploaded."""
    monkeypatch.setattr(upload, "UPLOAD_SECONDS", 60.0)
    address = f"s3://{BUCKET}/deleted/spool"
    with create_run(address) as run:
        first = add(run, "first")
        assert run.flush()
        shutil.rmtree(user_cache / "rolltrace" / "spool")
        second = add(run, "second")
        assert run.flush()
        assert not run.ledger.sync_failed  # nothing waited
        add(run, "lost")
        until(lambda: run.ledger.recorded == 3)
        shutil.rmtree(user_cache / "rolltrace" / "spool")
        assert not run.flush()
        third = add(run, "third")
    assert (run.ledger.dropped, set(run.ledger.sync_failed)) == ({}, {"ENOENT"})
    [ledger] = RunReader(address).ledgers().values()
    assert (ledger.recorded, ledger.not_uploaded) == (4, 1)
    with open_run(address) as reading:
        assert {row[0] for row in reading.sql("select id from every_rollout")} == {first, second, third}
    assert spooled(user_cache) == []


def test_a_full_spool_drops_and_counts(store, quick_retries, monkeypatch):
    """During an outage the spool is bounded; what does not fit is dropped and counted."""
    address = f"s3://{BUCKET}/bounded/one"
    with create_run(address) as run:
        store.fault = lambda method, path, number: "500"
        monkeypatch.setattr(upload, "SPOOL_BYTES", 5_000)
        for index in range(10):
            add(run, f"g{index}", words=100)
            run.flush()
        assert run.ledger.dropped["spool full"] + run.ledger.recorded == 10
        assert run.ledger.recorded > 0
        store.fault = lambda method, path, number: ""
    assert len(stored_ids(address)) == run.ledger.recorded


def test_what_close_could_not_upload_is_uploaded_by_the_next_session(store, user_cache, quick_retries):
    """A run that is closed during an outage leaves its spool, which the next session uploads."""
    address = f"s3://{BUCKET}/left/one"
    with create_run(address) as run:
        store.fault = lambda method, path, number: "500"
        ids = [add(run, "g0")]
    assert spooled(user_cache)
    store.fault = lambda method, path, number: ""
    ids += record(address, 1, join=True, continues=())
    assert sorted(stored_ids(address)) == sorted(ids)
    assert spooled(user_cache) == []


@pytest.mark.parametrize("fault", ["500", "lost", "after", "partial", "slow"])
def test_writers_and_readers_with_faults(store, fault):
    """Several processes write while others read and the network fails: every rollout is there once, and counted."""
    address = f"s3://{BUCKET}/busy/{fault}"
    create_run(address).close()
    store.fault = lambda method, path, number: fault if number % 4 == 1 else ""
    command = [sys.executable, "-c", WRITER, address, "join", "40"]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    stop, seen = threading.Event(), []

    def read() -> None:
        with open_run(address) as run:
            while not stop.is_set():
                seen.append(run.sql("select count(*) from every_rollout").fetchall()[0][0])

    reader = threading.Thread(target=read)
    reader.start()
    for writer in writers:
        writer.communicate(timeout=120)
    stop.set()
    reader.join()
    store.fault = lambda method, path, number: ""
    object_files.forget_connections()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == sorted(seen)
    assert Counter(Counter(stored_ids(address)).values()) == {1: 80}
    with open_run(address) as run:
        ledgers = list(run.ledgers().values())
    assert sum(ledger.recorded for ledger in ledgers) == 80
    assert all(ledger.is_balanced and ledger.closed and not ledger.not_uploaded for ledger in ledgers)


@pytest.mark.parametrize("put", range(2, 5))
def test_a_writer_is_killed_between_upload_and_delete(store, user_cache, put):
    """A writer that is killed after an upload loses nothing that was flushed, and nothing is there twice."""
    address = f"s3://{BUCKET}/killed/{put}"
    command = [sys.executable, "-c", WRITER, address, "new", "100", "g"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        numbers = itertools.count(1)

        def kill(path: str) -> None:
            if "/rollouts/" in path and next(numbers) == put:
                os.kill(writer.pid, signal.SIGKILL)

        store.on_stored = kill
        session, *flushed = writer.communicate(timeout=60)[0].split()
    assert writer.returncode == -signal.SIGKILL
    assert len(flushed) == put - 1
    assert spooled(user_cache)
    create_run(address, join=True, continues=()).close()
    ids = Counter(stored_ids(address))
    assert set(ids.values()) == {1}
    assert set(flushed) <= ids.keys()
    with open_run(address) as run:
        ledger = run.ledgers()[session]
        assert (ledger.recorded, ledger.is_balanced, ledger.closed) == (len(ids), True, False)
    assert spooled(user_cache) == []


def test_leftovers_are_uploaded_as_their_session_would_have_done(store, user_cache):
    """A segment that was being compressed is uploaded once, and of a ledger the last line that is whole."""
    spool = user_cache / "rolltrace" / "spool" / "run-s"
    files = {
        "rollouts": {"s-000000.jsonl": b"a\n", "s-000000.jsonl.zst": b"packed", "s-000001.jsonl": b"b\n"},
        "ledger": {"s.jsonl": b'{"first":1}\n{"second":2}\n{"torn'},
        "scores": {},
        "blobs": {},
    }
    for folder, contents in files.items():
        (spool / folder).mkdir(parents=True)
        for name, data in contents.items():
            (spool / folder / name).write_bytes(data)
    (spool / "lock").touch()
    objects = ObjectFiles(f"s3://{BUCKET}/left/over")
    upload.upload_leftovers(objects, "run")
    assert [file.name for file in objects.list_files("rollouts")] == ["s-000000.jsonl.zst", "s-000001.jsonl"]
    assert objects.read("ledger/s.jsonl", 0, 100) == b'{"second":2}\n'
    assert not spool.exists()


def test_an_interrupted_run_is_resumed(store):
    """`rolltrace run --resume` completes a run at an address; rollouts that were not uploaded are played again."""
    address = f"s3://{BUCKET}/resumed/one"
    words = ["run", "arithmetic", "--groups", "4", "--iterations", "3", "--out", address]
    with subprocess.Popen([sys.executable, "-m", "rolltrace", *words], stderr=subprocess.PIPE) as process:
        store.on_stored = lambda path: os.kill(process.pid, signal.SIGKILL) if "/rollouts/" in path else None
        process.communicate(timeout=60)
    store.on_stored = lambda path: None
    result = CliRunner().invoke(cli, ["run", "--resume", address, "--force", "--json"])
    assert result.exit_code == 0, result.output
    [summary] = CliRunner().invoke(cli, ["summary", address, "--json"]).stdout.splitlines()
    assert json.loads(summary)["rollouts"] == 48


def _record_in_child(run) -> None:
    add(run, "child")
    run.close()


def test_a_forked_process_leaves_its_lines_to_the_parent(store):
    """A forked process cannot upload; its lines are uploaded when the parent closes the run."""
    address = f"s3://{BUCKET}/forked/one"
    with create_run(address) as run:
        add(run, "parent")
        run.flush()
        child = multiprocessing.get_context("fork").Process(target=_record_in_child, args=(run,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
    assert len(stored_ids(address)) == 2


def test_late_uploads_of_a_dead_machine_do_not_count(store, user_cache, tmp_path, quick_retries, monkeypatch):
    """Rollouts that were resumed elsewhere still count after the first machine uploads its own late."""
    address = f"s3://{BUCKET}/machines/one"
    with create_run(address) as run:
        store.fault = lambda method, path, number: "500"
        first = add(run, "g0")
    store.fault = lambda method, path, number: ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sessions = RunReader(address).ledgers().keys()
    with create_run(address, join=True, continues=sessions) as resumed:
        second = add(resumed, "g0")
    assert stored_ids(address) == [second]
    monkeypatch.setenv("XDG_CACHE_HOME", str(user_cache))
    create_run(address, join=True, continues=()).close()
    assert sorted(stored_ids(address)) == sorted([first, second])
    with open_run(address) as reader:
        assert reader.sql("select id, collides from rollouts").fetchall() == [(second, False)]


def test_a_session_whose_first_ledger_cannot_be_uploaded_does_not_begin(store, quick_retries):
    """A session without a ledger in the store could not be continued, so its rollouts would collide with later ones."""
    address = f"s3://{BUCKET}/unknown/one"
    store.fault = lambda method, path, number: "500" if "/ledger/" in path else ""
    with pytest.raises(StorageError, match=f"Cannot write a run at {address}: its ledger cannot be uploaded"):
        create_run(address)
    store.fault = lambda method, path, number: ""
    record(address, 2, join=True, continues=())
    assert len(stored_ids(address)) == 2
    with create_run(f"{address}-off", trace="off") as run:
        add(run, "g0")
    assert ObjectFiles(f"{address}-off").list_files("ledger") == []


def test_a_ledger_at_an_address_is_not_followed(store):
    """Only the last line of a ledger is stored, so following it is refused."""
    address = f"s3://{BUCKET}/followed/one"
    record(address, 2)
    with open_run(address) as run, pytest.raises(InputError, match="`ledgers\\(\\)` returns it"):
        run.follow("ledger")
