"""The text search: in pieces, newest rollouts first, until everything is searched or it is stopped."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import rolltrace
from answers import write
from batches import hold_back
from rolltrace.query import part_processes, run_tables
from rolltrace.store.create import create_run
from rolltrace.viewer import open_runs, text_search
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.text_search import TextSearch
from viewing import Viewer, viewing
from waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ROLLOUTS = 60
COLOURS = ("red", "Green", "blue")


def record(path: Path, numbers: range, *, join: bool = False) -> None:
    """Rollouts of which every third contains the same colour."""
    with rolltrace.create_run(path, join=join) as run:
        for number in numbers:
            with run.rollout(env="e", task="t", group="g", index=number) as rollout:
                rollout.step(f"What is {number}?", f"It is {COLOURS[number % 3]}.", 1.0)


class Asked:
    """The API over one run, with pieces of seven rollouts and one piece per answer."""

    def __init__(self, folder: Path) -> None:
        self._library = OpenRuns(folder)
        self._api = Api(self._library)

    def __call__(self, question: str, **parameters: str) -> Any:
        return json.loads(self._api.handlers[question](RequestParameters([("run", "run"), *parameters.items()])))

    def listed(self, **parameters: str) -> set[str]:
        return {row["id"] for row in self("rollouts", limit="1000", **parameters)["rows"]}

    def pieces(self, text: str) -> Iterator[dict[str, Any]]:
        """Every answer of a search, until it is complete."""
        answer = self("search", search=text)
        yield answer
        while answer["since"]:
            answer = self("search", search=text, since=answer["since"])
            yield answer

    def close(self) -> None:
        self._library.close()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """The API over a run."""
    for name, value in (("FIRST_ROWS", 7), ("_MAX_ROWS", 7), ("_ANSWER_SECONDS", 0.0)):
        monkeypatch.setattr(text_search, name, value)
    monkeypatch.setattr(open_runs, "RESCAN_SECONDS", 0.0)
    record(tmp_path / "run", range(ROLLOUTS))
    asked = Asked(tmp_path)
    yield asked
    asked.close()


def right(path: Path, text: str) -> list[str]:
    """The rollouts that contain a text, by Python, newest first."""
    with rolltrace.open_run(path) as run:
        texts = {one.id: " ".join(message.content for message in one.messages) for one in run.rollouts()}
    return sorted((one for one, said in texts.items() if text.lower() in said.lower()), reverse=True)


@pytest.mark.parametrize("text", ["green", "what IS", "5", "nowhere"])
def test_the_pieces_of_a_search_are_the_whole_search(asked: Asked, tmp_path: Path, text: str) -> None:
    """Each answer adds older rollouts and says how far it came; together they equal one statement's result."""
    found = right(tmp_path / "run", text)
    answers = list(asked.pieces(text))
    assert [answer["searched"] for answer in answers] == [*range(7, ROLLOUTS, 7), ROLLOUTS]
    for answer in answers:
        since = answer["since"]
        assert answer["total"] == ROLLOUTS
        assert asked.listed(search=text, since=since) == {one for one in found if one >= since}
        assert answer["hits"] == asked("rollouts", search=text, since=since)["total"]
    assert asked.listed(search=text) == set(found)


def test_other_questions_are_about_what_was_found(asked: Asked, tmp_path: Path) -> None:
    """Numbers, neighbours, conditions and other servers agree with the listing of a search that was stopped."""
    since = asked("search", search="green")["since"]
    found = [one for one in right(tmp_path / "run", "green") if one >= since]
    again = Asked(tmp_path)  # it has searched nothing itself
    for api in (asked, again):
        stopped = {"search": "green", "since": since}
        assert api("histogram", **stopped)["n"] == len(found)
        assert api("neighbours", id=found[0], **stopped)["total"] == len(found)
        assert api.listed(where="reward = 1", **stopped) == set(found)
        assert api.listed(where="reward = 0", **stopped) == set()
    again.close()


def hold_back_texts(path: Path, monkeypatch: pytest.MonkeyPatch) -> Event:
    """Make the tables of a run's rollouts; of their texts, only one batch is read before the event."""
    monkeypatch.setattr(run_tables, "MIN_CACHED_ROWS", 1)
    with rolltrace.open_run(path) as run:
        run.sql("select count(*) from rollouts").fetchall()
    monkeypatch.setattr(part_processes, "BATCH_BYTES", 1)
    return hold_back(monkeypatch, "texts")


def test_texts_that_are_read_later_are_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits in texts that processes were still reading when a piece was searched are found in the end."""
    path = tmp_path / "run"
    for session in range(3):
        record(path, range(20 * session, 20 * session + 20), join=session > 0)
    may_go_on = hold_back_texts(path, monkeypatch)
    library = OpenRuns(tmp_path, partial=True)
    search = TextSearch("green")
    with library.open("run") as opened:
        assert len(search.hits(opened, "")) < len(right(path, "green"))
        may_go_on.set()
        until(lambda: opened.run.continue_reading() or not opened.run.is_unfinished)
        assert {*search.hits(opened, "")} == {*right(path, "green")}
    library.close()


def test_texts_read_during_a_search_are_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search may miss what is added while it runs, although nothing is left to be read when it ends."""
    path = tmp_path / "run"
    for session in range(3):
        record(path, range(20 * session, 20 * session + 20), join=session > 0)
    may_go_on = hold_back_texts(path, monkeypatch)
    library = OpenRuns(tmp_path, partial=True)
    search = TextSearch("green")
    with library.open("run") as opened:
        sql = opened.run.sql

        def read_on_after(statement: str, **options: Any) -> Any:
            result = sql(statement, **options)
            if "distinct rollout" in statement:
                may_go_on.set()
                until(lambda: opened.run.continue_reading() or not opened.run.is_unfinished)
            return result

        monkeypatch.setattr(opened.run, "sql", read_on_after)
        assert len(search.hits(opened, "")) < len(right(path, "green"))
        assert opened.run.coverage == 1
        assert {*search.hits(opened, "")} == {*right(path, "green")}
    library.close()


