"""Runs appear, grow, are damaged and disappear while they are served, under any name."""

import errno
import itertools
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import rolltrace
from answers import score, write
from asking import answer, ask, post
from batches import hold_back
from rolltrace.errors import RunNotFoundError, StorageError
from rolltrace.query import late_rewards, part_processes, run_listing, run_tables
from rolltrace.store.create import create_run
from rolltrace.store.run_files import LocalFile, LocalFiles
from rolltrace.viewer import open_runs, run_list
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import LruCache, OpenRuns
from viewing import viewing

pytestmark = pytest.mark.core


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenRuns]:
    """A library over an empty folder, which rescans it at every request."""
    monkeypatch.setattr(open_runs, "RESCAN_SECONDS", 0.0)
    (tmp_path / "runs").mkdir()
    library = OpenRuns(tmp_path / "runs")
    yield library
    library.close()


@pytest.fixture
def ask_it(library: OpenRuns) -> Any:
    """Makes an API request to it."""
    return asker(library)


def asker(library: OpenRuns) -> Any:
    """A function that makes API requests to a library."""
    questions = Api(library)

    def ask(question: str, **parameters: Any) -> Any:
        pairs = [(name, str(value)) for name, value in parameters.items()]
        return json.loads(questions.handlers[question](RequestParameters(pairs)))

    return ask


def make(path: Path, count: int = 3, **fields: Any) -> list[str]:
    """A run of some rollouts."""
    with create_run(path) as writer:
        return [write(writer, index=index, **fields) for index in range(count)]


def test_a_slow_scan_does_not_delay_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On a busy machine, where scanning takes long but costs little, answers do not become stale."""
    folder = open_runs.RunFolder(tmp_path)
    scan = folder._scan
    monkeypatch.setattr(folder, "_scan", lambda now: (time.sleep(0.1), scan(now)))
    folder.runs()
    make(tmp_path / "run")
    time.sleep(open_runs.RESCAN_SECONDS)
    assert "run" in folder.runs()


def test_a_growing_run_is_followed(library: OpenRuns, ask_it: Any):
    """Each rollout and each late score changes the revision and is in the next answer; so is the end of the run."""
    path = library.folder.path / "growing"
    with create_run(path, planned=4) as writer:
        seen = set()
        for iteration in range(4):
            rollout = write(writer, iteration=iteration, group=str(iteration), reward=1.0)
            writer.flush()
            seen.add(ask_it("revisions")["revisions"]["growing"])
            assert len(seen) == iteration + 1
            assert ask_it("rollouts", run="growing")["total"] == iteration + 1
            assert len(ask_it("series", run="growing", measure="reward")["bins"]) == iteration + 1
            run = ask_it("run", run="growing")
            assert (run["rollouts"], run["planned"], run["state"], run["live"]) == (iteration + 1, 4, "running", True)
        score(writer, rollout, 5.0)
        writer.flush()
        [best] = ask_it("rollouts", run="growing", sort="-reward", limit=1, columns="reward")["rows"]
        assert best == {"id": rollout, "reward": 5.0}
    assert ask_it("run", run="growing")["state"] == "complete"
    [card] = ask_it("runs")["runs"]
    assert (card["rollouts"], card["mean_reward"], card["sparkline"]) == (4, 2.0, [1.0, 1.0, 1.0, 5.0])


def test_runs_come_and_go(library: OpenRuns, ask_it: Any):
    """A new run is listed; a removed one is reported as gone, also if it was open."""
    assert ask_it("runs") == {**ask_it("runs"), "runs": [], "total": 0}
    make(library.folder.path / "one")
    make(library.folder.path / "deep" / "er" / "two", 5)
    assert {card["key"] for card in ask_it("runs")["runs"]} == {"one", "deep/er/two"}
    assert ask_it("rollouts", run="deep/er/two")["total"] == 5
    shutil.rmtree(library.folder.path / "deep")
    for question in ("run", "rollouts", "series", "outcomes", "findings"):
        with pytest.raises(RunNotFoundError, match="deep/er/two"):
            ask_it(question, run="deep/er/two")
    assert [card["key"] for card in ask_it("runs")["runs"]] == ["one"]


def test_another_run_in_the_same_place_is_another_run(library: OpenRuns, ask_it: Any):
    """No cached answer about the first run is given for the second."""
    path = library.folder.path / "run"
    make(path, 3)
    assert ask_it("rollouts", run="run")["total"] == 3
    shutil.rmtree(path)
    ids = make(path, 2)
    assert sorted(row["id"] for row in ask_it("rollouts", run="run")["rows"]) == sorted(ids)
    assert ask_it("run", run="run")["rollouts"] == 2


def test_copies_stand_side_by_side(library: OpenRuns, ask_it: Any):
    """Two copies of one run are two runs, which may differ."""
    make(library.folder.path / "run")
    shutil.copytree(library.folder.path / "run", library.folder.path / "copy")
    with create_run(library.folder.path / "copy", join=True) as writer:
        write(writer, index=7)
    assert ask_it("rollouts", run="run")["total"] == 3
    assert ask_it("rollouts", run="copy")["total"] == 4


NAMES = ["with space", "ünï 日本", "a%2Fb", "50%", "a..b", "?q=1&run=x", "quote'\"", "-dash", "a+b", "<b>", "x\ny"]


def test_any_name_works(tmp_path: Path):
    """A key is the folder's name, and works through HTTP."""
    for place, name in enumerate(NAMES):
        make(tmp_path / name, place + 1)
    with viewing(tmp_path) as viewer:
        assert {card["key"] for card in answer(viewer, "runs")["runs"]} == set(NAMES)
        for place, name in enumerate(NAMES):
            assert answer(viewer, "run", run=name)["rollouts"] == place + 1
            assert answer(viewer, "rollouts", run=name, where="true")["total"] == place + 1


