"""A real Chromium for tests: where it is, and one that stays open for many tests."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # it shows our own server only, and containers often allow no sandbox
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@cache
def chromium_path() -> str | None:
    """The Chromium to use: the one that ROLLTRACE_CHROMIUM names, else one of the PATH, else Playwright's; or None."""
    named = os.environ.get("ROLLTRACE_CHROMIUM")
    if named:
        if not _runs(named):
            raise RuntimeError(f"ROLLTRACE_CHROMIUM is {named!r}, which does not run: `{named} --version` fails.")
        return named
    found = (path for name in NAMES if (path := shutil.which(name)) and _runs(path))
    return next(found, None) or _playwrights_own()


@contextmanager
def open_browser() -> Iterator["Browser"]:
    """A headless Chromium that many tests may share; each uses it inside `in_use`. It is gone afterwards.

    Playwright leaves its event loop marked as the thread's running one, in which no async test could run: outside of
    `in_use` that mark is off.
    """
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        raise RuntimeError("There is no Chromium: run `make browser`, or name one in ROLLTRACE_CHROMIUM.")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=FLAGS) as browser,
        apart(),
    ):
        yield browser


@contextmanager
def in_use(browser: "Browser") -> Iterator["Browser"]:
    """The browser, usable; every context that was opened is closed afterwards."""
    asyncio._set_running_loop(browser._loop)
    try:
        yield browser
    finally:
        for context in list(browser.contexts):
            context.close()
        asyncio._set_running_loop(None)


@contextmanager
def apart() -> Iterator[None]:
    """Inside, no loop counts as running in this thread: a test that has the browser in use may run one of its own."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def _runs(path: str) -> bool:
    """Whether it starts at all: some systems have a stand-in under this name."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if _runs(path) else None