def test_what_was_concluded_from_some_texts_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether responses are also messages is looked at again when all texts are read."""
    path = tmp_path / "run"
    for session in range(3):
        with (
            rolltrace.create_run(path, join=session > 0) as run,
            run.rollout(env="e", task="t", group=str(session), index=0) as rollout,
        ):
            rollout.step("What is it?", "It is green.", 1.0)
            if session < 2:  # the next prompt leaves out the response
                rollout.step([{"role": "user", "content": "Try again."}], "It is red.", 1.0)
    may_go_on = hold_back_texts(path, monkeypatch)
    library = OpenRuns(tmp_path, partial=True)
    search = TextSearch("green")
    with library.open("run") as opened:
        assert len(search.hits(opened, "")) == 1
        may_go_on.set()
        until(lambda: opened.run.continue_reading() or not opened.run.is_unfinished)
        assert len(search.hits(opened, "")) == 3
    library.close()


def test_a_run_that_grows_is_searched_further(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rollouts are found, also in the middle; unchanged ones are not searched again."""
    path = tmp_path / "run"
    *_, before = asked.pieces("1")
    record(path, range(100, 109), join=True)
    with create_run(path, join=True) as writer:
        write(writer, id=f"{right(path, 'what')[30]}x")  # says 1 + 1
    searched: list[str] = []
    select = text_search.select_matches
    monkeypatch.setattr(text_search, "select_matches", lambda *arguments: searched.append("") or select(*arguments))
    assert asked.listed(search="1", since="") == set(right(path, "1"))
    assert len(right(path, "1")) == before["hits"] + 10
    assert len(searched) == 5  # of 16 rollouts at the top, and of 8 in the middle


def test_a_search_that_takes_long_is_split(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that is not searched in time is split into smaller ones."""
    monkeypatch.setattr(text_search, "_PIECE_TIMEOUT", 0.0)
    *_, last = asked.pieces("green")
    assert (last["searched"], last["hits"]) == (ROLLOUTS, len(right(tmp_path / "run", "green")))


def test_pieces_grow_if_each_takes_as_long(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ids of all times are in all parts, a piece takes as long whatever its size."""
    seconds = iter(range(1_000))
    monkeypatch.setattr(text_search, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    monkeypatch.setattr(text_search, "_MAX_ROWS", 1_000)
    sizes = [answer["searched"] for answer in asked.pieces("green")]
    assert sizes[:3] == [7, 21, 49]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer over a run."""
    pytest.importorskip("playwright")
    folder = tmp_path_factory.mktemp("searched")
    record(folder / "run", range(ROLLOUTS))
    with viewing(folder) as viewer:
        yield viewer


def test_a_search_is_stopped_and_goes_on(served: Viewer, page: "Page") -> None:
    """The page lists hits while it searches, shows its progress, and makes no more requests after Stop."""
    from playwright.sync_api import expect

    found, everything = right(served.folder / "run", "green"), right(served.folder / "run", "what")
    first = sum(one >= everything[19] for one in found)
    requests: list[Route] = []

    def answer(route: "Route") -> None:
        requests.append(route)
        if len(requests) == 1:  # as if a third of a large run was searched
            route.fulfill(json={"since": everything[19], "searched": 20, "total": ROLLOUTS, "hits": first})
        elif len(requests) > 2:
            route.continue_()

    page.route("**/api/search?*", answer)
    page.goto(served.entry)
    page.goto(f"{served.origin}/#/run/run/rollouts?search=green")
    said = page.get_by_role("status").filter(has_text="newest first")
    expect(said).to_have_text(f"{first} hits so far, searched 20 of {ROLLOUTS} rollouts, newest first")
    rows = page.locator("tbody a[data-row]")
    expect(rows).to_have_count(first)
    page.get_by_role("button", name="Stop searching").click()
    expect(said).to_have_text(f"{first} hits, searched 20 of {ROLLOUTS} rollouts, newest first")
    requests[1].continue_()  # the answer that was on its way is not used
    page.wait_for_load_state("networkidle")
    assert len(requests) == 2
    expect(said).to_be_visible()
    rows.first.click()
    expect(page.get_by_role("navigation", name="Other rollouts")).to_contain_text(f" of {first}")
    page.go_back()
    expect(page.get_by_text(f"{len(found)} of {ROLLOUTS} rollouts")).to_be_visible()
    expect(rows).to_have_count(len(found))
    assert len(requests) == 3


def test_another_text_ends_a_search(served: Viewer, page: "Page") -> None:
    """The answers to an earlier search are not shown, and it makes no more requests."""
    from playwright.sync_api import expect

    asked: list[str] = []
    partial = {"since": "f", "searched": 0, "total": ROLLOUTS, "hits": 0}

    def answer(route: "Route") -> None:
        asked.append(route.request.url.split("search=")[-1].split("&")[0])
        if asked[-1] == "green":
            route.fulfill(json={**partial, "since": f"f{1000 - len(asked)}"})
        else:
            route.continue_()

    page.route("**/api/search?*", answer)
    page.goto(served.entry)
    page.goto(f"{served.origin}/#/run/run/rollouts?search=green")
    expect(page.get_by_role("button", name="Stop searching")).to_be_visible()
    page.get_by_role("searchbox").fill("blue")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"20 of {ROLLOUTS} rollouts")).to_be_visible()
    assert asked[-1] == "blue"
    assert asked.count("blue") == 1