def test_a_run_itself_may_be_served(tmp_path: Path):
    """Its key is its name, also if it is served as the current directory."""
    make(tmp_path / "alone")
    library = OpenRuns(tmp_path / "alone")
    assert list(library.folder.runs()) == ["alone"]
    with library.open("alone") as run:
        assert run.run.sql("select count(*) from rollouts").fetchall() == [(3,)]
    library.close()


def test_a_damaged_run_shows_what_is_whole(library: OpenRuns, ask_it: Any):
    """Unreadable lines cost only themselves and are reported; so is a run with a damaged run.json."""
    path = library.folder.path / "run"
    make(path, 5)
    [segment] = (path / "rollouts").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"reward":1.0', b'"reward":9.0')
    segment.write_bytes(b"".join(lines) + b'{"torn')
    assert ask_it("rollouts", run="run")["total"] == 4
    run = ask_it("run", run="run")
    assert run["rollouts"] == 4
    assert run["problem_count"] >= 1
    assert any(segment.stem in problem for problem in run["problems"])
    [card] = ask_it("runs")["runs"]
    assert "damaged" in card["problem"]
    (path / "run.json").write_bytes(b"not json")
    [card] = ask_it("runs")["runs"]
    assert "run.json" in card["problem"]
    with pytest.raises(RunNotFoundError, match=r"run\.json"):
        ask_it("rollouts", run="run")


