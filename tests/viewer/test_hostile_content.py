"""Text of models, environments and graders never runs, sends a request or breaks the layout."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import rolltrace
from payloads import PAYLOADS
from rolltrace.viewer.report_writer import write_report
from viewing import Viewer, viewing

SHORT = [payload for payload in PAYLOADS if 0 < len(payload) <= 5_000]
"""What may be a name."""
NARROW, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def _message(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def _call(number: int, text: str) -> dict[str, Any]:
    return {"id": text, "type": "function", "function": {"name": text, "arguments": PAYLOADS[number % len(PAYLOADS)]}}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in which every field of every record is hostile, with each payload somewhere."""
    folder = tmp_path_factory.mktemp("hostile")
    with rolltrace.create_run(
        folder / "run<img src=x onerror=window.hit=1>", config=dict.fromkeys(SHORT, SHORT)
    ) as run:
        for number, text in enumerate(SHORT):
            _record_names(run, number, text)
        for index in range(3):
            with run.rollout(env="omnibus", task="all", group="all", index=index) as rollout:
                _play(rollout, index)
            for text in SHORT:
                run.score(rollout.id, text, 1.0, data={text: {text: [text]}}, producer=text)
    return folder


def _record_names(run: Any, number: int, text: str) -> None:
    """One rollout whose identity, tags and failure are the payload."""
    kind = type(text.replace("\x00", "") or "Kind", (Exception,), {})
    with (
        suppress(Exception),
        run.rollout(env=text, task=text, group=text, index=number, tags=(text,), policy=text, split=text) as rollout,
    ):
        if number % 2:
            raise kind(text)
        rollout.step(prompt=[_message(text, text)], response=text, reward=float(number))


def _play(rollout: Any, index: int) -> None:
    """One step for each payload, which is in all of its fields."""
    history = [_message("system", PAYLOADS[0]), _message("user", PAYLOADS[7])]
    for number, text in enumerate(PAYLOADS):
        name = text[:200] or "empty"
        reply = _message(
            "assistant", f"{index}{text}", reasoning_content=text, tool_calls=[_call(number, name)], name=name
        )
        rollout.step(
            prompt=list(history), response=reply, reward=0.5, reward_data={name: 1.0}, metrics={name: 2.0},
            env_state={name: {name: text[:5_000]}}, extra={name: text[:5_000]}, logs={name: [text[:5_000]]}, raw=text,
        )  # fmt: skip
        history += [reply, _message("tool", text, tool_call_id=name, name=name)]


@pytest.fixture(scope="module")
def hostile_viewer(hostile: Path) -> Iterator[Viewer]:
    """A viewer over it."""
    with viewing(hostile) as viewer:
        yield viewer


@pytest.fixture
def guarded(page: Any) -> Any:
    """A tab that records its requests and every dialog."""
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("dialog", lambda dialog: (page.asked.append("dialog"), dialog.dismiss()))
    return page


_LISTED = """async () => {
    const { key: run } = (await rolltrace.ask('runs')).runs[0];
    const columns = 'split,iteration,env,group';
    return [run, (await rolltrace.ask('rollouts', { run, limit: 1000, columns })).rows];
}"""
_MADE = """document.querySelectorAll(
    'main :is(script, iframe, object, embed, base, link, meta, style, form[action], marquee, plaintext, [onerror], '
    + '[onload], [href^="javascript:"])'
).length"""
_COLUMNS = "env,task,group,tags,policy,split,error_type,error_message,stop_reason"


def _views(page: Any) -> Iterator[str]:
    """The addresses of every kind of view of the hostile run."""
    run, rows = page.evaluate(_LISTED)
    here = f"#/run/{quote(run, safe='')}"
    yield from ("#/", here, f"{here}/rollouts", f"{here}/rollouts?columns={_COLUMNS}")
    [omnibus, *_] = [row for row in rows if row["env"] == "omnibus"]
    for tab in ("", "?tab=raw", "?tab=rollout", "?tab=state&step=70", "?step=60"):
        yield f"{here}/rollout/{omnibus['id']}{tab}"
    named = [row for row in rows if row["env"] != "omnibus"]
    for row in (omnibus, *named[::12]):
        yield f"{here}/group?{urlencode({name: row[name] for name in ('split', 'iteration', 'env', 'group')})}"
        yield f"{here}/rollout/{row['id']}"


def _look(page: Any, base: str, own: str) -> None:
    """Visits every view, wide and narrow, and asserts that nothing ran, was requested elsewhere or overflows."""
    from playwright.sync_api import expect

    for view in list(_views(page)):
        page.goto(f"{base}{view}")
        page.locator("main#view").wait_for()
        page.get_by_label("Loading").first.wait_for(state="detached")
        for size in (WIDE, NARROW):
            page.set_viewport_size(size)
            expect(page.locator("html"), f"{view} at {size}").to_have_js_property("scrollWidth", size["width"])
        assert page.evaluate("[window.hit, ({}).hit]") == [None, None], view
        assert page.evaluate(_MADE) == 0, view
    assert [address for address in page.asked if not address.startswith((own, "data:", "blob:"))] == []


def test_in_the_viewer(guarded: Any, hostile_viewer: Viewer) -> None:
    """Every view of a run whose every field is hostile shows it as text."""
    guarded.goto(hostile_viewer.entry)
    _look(guarded, f"{hostile_viewer.origin}/", hostile_viewer.origin)


def test_in_a_report(guarded: Any, hostile: Path, tmp_path: Path) -> None:
    """The same in a report file."""
    file = tmp_path / "report.html"
    [run] = hostile.iterdir()
    write_report(run, file)
    guarded.context.set_offline(True)
    guarded.goto(file.as_uri())
    _look(guarded, file.as_uri(), "file:///")


def test_there_are_enough() -> None:
    """The corpus has not shrunk by accident."""
    assert len(set(PAYLOADS)) >= 50
