"""The page of all runs, in a real browser."""

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import rolltrace
from rolltrace.store.ledger import decode_ledger, encode_ledger
from rolltrace.store.writer import RunWriter
from viewing import Viewer, viewing

pytest.importorskip("playwright")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route


HOSTILE = "odd <img src=x onerror=alert(1)> \u202e"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer over runs: one unreadable, one with failures, one with a hostile name."""
    folder = tmp_path_factory.mktemp("mixed")
    record(folder / "below" / "failing", [0.0, 0.5, None, 1.0])
    record(folder / HOSTILE, [0.25])
    (folder / "broken" / "rollouts").mkdir(parents=True)
    (folder / "broken" / "run.json").write_text("{nonsense")
    with viewing(folder) as viewer:
        yield viewer


def record(path: Path, rewards: list[float | None]) -> None:
    """A run with one rollout in each iteration; a rollout without a reward fails."""
    with rolltrace.create_run(path, planned=len(rewards)) as run:
        add(run, rewards)


def add(run: RunWriter, rewards: list[float | None], first: int = 0) -> None:
    """Records more rollouts."""
    for iteration, reward in enumerate(rewards, first):
        try:
            with run.rollout(env="sums", task="t", group="g", index=0, iteration=iteration, policy="small") as rollout:
                if reward is None:
                    raise TimeoutError("no answer")
                rollout.step(prompt=[{"role": "user", "content": "1+1"}], response="2", reward=reward)
        except TimeoutError:
            pass


def enter(page: "Page", viewer: Viewer, address: str = "#/") -> None:
    """Opens the viewer at an address."""
    page.goto(viewer.entry)
    page.goto(f"{viewer.origin}/{address}")


def row_of(page: "Page", key: str) -> "Locator":
    """The row of a run."""
    return page.locator("tr", has=page.locator(f'[data-run="{key}"]'))


def keys(page: "Page") -> list[str | None]:
    """The keys of the listed runs, in order."""
    return [link.get_attribute("data-run") for link in page.locator("[data-run]").all()]


def test_each_run_is_listed_with_its_numbers(page: "Page", viewer: Viewer) -> None:
    """A row has the number of rollouts, the course of the reward, envs and policies, and a link to the run."""
    enter(page, viewer)
    row = row_of(page, "arithmetic")
    expect(row.get_by_role("cell").nth(1)).to_contain_text("80")
    expect(row.get_by_role("img", name="Mean reward over iterations")).to_be_visible()
    expect(row).to_contain_text("scripted:noisy")
    expect(row).to_contain_text("complete")
    row.get_by_role("link", name="arithmetic").click()
    expect(page).to_have_url(re.compile(r"#/run/arithmetic$"))


def test_failures_damage_and_hostile_names_are_shown(page: "Page", mixed: Viewer) -> None:
    """Failures are counted with a link; an unreadable run says why; a name is only text."""
    enter(page, mixed)
    failing = row_of(page, "below/failing")
    expect(failing.get_by_role("link", name="1 rollout failed")).to_have_attribute(
        "href", "#/run/below%2Ffailing/rollouts?filter=status%3Ais%3Aerror"
    )
    expect(failing).to_contain_text("25 %")
    expect(row_of(page, "broken")).to_contain_text("cannot be read")
    expect(row_of(page, "broken").locator(".long-text")).to_contain_text("run.json")
    expect(page.get_by_text("<img src=x onerror=alert(1)>")).to_be_visible()
    expect(page.get_by_title("U+202E, an invisible character")).to_be_visible()
    assert page.locator("main img").count() == 0


def test_a_truncated_list_says_so(page: "Page", viewer: Viewer) -> None:
    """If there are more runs than a list holds, it says how many of how many are shown."""

    def more(route: "Route") -> None:
        response = route.fetch()
        route.fulfill(response=response, json={**response.json(), "total": 3_000})

    page.route("**/api/runs*", more)
    enter(page, viewer)
    expect(page.locator(".runs-where")).to_contain_text(f"{5} of 3,000 runs")
    expect(page.locator(".runs-where")).to_contain_text(f"Rolltrace {rolltrace.__version__}")
    expect(page.get_by_text("Only the newest")).to_be_visible()


def test_the_order_is_in_the_address(page: "Page", viewer: Viewer) -> None:
    """A click on a heading sorts, another reverses, the address reproduces it and Back undoes it."""
    enter(page, viewer)
    page.get_by_role("link", name="Run", exact=True).click()
    expect(page.get_by_role("columnheader", name="Run")).to_have_attribute("aria-sort", "ascending")
    assert keys(page) == sorted(path.name for path in viewer.folder.iterdir())
    page.get_by_role("link", name=re.compile("^Run")).click()
    expect(page).to_have_url(re.compile(r"#/\?sort=-name$"))
    page.reload()
    expect(page.locator("[data-run]").first).to_have_attribute("data-run", "twenty_questions")
    page.go_back()
    expect(page.locator("[data-run]").first).to_have_attribute("data-run", "arithmetic")


def test_runs_are_filtered_and_walked_by_keyboard(page: "Page", viewer: Viewer) -> None:
    """A slash focuses the filter, j and k move through the runs, Enter opens one, and the filter is in the address."""
    enter(page, viewer, "#/?sort=name")
    expect(page.locator("[data-run]")).to_have_count(5)
    page.keyboard.press("/")
    page.keyboard.type("scripted RIC")
    expect(page.locator("[data-run]")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"q=scripted"))
    page.keyboard.type("zzz")
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
    page.get_by_role("button", name="Show all runs").click()
    expect(page.locator("[data-run]")).to_have_count(5)
    for key in ("j", "j", "j", "k"):
        page.keyboard.press(key)
    expect(page.locator('[data-run="calculator"]')).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"#/run/calculator$"))


def test_runs_appear_and_grow_without_a_reload(page: "Page", tmp_path: Path) -> None:
    """An empty folder says how to begin; a new run appears, and its numbers grow."""
    with viewing(tmp_path) as viewer:
        enter(page, viewer)
        expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
        page.evaluate("() => { window.same = true; }")
        with rolltrace.create_run(tmp_path / "first", planned=4) as run:
            add(run, [0.5])
            run.flush()
            row = row_of(page, "first")
            expect(row.locator(".runs-progress")).to_contain_text("1 of 4")
            expect(row).to_contain_text("running")
            add(run, [0.75, None], first=1)
            run.flush()
            expect(row.locator(".runs-progress")).to_contain_text("3 of 4")
            expect(row.locator(".runs-errors")).to_contain_text("1")
        expect(row).to_contain_text("interrupted")
        assert page.evaluate("() => window.same") is True


def test_the_list_fits_a_narrow_screen(page: "Page", mixed: Viewer) -> None:
    """At 390 pixels each run is a card, and nothing is wider than the screen."""
    page.set_viewport_size({"width": 390, "height": 800})
    enter(page, mixed)
    for key in ("below/failing", "broken"):
        box = row_of(page, key).bounding_box()
        assert box is not None
        assert box["width"] <= 390
        assert box["height"] > 60
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_a_server_that_is_gone_is_reported(page: "Page", tmp_path: Path) -> None:
    """The contents stay, with a note that they may be stale."""
    record(tmp_path / "run", [0.5])
    with viewing(tmp_path) as viewer:
        enter(page, viewer)
        expect(row_of(page, "run")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        viewer.process.kill()
        expect(page.get_by_role("alert")).to_contain_text("is `rolltrace view` still running?")
        expect(row_of(page, "run")).to_be_visible()


def test_sessions_that_collide_are_reported_on_every_page(page: "Page", tmp_path: Path) -> None:
    """The list, the run, the group and the rollout say that two sessions recorded the same rollout at once."""
    with rolltrace.create_run(tmp_path / "ranks") as one, rolltrace.create_run(tmp_path / "ranks", join=True) as other:
        add(one, [0.5])
        add(other, [1.0])
    with viewing(tmp_path) as viewer:
        enter(page, viewer)
        expect(row_of(page, "ranks")).to_contain_text("2 collide")
        enter(page, viewer, "#/run/ranks")
        expect(page.locator(".run-heading")).to_contain_text("2 collide")
        expect(page.locator("#run-ledger")).to_contain_text("Give each rank or worker groups or indices of its own")
        enter(page, viewer, "#/run/ranks/group?split=train&iteration=0&env=sums&group=g")
        expect(page.get_by_role("note").filter(has_text="Collision")).to_contain_text("2 members have a place")
        page.get_by_role("article", name=re.compile("^Member ")).get_by_role("link").first.click()
        expect(page.locator(".rollout-header")).to_contain_text("collides")


def test_a_dead_session_is_shown(page: "Page", tmp_path: Path) -> None:
    """The list and the run's page say that a run died."""
    with rolltrace.create_run(tmp_path / "killed") as run:
        add(run, [0.5])
    [ledger] = (tmp_path / "killed" / "ledger").iterdir()
    last = decode_ledger(ledger.read_bytes().splitlines(keepends=True)[-1])
    with ledger.open("ab") as file:
        file.write(encode_ledger(replace(last, closed=False, written_at=last.written_at - timedelta(minutes=1))))
    with viewing(tmp_path) as viewer:
        enter(page, viewer)
        expect(row_of(page, "killed")).to_contain_text("died")
        enter(page, viewer, "#/run/killed")
        expect(page.locator(".run-heading")).to_contain_text("died")
        expect(page.get_by_role("main")).to_contain_text("a session died")