@pytest.fixture
def make_fail(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a method of files fail for some names inside a block: always, or so many times after some calls."""
    monkeypatch.setattr(open_runs, "_RETRY_SECONDS", 0.0)

    @contextmanager
    def failing(method: str, prefix: str, times: float = math.inf, after: int = 0) -> Iterator[None]:
        owner = LocalFile if method == "read" else LocalFiles
        real, calls = getattr(owner, method), itertools.count()

        def fail(files: Any, *arguments: Any) -> Any:
            name = files.name if owner is LocalFile else arguments[0]
            if name.startswith(prefix) and after <= next(calls) < after + times:
                raise OSError(errno.ESTALE, "gone for now")
            return real(files, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, method, fail)
            yield

    return failing


def make_old(path: Path) -> None:
    """A run of two sessions that was written long ago: six rollouts, of which two got a reward of 0.25 later."""
    create_run(path).close()
    for _ in range(2):
        with create_run(path, join=True, continues=()) as writer:
            rollout, *_ = [write(writer, index=index, group=writer.session) for index in range(3)]
            score(writer, rollout, 0.25)
    for file in path.rglob("*.jsonl"):
        os.utime(file, (0, 0))


@pytest.mark.parametrize("folder", ["rollouts", "scores", "ledger"])
@pytest.mark.parametrize("method", ["list_files", "open"])
def test_a_run_that_could_not_be_read_for_a_while_is_read_again(
    library: OpenRuns, ask_it: Any, make_fail: Any, monkeypatch: pytest.MonkeyPatch, method: str, folder: str
):
    """Pages report the failure, are told to ask again, and then have every number; wrong numbers are not stored."""
    monkeypatch.setattr(run_listing, "MIN_STORED_BYTES", 0)
    make_old(library.folder.path / "one")

    def look() -> Any:
        rows = ask_it("rollouts", run="one", sort="id")
        [entry] = ask_it("runs")["runs"]
        rewards = [(row["id"], row["reward"]) for row in rows["rows"]]
        return rewards, rows["total"], entry["mean_reward"], ask_it("run", run="one")["ledger"]["recorded"]

    with make_fail(method, folder):
        revisions, wrong = ask_it("revisions"), look()
        assert any("gone for now" in problem for problem in ask_it("damage", run="one")["problems"])
    assert ask_it("revisions") != revisions
    right = look()
    assert right[1:] == (6, 0.75, 6)
    assert wrong != right
    assert ask_it("damage", run="one")["problems"] == []
    with closing(OpenRuns(library.folder.path)) as other:
        assert asker(other)("runs")["runs"][0]["mean_reward"] == 0.75


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("list_files", "rollouts"),
        ("list_files", "ledger"),
        ("open", "rollouts"),
        ("open", "ledger"),
        ("open", "run.json"),
    ],
)
def test_the_list_of_runs_asks_again_for_a_run_that_could_not_be_read(
    library: OpenRuns, ask_it: Any, make_fail: Any, method: str, name: str
):
    """Also if no page of the run is open."""
    make_old(library.folder.path / "one")
    with make_fail(method, name):
        revisions = ask_it("revisions")
        [wrong] = ask_it("runs")["runs"]
    assert ask_it("revisions") != revisions
    [right] = ask_it("runs")["runs"]
    assert (right["recorded"], right["mean_reward"], right["problem"]) == (6, 0.75, None)
    assert right != wrong


@pytest.mark.parametrize("times", [1, 3, 8])
@pytest.mark.parametrize("folder", ["rollouts", "scores", "ledger"])
@pytest.mark.parametrize("method", ["list_files", "open", "read"])
def test_a_failure_that_ends_within_a_request_leaves_nothing_wrong(
    library: OpenRuns, ask_it: Any, make_fail: Any, method: str, folder: str, times: int
):
    """An answer has the right numbers or says that something could not be read, and the next ones are right."""
    with create_run(library.folder.path / "one") as writer:
        rollout, *_ = [write(writer, index=index) for index in range(4)]
        score(writer, rollout, 0.5)

    def numbers() -> tuple[Any, ...]:
        answer = ask_it("run", run="one")
        return answer["rollouts"], answer["groups"], answer["rewards"]["mean"], answer["problem_count"]

    right = (4, 1, 0.875, 0)
    ask_it("runs")
    with make_fail(method, folder, times):
        shown = numbers()
    assert shown == right or shown[-1] > 0
    ask_it("revisions")
    assert numbers() == right


@pytest.mark.parametrize("times", [1, 3, 4, 6])
@pytest.mark.parametrize("folder", ["rollouts", "scores", "ledger"])
def test_listed_numbers_of_a_failing_moment_are_not_kept(
    tmp_path: Path, make_fail: Any, monkeypatch: pytest.MonkeyPatch, folder: str, times: int
):
    """`rolltrace ls` shows the right numbers or a problem, and stores only the right ones."""
    monkeypatch.setattr(run_listing, "MIN_STORED_BYTES", 0)
    make_old(tmp_path / "one")
    with make_fail("open", folder, times):
        [shown] = run_listing.list_runs(tmp_path).runs
    assert shown.problem_count or (shown.rollouts, shown.mean_reward, shown.recorded) == (6, 0.75, 6)
    [later] = run_listing.list_runs(tmp_path).runs
    assert (later.rollouts, later.mean_reward, later.recorded, later.problem_count) == (6, 0.75, 6, 0)


def test_losses_that_only_a_ledger_shows_are_not_forgotten(
    tmp_path: Path, make_fail: Any, monkeypatch: pytest.MonkeyPatch
):
    """Numbers from a moment without the ledger are not stored."""
    monkeypatch.setattr(run_listing, "MIN_STORED_BYTES", 0)
    make(tmp_path / "one", 6)
    [segment] = (tmp_path / "one/rollouts").iterdir()
    segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:4]))
    os.utime(segment, (0, 0))
    os.utime(next((tmp_path / "one/ledger").iterdir()), (0, 0))
    with make_fail("open", "ledger"):
        [shown] = run_listing.list_runs(tmp_path).runs
        assert (shown.rollouts, shown.problem_count) == (4, 1)
    [later] = run_listing.list_runs(tmp_path).runs
    assert later.problems == (f"rollouts/{segment.name[:-13]}: 6 rollouts were recorded, 4 can be read.",)


@pytest.mark.parametrize("after", range(5))
def test_a_list_entry_without_numbers_is_made_again(library: OpenRuns, ask_it: Any, make_fail: Any, after: int):
    """The tables of a run could not be opened when its numbers were needed."""
    make_old(library.folder.path / "one")
    with make_fail("open", "run.json", after=after):
        ask_it("runs")
    ask_it("revisions")
    assert [run["mean_reward"] for run in ask_it("runs")["runs"]] == [0.75]


def test_a_problem_of_a_lookup_is_gone_after_the_retry(library: OpenRuns, ask_it: Any, make_fail: Any):
    """Nothing else reads the file again, because the tables have it."""
    make_old(library.folder.path / "one")
    [row, *_] = ask_it("rollouts", run="one")["rows"]
    with make_fail("read", "rollouts"), pytest.raises(StorageError):
        ask_it("rollout", run="one", id=row["id"])
    ask_it("revisions")
    assert ask_it("damage", run="one")["problems"] == []


def test_a_search_without_texts_is_repeated(library: OpenRuns, ask_it: Any, make_fail: Any):
    """Texts that could not be read are searched when they can be."""
    make_old(library.folder.path / "one")
    assert ask_it("rollouts", run="one")["total"] == 6
    with make_fail("open", "rollouts"):
        assert ask_it("search", run="one", search="1 + 1")["hits"] == 0
    ask_it("revisions")
    assert ask_it("search", run="one", search="1 + 1")["hits"] == 6
    assert ask_it("damage", run="one")["problems"] == []


def test_a_page_that_could_not_be_opened_is_asked_again(library: OpenRuns, ask_it: Any, make_fail: Any):
    """Its revision changes, so that it asks again."""
    make_old(library.folder.path / "one")
    revisions = ask_it("revisions")
    with make_fail("open", "run.json"), pytest.raises(StorageError, match="gone for now"):
        ask_it("run", run="one")
    assert ask_it("revisions") != revisions


def test_the_list_of_runs_asks_again_for_a_small_run(library: OpenRuns, ask_it: Any, make_fail: Any):
    """Its numbers come from its lines, and its state from its ledger."""
    make(library.folder.path / "one")
    with make_fail("open", "ledger"):
        revisions = ask_it("revisions")
        [run] = ask_it("runs")["runs"]
        assert (run["state"], run["problem"]) == ("unknown", "Its files are damaged in one place: its page lists them.")
    assert ask_it("revisions") != revisions
    assert [run["state"] for run in ask_it("runs")["runs"]] == ["complete"]


def test_folders_that_could_not_be_listed_are_listed_again_at_once(library: OpenRuns, ask_it: Any, make_fail: Any):
    """A run whose files are unknown is not taken for one that is no longer written to."""
    make_old(library.folder.path / "one")
    with make_fail("list_files", ""):
        revisions = ask_it("revisions")
    assert ask_it("revisions") != revisions


def test_an_unreadable_run_is_read_again_ever_more_rarely(
    library: OpenRuns, ask_it: Any, make_fail: Any, monkeypatch: pytest.MonkeyPatch
):
    """A file that can never be read does not keep the viewer busy."""
    monkeypatch.setattr(open_runs, "_RETRY_SECONDS", 1.0)
    make_old(library.folder.path / "one")
    clock = 1_000.0
    monkeypatch.setattr(open_runs.time, "monotonic", lambda: clock)
    changed = [clock]
    revisions = None
    with make_fail("open", "rollouts"):
        for _ in range(240):
            ask_it("rollouts", run="one")
            revisions, before = ask_it("revisions"), revisions
            if revisions != before:
                changed.append(clock)
            clock += 1.0
    pauses = [after - before for before, after in itertools.pairwise(changed)]
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30], pauses


def test_damage_is_reported_in_every_answer(library: OpenRuns):
    """Unreadable places are still reported after the run was closed to make room and opened again."""
    library = OpenRuns(library.folder.path, max_weight=1)
    ask_it = asker(library)
    path = library.folder.path / "run"
    make(path, 5)
    make(library.folder.path / "other")
    [segment] = (path / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b'"reward":1.0', b'"reward":9.0', 1))
    first = ask_it("run", run="run")["problems"]
    assert len(first) == 1
    with library.open("run") as before:
        pass
    assert ask_it("run", run="other")["problems"] == []
    with library.open("run") as anew:
        assert anew is not before
    assert ask_it("run", run="run")["problems"] == first
    library.close()


def test_a_name_that_is_not_utf8_hides_no_run(library: OpenRuns, ask_it: Any):
    """A folder whose name is not UTF-8 is listed, and so are all others."""
    make(library.folder.path / "plain")
    odd = Path(os.fsdecode(os.fsencode(library.folder.path) + b"/non\xffutf8"))
    make(odd)
    keys = [card["key"] for card in ask_it("runs")["runs"]]
    assert sorted(keys) == ["non\\xffutf8", "plain"]
    assert [ask_it("run", run=key)["rollouts"] for key in keys] == [3, 3]


def test_retries_and_restarts_are_told_apart(library: OpenRuns, ask_it: Any):
    """Only rollouts that count are listed, unless attempts are requested; the record has its other attempts."""
    path = library.folder.path / "run"
    create_run(path).close()
    with create_run(path, join=True) as writer:
        old = write(writer, index=0)
    with create_run(path, join=True) as writer:
        first = write(writer, index=0, attempt=0, reward=None)
        last = write(writer, index=0, attempt=1)
    assert [row["id"] for row in ask_it("rollouts", run="run")["rows"]] == [last]
    both = ask_it("rollouts", run="run", retried="1", columns="advantage,retried", sort="attempt")["rows"]
    assert [(row["id"], row["retried"]) for row in both] == [(first, True), (last, False)]
    attempts = ask_it("rollout", run="run", id=last)["attempts"]
    assert [(one["id"], one["superseded"]) for one in attempts] == [(old, True), (first, False), (last, False)]
    assert ask_it("rollout", run="run", id=old)["advantage"] is None
    told = ask_it("run", run="run")
    assert (told["rollouts"], told["retried"], told["superseded"]) == (1, 1, 1)


def test_a_check_runs_once_and_says_when_it_is_stale(tmp_path: Path):
    """A small run is checked when it is first opened; the findings stay until the next POST of `check`."""
    make(tmp_path / "run")
    with viewing(tmp_path) as viewer:
        first = finished(viewer)
        assert (first["state"], first["stale"], first["found"]) == ("ready", False, [])
        assert first["audits"] > 10
        with create_run(tmp_path / "run", join=True) as writer:
            write(writer, index=8, reward=2.0, reward_so_far=1.0)
        changed = until(lambda: answer(viewer, "findings", run="run"), lambda found: found["stale"])
        assert changed["found"] == []
        assert ask(viewer, "check", run="run").status == 404  # GET is refused
        assert post(viewer, "check", run="run").json["state"] == "running"
        again = finished(viewer)
        assert again["stale"] is False
        assert [one["findings"][0]["message"] for one in again["found"]]


def finished(viewer: Any) -> Any:
    """The findings once they are ready."""
    return until(
        lambda: answer(viewer, "findings", run="run"), lambda found: found["state"] not in ("running", "absent")
    )


def until(ask: Any, holds: Any) -> Any:
    """The first answer for which the condition holds."""
    for _ in range(600):
        found = ask()
        if holds(found):
            return found
        time.sleep(0.1)
    raise AssertionError("it never came to hold")


def test_room_is_made_for_other_runs(library: OpenRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The least recently used run is closed; one in use stays open until its request is answered."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    library = OpenRuns(library.folder.path, max_weight=2)
    for name in "abc":
        make(library.folder.path / name, 1)
    count = "select count(*) from rollouts"
    opened = []  # so that it is not the garbage collector that closes them
    with library.open("a") as used:
        for name in "bc":
            with library.open(name) as run:
                run.run.sql(count).fetchall()
                opened.append(run)
        assert used.run.sql(count).fetchall() == [(1,)]
        with library.open("a") as anew:
            assert anew is not used
            anew.run.sql(count).fetchall()
            assert len(list(temporary.iterdir())) == 3, "the tables of a, in use and opened anew, and of c"
    assert len(list(temporary.iterdir())) == 2
    library.close()
    assert list(temporary.iterdir()) == []


def test_cached_values_are_computed_once(monkeypatch: pytest.MonkeyPatch):
    """Concurrent callers share one computation; an error is not cached; the least recently used entry is evicted."""
    kept, found, go = LruCache(max_bytes=1_000), [], threading.Event()

    def find() -> int:
        go.wait(10)
        found.append(1)
        return 7

    given: list[int] = []
    threads = [
        threading.Thread(target=lambda: given.append(kept.get_or_compute("q", find, lambda _: 1))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert (given, found) == ([7] * 5, [1])
    with pytest.raises(ZeroDivisionError):
        kept.get_or_compute("wrong", lambda: 1 // 0, lambda _: 1)
    assert kept.get_or_compute("wrong", lambda: 2, lambda _: 1) == 2
    for number in range(10):
        kept.get_or_compute(number, lambda number=number: number, lambda _: 100)
    assert kept.get_or_compute("q", lambda: 8, lambda _: 1) == 8
    assert kept.get_or_compute("large", lambda: 9, lambda _: 10_000) == 9


def test_cached_values_of_an_earlier_state_are_replaced():
    """A run that grows does not fill the cache with values of its earlier states."""
    kept = LruCache(max_bytes=5_000)
    assert kept.get_or_compute("other", lambda: "other", lambda _: 100) == "other"
    for state in range(100):
        assert kept.get_or_compute("q", lambda state=state: state, lambda _: 1_000, state) == state
    assert kept.get_or_compute("q", lambda: -1, lambda _: 1_000, 99) == 99
    assert kept.get_or_compute("other", lambda: "evicted", lambda _: 100) == "other"


def test_an_unexpected_error_is_reported_without_its_message(tmp_path: Path):
    """An unexpected exception is a 500 with its type; its message, which may hold secrets, is not sent."""
    from rolltrace.viewer.http_errors import http_error_of

    refusal = http_error_of(KeyError("a secret path"))
    assert (refusal.status, refusal.type) == (500, "KeyError")
    assert b"secret" not in refusal.body
    assert http_error_of(RunNotFoundError("\ud800")).body


def test_the_library_is_quick_to_import():
    """Nothing of the server is imported before it is needed."""
    import subprocess
    import sys

    code = "import sys, rolltrace; print([name for name in ('starlette', 'uvicorn', 'duckdb') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_seats_of_a_game_are_listed_together(tmp_path: Path):
    """A rollout lists the seats of the same play, and of no other."""
    with rolltrace.create_run(tmp_path / "run") as run:
        ids = []
        for episode in range(2):
            for seat in range(2):
                with run.rollout(
                    env="e", task="t", group="g", index=episode * 2 + seat, episode=episode, seat=seat
                ) as rollout:
                    said = {"role": "assistant", "content": "a"}
                    rollout.step(prompt=[{"role": "user", "content": "q"}], response=said, reward=1.0)
                ids.append(rollout.id)
    library = OpenRuns(tmp_path)
    questions = Api(library)
    found = json.loads(questions.handlers["rollout"](RequestParameters([("run", "run"), ("id", ids[2])])))
    assert [(one["id"], one["seat"]) for one in found["seats"]] == [(ids[2], 0), (ids[3], 1)]
    library.close()


def test_visiting_many_runs_piles_up_no_threads(tmp_path: Path):
    """Runs that were not visited for long are closed, and an engine has few threads."""
    make(tmp_path / "0")
    for number in range(1, 16):
        shutil.copytree(tmp_path / "0", tmp_path / str(number))
    with viewing(tmp_path) as viewer:
        counts = []
        for number in range(16):  # eight are open at once
            answer(viewer, "run", run=str(number))
            answer(viewer, "rollouts", run=str(number), where="reward > 0")
            counts.append(len(list(Path(f"/proc/{viewer.process.pid}/task").iterdir())))
    assert max(counts[8:]) <= max(counts[:8]) < 100


def test_a_scan_looks_only_at_what_may_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The files of a run that was not written to lately are listed again only if one of its folders has changed."""
    monkeypatch.setattr(open_runs, "RESCAN_SECONDS", 0.0)
    for name in ("one", "two"):
        make(tmp_path / name)
        for file in (tmp_path / name).rglob("*"):
            os.utime(file, (1e9, 1e9))
        os.utime(tmp_path / name, (1e9, 1e9))
    os.utime(tmp_path, (1e9, 1e9))
    folder = open_runs.RunFolder(tmp_path)
    before = folder.runs()
    listed: list[str] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real(path))
    assert folder.runs() == before
    assert listed == []
    with create_run(tmp_path / "two", join=True) as writer:
        write(writer, index=7)
    after = folder.runs()
    assert after["one"] == before["one"]
    assert after["two"].stamp.revision != before["two"].stamp.revision
    make(tmp_path / "three")
    assert set(folder.runs()) == {"one", "two", "three"}
    shutil.rmtree(tmp_path / "one")
    assert set(folder.runs()) == {"two", "three"}


