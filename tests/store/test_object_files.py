"""Runs in an object store, over a real S3 server: reading them, and errors."""

import json
import re
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from object_store import BUCKET, record
from rolltrace.cli.app import cli
from rolltrace.errors import InputError, RunNotFoundError, StorageError
from rolltrace.query.compact import compact
from rolltrace.query.list_numbers import stamp_files
from rolltrace.query.run import open_run
from rolltrace.store import object_files
from rolltrace.store.ledger import encode_ledger
from rolltrace.store.object_address import ObjectAddress, as_path, is_address
from rolltrace.store.object_files import ObjectFiles
from rolltrace.store.reader import RunReader
from rolltrace.viewer.open_runs import RunFolder
from viewing import viewing

pytestmark = pytest.mark.core


def invoke(*words: str) -> str:
    """The standard output of a command that succeeds."""
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_addresses_are_paths():
    """An address keeps its form when it is joined or read from a path, and ignores the current directory."""
    run = as_path(Path("s3://bucket/runs")) / "one"
    assert (str(run), run.name, str(run.resolve()), run.bucket, run.key) == (
        "s3://bucket/runs/one", "one", "s3://bucket/runs/one", "s3://bucket", "runs/one",
    )  # fmt: skip
    assert isinstance(run, ObjectAddress)
    assert not any(map(is_address, ("runs/s3:/x", "s3:", "s3x://bucket", Path("/s3:/bucket"))))


@pytest.mark.parametrize(
    "url", ["s3:///runs/x", "S3://bucket/run", Path("file:///runs/x"), "gcs://bucket/run", "s3://"]
)
def test_invalid_addresses_are_refused(url):
    """An address without a bucket or with an unknown scheme is refused, and does not become a directory named `s3:`."""
    with pytest.raises(InputError, match="Expected a path, or an address such as s3://bucket/run"):
        as_path(url)


