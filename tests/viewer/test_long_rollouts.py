"""Very long rollouts: the server sends beginnings, the page loads the rest in pieces, `show` folds."""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rolltrace
from measured_command import measure, resident_megabytes
from rolltrace.errors import InputError
from rolltrace.viewer import rollout_detail
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns
from rolltrace.viewer.text_limit import cut_texts, text_at
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = "".join(f"line {number} of the long text\n" for number in range(200_000))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one long message, and a run with a prompt of many messages."""
    folder = tmp_path_factory.mktemp("long")
    _record(folder / "text", [{"role": "user", "content": LONG}], extra={"notes": "é" * 6_000_000})
    _record(folder / "many", [{"role": "user", "content": f"message {number}"} for number in range(100_000)])
    return folder


def _record(path: Path, prompt: list[Any], **fields: Any) -> None:
    with rolltrace.create_run(path) as run, run.rollout(env="e", task="t", group="g", index=0) as rollout:
        rollout.step(prompt=prompt, response="done", reward=1.0, **fields)


@pytest.fixture(scope="module")
def served(recorded: Path) -> Iterator[Viewer]:
    """A viewer over them."""
    with viewing(recorded) as viewer:
        yield viewer


def _id(path: Path) -> str:
    with rolltrace.open_run(path) as run:
        [rollout] = run.rollouts()
        return rollout.id


def test_an_answer_is_bounded_and_its_texts_come_in_pieces(recorded: Path) -> None:
    """A response has the beginnings of texts; their pieces add up to the recorded text."""
    rollout = _id(recorded / "text")
    library = OpenRuns(recorded)
    handlers = Api(library).handlers

    def ask(question: str, **parameters: Any) -> Any:
        answer = handlers[question](RequestParameters([("run", "text"), ("id", rollout), *parameters.items()]))
        assert len(answer) < 13_000_000
        return json.loads(answer)

    with contextlib.closing(library):
        answer = ask("rollout")
        cuts = {tuple(cut["path"]): cut for cut in answer["cut"]}
        assert set(cuts) == {("messages", 0, "content"), ("steps", 0, "extra", "notes")}
        content, cut = answer["rollout"]["messages"][0]["content"], cuts["messages", 0, "content"]
        assert (len(content), cut["length"]) == (cut["shown"], len(LONG))
        offset: int | None = cut["shown"]
        while offset is not None:
            piece = ask("text", path='["messages",0,"content"]', offset=str(offset))
            content, offset = content + piece["text"], piece["next"]
        assert content == LONG
        for path in ("nonsense", "[]", '["steps"]', '["messages",7,"content"]', '["__class__","__name__"]'):
            with pytest.raises(InputError, match=r"text at|JSON array"):
                ask("text", path=path)


@pytest.mark.parametrize("most", [4, 60_000])
def test_messages_come_in_pieces(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A response has the first and the last of many messages; the others follow, and truncated texts are in place."""
    monkeypatch.setattr(rollout_detail, "MAX_MESSAGES", most)
    if most == 4:
        _record(tmp_path / "many", [{"role": "user", "content": text} for text in ("a", "b", "c", "d", LONG * 2)])
    folder = tmp_path if most == 4 else recorded
    with rolltrace.open_run(folder / "many") as run:
        [rollout] = run.rollouts()
    right = [message.content for message in rollout.messages]
    library = OpenRuns(folder)
    with contextlib.closing(library):
        ask = Api(library).handlers["rollout"]
        answer = json.loads(ask(RequestParameters([("run", "many"), ("id", rollout.id)])))
        head, tail = answer["loaded"]
        assert (head, tail) == ([0, most // 2], [len(right) - most // 2, len(right)])
        piece = json.loads(ask(RequestParameters([("run", "many"), ("id", rollout.id), ("first", str(head[1]))])))
    shown: dict[int, str] = {}
    for one in (piece, answer):
        places = [place for first, end in one["loaded"] for place in range(first, end)]
        shown |= dict(zip(places, (message["content"] for message in one["rollout"]["messages"]), strict=True))
    for cut in answer["cut"]:
        _, place, field = cut["path"]
        assert field == "content"
        assert (len(shown[place]), cut["length"]) == (cut["shown"], len(right[place]))
        shown[place] = right[place]
    assert [shown[place] for place in sorted(shown)] == right
    assert (len(answer["cut"]) > 0) == (most == 4)


def test_a_short_record_is_unchanged(recorded: Path) -> None:
    """Below the limit the record is unchanged; paths lead to its texts."""
    with rolltrace.open_run(recorded / "text") as run:
        [rollout] = run.rollouts()
    assert cut_texts(rollout, 50_000_000, 1) == (rollout, ())
    short, cuts = cut_texts(rollout, 5_000_000, 1_000_000)
    assert all(text_at(short, cut.path) == text_at(rollout, cut.path)[: cut.shown] for cut in cuts)
    assert sum(cut.shown for cut in cuts) < 1_000_000


def test_the_page_loads_more_of_a_cut_text(page: "Page", served: Viewer) -> None:
    """The message says how much of it is loaded; a button loads the next piece."""
    page.goto(served.entry)
    page.goto(f"{served.origin}/#/run/text/rollout/{_id(served.folder / 'text')}")
    expect(page.get_by_text("This record is very long.")).to_be_visible(timeout=30_000)
    more = page.locator(".message-head").get_by_role("button", name="Load more")
    before = more.inner_text()
    more.click()
    expect(more).not_to_have_text(before, timeout=30_000)
    expect(
        page.get_by_role("region", name="Texts that are cut").get_by_role("button", name="steps[0].extra.notes")
    ).to_be_visible()


def test_a_prompt_of_many_messages_opens(page: "Page", served: Viewer) -> None:
    """A hundred thousand messages open; only visible ones are in the page, and those in the middle are loaded."""
    page.goto(served.entry)
    page.goto(f"{served.origin}/#/run/many/rollout/{_id(served.folder / 'many')}")
    expect(page.get_by_text("message 0", exact=True)).to_be_visible(timeout=60_000)
    page.keyboard.press("e")
    expect(page.get_by_text("message 99999", exact=True)).to_be_visible(timeout=30_000)
    assert page.evaluate("document.querySelectorAll('*').length") < 2_000
    page.goto(f"{page.url}?find=message 999")
    more = page.get_by_role("button", name=re.compile("#1000 to #99000, are not loaded"))
    expect(more).to_be_visible()
    more.click()
    expect(page.get_by_text("message 1000", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("#3000 to #99000"))).to_have_count(0)  # further down


@pytest.mark.slow
def test_a_message_of_80_mb(page: "Page", tmp_path: Path) -> None:
    """An 80 MB message opens in the viewer, `show` and a report, in less than 600 MB; overview and search work."""
    text = "".join(f"word {number} of a very long text\n" for number in range(2_600_000))
    _record(tmp_path / "runs" / "long", [{"role": "user", "content": text}])
    rollout = _id(tmp_path / "runs" / "long")
    with viewing(tmp_path / "runs") as viewer:
        page.goto(viewer.entry)
        page.goto(f"{viewer.origin}/#/run/long/rollout/{rollout}")
        expect(page.get_by_text("This record is very long.")).to_be_visible(timeout=120_000)
        page.locator(".message-head").get_by_role("button", name="Load more").click()
        expect(page.get_by_text(re.compile(r"has 3,\d{3},\d{3} of"))).to_be_visible(timeout=60_000)
        page.goto(f"{viewer.origin}/#/run/long/rollouts?search=word 2599999 of")
        expect(page.get_by_text("1 of 1 rollout")).to_be_visible(timeout=60_000)
        page.goto(f"{viewer.origin}/#/run/long")
        expect(page.get_by_role("heading", name="long")).to_be_visible(timeout=60_000)
        assert resident_megabytes(viewer.process.pid) < 600
    for command in (["show", rollout], ["report", "-o", tmp_path / "report.html"]):
        words = [sys.executable, "-m", "rolltrace", command[0], tmp_path / "runs" / "long", *command[1:]]
        measured = measure(words, 120, 600)
        assert measured.code == 0, measured