def test_very_many_runs_are_read_bit_by_bit(library: OpenRuns, ask_it: Any, monkeypatch: pytest.MonkeyPatch):
    """An answer that cannot have all numbers in time says how many runs are missing; the next ones read them."""
    for name in "abc":
        make(library.folder.path / name)
    monkeypatch.setattr(run_list, "READ_SECONDS", 0.0)
    first = ask_it("runs")
    assert (first["pending"], [run["rollouts"] for run in first["runs"]]) == (3, [None] * 3)
    monkeypatch.setattr(run_list, "READ_SECONDS", 60.0)
    second = ask_it("runs")
    assert (second["pending"], [run["rollouts"] for run in second["runs"]]) == (0, [3] * 3)


def test_every_page_can_say_what_is_damaged(library: OpenRuns, ask_it: Any):
    """Problems have their own API path, which needs no overview."""
    make(library.folder.path / "run")
    assert ask_it("damage", run="run") == {"problems": [], "problem_count": 0, "coverage": 1.0}
    [segment] = (library.folder.path / "run" / "rollouts").iterdir()
    segment.write_bytes(segment.read_bytes() + b"garbage\n")
    damage = ask_it("damage", run="run")
    assert damage["problem_count"] == 1
    assert "garbage" not in damage["problems"][0]
    assert segment.name in damage["problems"][0]


