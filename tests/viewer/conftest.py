"""Real runs, a real viewer over them, and a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rolltrace
from browser import in_use, open_browser
from viewing import Viewer, viewing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


PLAYED = (
    ("arithmetic", "arithmetic", {"groups": 4, "group_size": 4, "iterations": 5}),
    ("calculator", "calculator", {"groups": 2, "group_size": 3}),
    ("rubric", "rubric", {"groups": 2, "group_size": 3}),
    ("preference", "preference", {"groups": 2, "group_size": 4}),
    ("twenty_questions", "twenty_questions", {"groups": 2, "group_size": 2}),
)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, each played by the runner with the scripted policy; no test changes it."""
    folder = tmp_path_factory.mktemp("runs")
    for name, env, numbers in PLAYED:
        rolltrace.play(env, "scripted:noisy", out=folder / name, **numbers)
    return folder


@pytest.fixture(scope="session")
def viewer(runs: Path) -> Iterator[Viewer]:
    """A viewer over them."""
    with viewing(runs) as served:
        yield served


@pytest.fixture(scope="session")
def opened_browser() -> Iterator["Browser"]:
    """A browser that all tests of this process share."""
    pytest.importorskip("playwright.sync_api").expect.set_options(timeout=30_000)
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(opened_browser: "Browser") -> Iterator["Browser"]:
    """The browser, while a test uses it."""
    with in_use(opened_browser) as browser:
        yield browser


@pytest.fixture
def context(browser: "Browser") -> "BrowserContext":
    """A fresh browser context, 1,280 pixels wide."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(30_000)
    return context


@pytest.fixture
def page(context: "BrowserContext") -> Iterator["Page"]:
    """A tab; an error in its console or a breach of the content policy fails the test."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    # The browser also reports a request that is refused on purpose.
    assert [told for told in complaints if not told.startswith("Failed to load resource")] == []