def test_without_the_extra_a_command_says_what_to_install(monkeypatch):
    """Without the package, the error is one line that says what to install."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    object_files.forget_connections()
    for words in (["summary"], ["query"], ["show"], ["ls"], ["check"], ["view"], ["run", "arithmetic", "--out"]):
        result = CliRunner().invoke(cli, [*words, "s3://bucket/run", *(["select 1"] if words == ["query"] else [])])
        assert result.exit_code == 2, result.output
        assert result.stderr.count("\n") == 1
        assert "pip install 'rolltrace[s3]'" in result.stderr
    object_files.forget_connections()


@pytest.mark.parametrize(
    "words",
    [
        ("query", "RUN", "select * exclude run from rollouts order by id", "--json"),
        ("summary", "RUN", "--json"),
        ("show", "RUN", "--json"),
        ("show", "RUN", "g0/1", "--json"),
        ("check", "RUN", "--json"),
        ("report", "RUN", "--json"),
        ("ls", "RUN", "--json"),
    ],
    ids=lambda words: words[0],
)
def test_commands_read_an_address(store, tmp_path, words):
    """A command gives the same output for an address as for a directory with the same files."""
    record(tmp_path / "one", 10)
    address = store.upload(tmp_path / "one", f"same/{words[0]}-{len(words)}/one")

    def answer(run: object) -> list[object]:
        lines = invoke(*(run if word == "RUN" else word for word in words)).splitlines()
        text = "\n".join(lines).replace(str(run), "RUN")
        for name in ("seconds", "bytes", "written_at"):
            text = re.sub(rf'"{name}": ?[^,}}]+', "", text)
        return text.splitlines()[words[0] == "report" :]  # its first line describes the file

    assert answer(address) == answer(tmp_path / "one")


def test_several_runs_are_one_and_a_folder_is_listed(store, tmp_path):
    """A folder of an object store is opened as all of its runs, and `ls` finds the runs below it."""
    for name in ("a", "b"):
        record(tmp_path / name, 4)
        store.upload(tmp_path / name, f"many/{name}")
    store.upload(tmp_path / "a", "many/below/c")
    [row] = invoke("query", f"s3://{BUCKET}/many", "select count(*) as n from rollouts", "--json").splitlines()
    assert json.loads(row) == {"n": 8}
    names = {json.loads(line)["name"] for line in invoke("ls", f"s3://{BUCKET}/many", "--json").splitlines()}
    assert names == {"a", "b", "below/c"}


def test_many_runs_are_listed_concurrently(store, tmp_path):
    """A statement over many runs lists each folder once, many at a time, and a pattern opens some of the runs."""
    for name in ("a-0", "a-1", "a-2", "b-0"):
        record(tmp_path / name, 4)
        store.upload(tmp_path / name, f"patterns/{name}")
    unanswered = []

    def fault(method, path, number):
        unanswered.append(sum(size == 0 for _, _, size in store.requests))
        return "slow"

    with open_run(f"s3://{BUCKET}/patterns/a-*") as runs:
        assert len(runs.paths) == 3
        store.requests.clear()
        store.fault = fault
        assert runs.sql("select count(distinct run), count(*) from rollouts").fetchall() == [(3, 12)]
    listings = [path for _, path, _ in store.requests if path == f"/{BUCKET}"]
    assert len(listings) == 6, "rollouts and scores of each"
    assert max(unanswered) > 1


def test_a_growing_run_is_followed(store, tmp_path, monkeypatch):
    """Files that are uploaded after a run was opened are read by the next statement, and change its revision."""
    monkeypatch.setattr(object_files, "LISTING_SECONDS", 0.0)
    record(tmp_path / "one", 3)
    address = store.upload(tmp_path / "one", "growing/one")
    folder = RunFolder(f"s3://{BUCKET}/growing")
    with open_run(address) as run:
        assert run.sql("select count(*) from rollouts").fetchall() == [(3,)]
        before = folder.find("one").stamp
        record(tmp_path / "one", 2, join=True, continues=())
        store.upload(tmp_path / "one", "growing/one")
        assert run.sql("select count(*) from every_rollout").fetchall() == [(5,)]
        folder._next_scan = 0.0
        assert folder.find("one").stamp.revision != before.revision


def test_one_rollout_costs_a_small_part_of_the_bytes(store, tmp_path):
    """A rollout of a run that was read before is read by range requests."""
    ids = record(tmp_path / "one", 400, text="long " * 4_000)
    address = store.upload(tmp_path / "one", "large/one")
    with open_run(address) as run:
        run.sql("select count(*) from rollouts").fetchall()
        store.requests.clear()
        assert [one.id for one in run.rollouts(where=f"id = '{ids[200]}'")] == [ids[200]]
    size = sum(path.stat().st_size for path in (tmp_path / "one" / "rollouts").iterdir())
    assert 0 < sum(count for _, _, count in store.requests) < size / 20


def test_a_file_that_is_read_through_costs_few_requests(store):
    """A read that follows the last one gets the next megabytes, too; a read elsewhere gets only its own bytes."""
    files, data = ObjectFiles(f"s3://{BUCKET}/long"), bytes(range(250)) * 400
    files.put("rollouts/s-000000.jsonl", data)
    store.requests.clear()
    file = files.open("rollouts/s-000000.jsonl")
    assert b"".join(file.read(start, 1_000) for start in range(0, 100_000, 1_000)) == data
    assert [method for method, *_ in store.requests] == ["HEAD", "GET", "GET"]
    assert file.read(10, 5) == data[10:15]
    assert store.requests[-1][2] < 1_000


def test_listings_are_reused(store, tmp_path):
    """Several calls within a short time list a folder once."""
    record(tmp_path / "one", 3)
    address = store.upload(tmp_path / "one", "listed/one")
    files = ObjectFiles(address)
    for _ in range(5):
        assert len(files.list_files("rollouts")) == 1
        assert files.size(f"rollouts/{files.list_files('rollouts')[0].name}") > 0
    assert len(store.requests) == 1


def test_a_ledger_that_was_replaced_since_the_listing_is_read(store, monkeypatch):
    """A ledger that was replaced is read whole, although the listing has another size."""
    monkeypatch.setattr(object_files, "LISTING_SECONDS", 60.0)
    address = f"s3://{BUCKET}/replaced/one"
    record(address, 3)
    monkeypatch.setattr(ObjectFiles, "_forget_listing", lambda self, name: None)  # as if another machine replaced it
    with open_run(address) as run:
        [ledger] = run.ledgers().values()
        files = ObjectFiles(address)
        [file] = files.list_files("ledger")
        for recorded in (3_000, 30):
            newer = msgspec.structs.replace(ledger, recorded=recorded, dispatched=recorded)
            files.put(f"ledger/{file.name}", encode_ledger(newer))
            assert RunReader(address).ledgers() == {ledger.session: newer}
        assert run.problems == ()


def test_an_object_of_the_same_size_and_second_is_another_one(store):
    """The time of an object has whole seconds, so its tag shows whether it was replaced."""
    files = ObjectFiles(f"s3://{BUCKET}/tags/one")
    entries = []
    for data in (b"one", b"two"):
        files.put("ledger/x", data)
        [entry] = files.list_files("ledger")
        entries.append((entry.tag, stamp_files(files.path).files))
    assert all(first != second for first, second in zip(*entries, strict=True))


@pytest.mark.parametrize("fault", ["500", "lost", "partial", "slow"])
def test_faults_of_the_network_change_no_answer(store, tmp_path, fault):
    """A server that fails every third request gives the same rows, because requests are retried."""
    record(tmp_path / "one", 20, text="words " * 2_000)
    address = store.upload(tmp_path / "one", f"faulty/{fault}")
    store.fault = lambda method, path, number: fault if number % 3 == 1 else ""
    with open_run(address) as run, open_run(tmp_path / "one") as local:
        sql = "select id, reward from rollouts order by id"
        assert run.sql(sql).fetchall() == local.sql(sql).fetchall()
        assert run.problems == ()
        assert len(list(run.rollouts())) == 20


def test_an_answer_that_breaks_off_is_requested_again(store, tmp_path):
    """Also that to a listing, which the client itself does not retry."""
    record(tmp_path / "one", 1)
    files = ObjectFiles(store.upload(tmp_path / "one", "broken/one"))
    names = [file.name for file in files.list_files("rollouts")]
    object_files.forget_connections()
    store.requests.clear()
    store.fault = lambda method, path, number: "partial" if number < 3 else ""
    assert [file.name for file in files.list_files("rollouts")] == names
    assert len(store.requests) == 4


@pytest.mark.parametrize("fault", ["500", "lost", "partial"])
def test_lines_that_the_store_could_not_give_are_read_later(store, tmp_path, monkeypatch, fault):
    """An outage in the middle of reading is a problem while it lasts, and not a loss."""
    monkeypatch.setattr(object_files, "_RETRIES", {**object_files._RETRIES, "max_retries": 1})
    object_files.forget_connections()
    record(tmp_path / "one", 8)
    address = store.upload(tmp_path / "one", f"interrupted/{fault}")
    with open_run(address) as run:
        store.fault = lambda method, path, number: fault if "/rollouts/" in path else ""
        for _ in range(2):
            assert run.sql("select count(*) from rollouts").fetchall() == [(0,)]
            assert any(problem.is_retryable for problem in run.problems)
        store.fault = lambda method, path, number: ""
        assert run.sql("select count(*) from rollouts").fetchall() == [(8,)]
        assert run.problems == ()


def test_errors_of_the_store_are_clear(store, tmp_path, monkeypatch):
    """A missing run, bucket or permission, and an unreachable server, each give one clear error soon."""
    with pytest.raises(RunNotFoundError, match=rf"Expected a run at s3://{BUCKET}/nothing, .* got nothing"):
        open_run(f"s3://{BUCKET}/nothing")
    with pytest.raises(StorageError, match="Cannot read s3://other-bucket/run: there is no bucket s3://other-bucket"):
        open_run("s3://other-bucket/run")
    record(tmp_path / "one", 1)
    address = store.upload(tmp_path / "one", "denied/one")
    store.fault = lambda method, path, number: "403"
    with pytest.raises(StorageError, match=f"Cannot read {address}: access is denied: check the credentials"):
        open_run(address)
    monkeypatch.setattr(object_files, "_RETRIES", {**object_files._RETRIES, "max_retries": 1})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    object_files.forget_connections()
    with pytest.raises(StorageError, match=f"Cannot read {address}: the server cannot be reached"):
        open_run(address)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    object_files.forget_connections()
    with pytest.raises(StorageError, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
        open_run(address)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    object_files.forget_connections()
    with pytest.raises(StorageError, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
        open_run(address)
    with pytest.raises(InputError, match=f"Expected a run in a directory, got {address}"):
        compact(address)


def test_a_forked_process_is_refused(store, tmp_path, monkeypatch):
    """The client would hang in a forked process, so its use there is refused."""
    monkeypatch.setattr(object_files, "_is_forked", True)
    with pytest.raises(StorageError, match="forked: start processes with `spawn`"):
        open_run(f"s3://{BUCKET}/any")


def test_the_viewer_serves_an_address(store, tmp_path):
    """`rolltrace view` lists the runs of an object store, and its worker processes run SQL over them."""
    record(tmp_path / "one", 4)
    store.upload(tmp_path / "one", "viewed/one")
    with viewing(f"s3://{BUCKET}/viewed") as viewer:

        def ask(path: str, body: bytes | None = None) -> dict[str, object]:
            headers = {"Authorization": f"Bearer {viewer.token}", "Content-Type": "application/json"}
            request = urllib.request.Request(f"{viewer.origin}{path}", data=body, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())

        assert [run["key"] for run in ask("/api/runs")["runs"]] == ["one"]
        answer = ask("/api/sql", json.dumps({"run": "one", "sql": "select count(*) from rollouts"}).encode())
        assert answer["rows"] == [[4]]