@pytest.fixture
def long_runs(tmp_path, monkeypatch) -> Iterator[OpenRuns]:
    """The runs below a folder, of which one is read by processes in four batches."""
    for session in range(4):
        with create_run(tmp_path / "run", join=session > 0) as writer:
            for index in range(10):
                score(writer, write(writer, group=str(session), index=index), float(index))
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    with closing(OpenRuns(tmp_path, partial=True)) as library:
        yield library


@pytest.mark.parametrize("error", [OSError(errno.EIO, "injected"), StorageError("injected")])
def test_a_run_is_read_on_after_a_failure(long_runs, monkeypatch, error):
    """If something fails for a moment in the background, the run is read on later, while pages ask for it."""
    add, may_go_on = run_tables.RunTables._add, hold_back(monkeypatch, "rollouts")

    def fail_once(tables: Any, parts: Any) -> None:
        if threading.current_thread().name == "rolltrace-reader" and error not in raised:
            raised.append(error)
            raise error
        add(tables, parts)

    raised: list[Exception] = []
    with long_runs.open("run") as opened:
        assert opened.run.sql("select count(*) from rollouts").fetchall() == [(10,)]
        monkeypatch.setattr(run_tables.RunTables, "_add", fail_once)
        may_go_on.set()

    def count() -> Any:
        with long_runs.open("run") as opened:
            rows = opened.run.sql("select count(*), sum(reward) from rollouts").fetchall()
            return raised and opened.run.coverage == 1 and rows

    until(count, lambda rows: rows == [(40, 180.0)])


def test_a_run_is_read_on_between_requests(long_runs, monkeypatch):
    """A request with several statements is not disturbed by what is added between them, unless it takes long."""
    may_go_on, looks, is_unfinished = hold_back(monkeypatch, "rollouts"), [], OpenRuns._is_unfinished
    monkeypatch.setattr(OpenRuns, "_is_unfinished", lambda runs, run: looks.append(run) or is_unfinished(runs, run))
    monkeypatch.setattr(open_runs, "_ADD_SECONDS", 0.01)
    monkeypatch.setattr(open_runs, "_MAX_WAITS", 1_000_000)
    with long_runs.open("run") as opened:
        assert opened.run.sql("select count(*) from rollouts").fetchall() == [(10,)]
    with long_runs.open("run") as opened:
        may_go_on.set()
        before = len(looks)
        until(lambda: len(looks), lambda number: number > before + 5)
        assert opened.run.sql("select count(*) from rollouts").fetchall() == [(10,)]
        monkeypatch.setattr(open_runs, "_MAX_WAITS", 2)
        until(lambda: opened.run.sql("select count(*) from rollouts").fetchall(), lambda rows: rows == [(40,)])


def test_answers_about_a_part_are_not_given_after_the_run_was_closed(tmp_path, monkeypatch):
    """A run that made room for another while it was read is read to the end; then its answers are about all of it."""
    for session in range(4):
        with create_run(tmp_path / "run", join=session > 0) as writer:
            for index in range(10):
                write(writer, group=str(session), index=index)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    may_go_on = hold_back(monkeypatch, "rollouts")
    with closing(OpenRuns(tmp_path, partial=True, max_weight=1)) as library:
        api = Api(library)

        def ask(question: str, run: str = "run", **parameters: str) -> Any:
            return json.loads(api.handlers[question](RequestParameters([("run", run), *parameters.items()])))

        assert (ask("rollouts")["total"], ask("run")["rollouts"]) == (10, 10)
        assert ask("search", search="2")["hits"] < 40
        partial = ask("revisions")["revisions"]["run"]
        assert ask("rollouts", run="other")["total"] == 10
        assert ask("revisions")["revisions"]["run"] != partial, "a page does not keep the answers about a part"
        may_go_on.set()
        until(lambda: [one.name for one in threading.enumerate()], lambda names: "rolltrace-reader" not in names)
        until(lambda: (ask("rollouts")["total"], ask("damage")["coverage"]), lambda answers: answers == (40, 1))
        assert ask("run")["rollouts"] == 40
        until(lambda: ask("search", search="2")["hits"], lambda hits: hits == 40)


def test_a_viewer_may_end_while_it_reads(long_runs, monkeypatch, capfd):
    """What the thread that reads is using is closed when it has stopped, which it does at once, without an error."""
    missing, is_making, may_go_on = late_rewards.LateRewards.missing, threading.Event(), threading.Event()

    def wait_first(rewards: Any, *parts: Any) -> Any:
        if threading.current_thread().name == "rolltrace-reader":
            is_making.set()
            may_go_on.wait(60)
        return missing(rewards, *parts)

    monkeypatch.setattr(late_rewards.LateRewards, "missing", wait_first)
    with long_runs.open("run") as opened:
        opened.run.sql("select count(*) from rollouts").fetchall()
        folder = opened.run._database._private
    assert is_making.wait(60)
    [reader] = [thread for thread in threading.enumerate() if thread.name == "rolltrace-reader"]
    closer = threading.Thread(target=long_runs.close)
    closer.start()
    closer.join(1)
    assert closer.is_alive(), "it closed what the reader is using"
    may_go_on.set()
    closer.join()
    reader.join()
    assert not folder.exists()
    assert capfd.readouterr().err == ""


def test_a_long_run_is_answered_from_what_was_read(tmp_path, monkeypatch):
    """The first answers come from the newest segments and say so; the revision changes until everything is read.

    In the end it is not what it was at first: a page that did not ask meanwhile must not take its answers for complete.
    """
    for session in range(4):
        with create_run(tmp_path / "run", join=session > 0) as writer:
            for index in range(10):
                write(writer, group=str(session), index=index)
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    may_go_on = hold_back(monkeypatch, "rollouts")
    library = OpenRuns(tmp_path, partial=True)
    api = Api(library)

    def ask(question: str) -> Any:
        return json.loads(api.handlers[question](RequestParameters([("run", "run")])))

    unopened = ask("revisions")["revisions"]["run"]
    totals, revisions = [ask("rollouts")["total"]], [ask("revisions")["revisions"]["run"]]
    assert ask("damage")["coverage"] < 1
    may_go_on.set()

    def coverage() -> float:
        totals.append(ask("rollouts")["total"])
        revisions.append(ask("revisions")["revisions"]["run"])
        return ask("damage")["coverage"]

    until(coverage, lambda covered: covered == 1)
    assert totals[0] == 10
    assert totals == sorted(totals)
    assert ask("rollouts")["total"] == 40
    assert ask("run")["rollouts"] == 40
    assert ask("revisions")["revisions"]["run"] not in (unopened, revisions[0])
    library.close()
