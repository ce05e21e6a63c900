"""The browser of the tests is found or installed, and does not interfere with tests that run their own loops."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import apart, in_use, open_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("playwright")


@pytest.fixture(scope="module")
def opened() -> "Iterator[Browser]":
    with open_browser() as browser:
        yield browser


def title(browser: "Browser") -> str:
    page = browser.new_page()
    page.goto("data:text/html,<title>here</title>")
    return page.title()


@pytest.mark.parametrize("turn", range(2), scope="module")
async def test_async_tests_run_beside_an_open_browser(turn: int, opened: "Browser"):
    """A browser that is open, but not in use, does not prevent async tests, and is usable again afterwards."""
    await asyncio.sleep(0)
    assert opened.is_connected()


@pytest.mark.parametrize("turn", range(2), scope="module")
def test_a_test_with_the_browser_may_run_a_loop(turn: int, opened: "Browser"):
    """Inside `apart` a test may run a loop although it has the browser in use; what it opened is closed afterwards."""
    with in_use(opened):
        assert title(opened) == "here"
        with apart():
            assert asyncio.run(asyncio.sleep(0, "ran")) == "ran"
        assert title(opened) == "here"
    with in_use(opened):
        assert opened.contexts == []


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """An environment without a browser: a PATH with little on it, and no download but from a closed port."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/env").symlink_to(shutil.which("env"))
    tool(tmp_path / "path/sudo", 'shift; exec "$@"')
    return {
        "PATH": str(tmp_path / "path"),
        "HOME": str(tmp_path),
        "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "browsers"),
        "PLAYWRIGHT_DOWNLOAD_HOST": "http://127.0.0.1:1",
    }


def tool(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def install(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(Path(__file__).with_name("browser_install.py"))]
    return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_browser_that_is_there_is_not_installed(machine: dict[str, str], tmp_path: Path):
    """One on the PATH or in ROLLTRACE_CHROMIUM is enough; a name that does not run is reported."""
    tool(tmp_path / "path/apt-get", f"touch {tmp_path}/asked")
    tool(tmp_path / "mine", "exit 0")
    assert install(machine | {"ROLLTRACE_CHROMIUM": str(tmp_path / "mine")}).returncode == 0
    wrong = install(machine | {"ROLLTRACE_CHROMIUM": "/none"})
    assert wrong.returncode == 1
    assert "ROLLTRACE_CHROMIUM is '/none', which does not run" in wrong.stderr
    tool(tmp_path / "path/google-chrome", "exit 0")
    assert install(machine).returncode == 0
    assert not (tmp_path / "asked").exists()


def test_the_distributions_browser_is_installed(machine: dict[str, str], tmp_path: Path):
    """A stand-in that does not run is ignored; package lists are fetched only if they are missing."""
    tool(tmp_path / "path/chromium-browser", "exit 1")
    put = f"/bin/cp {tmp_path}/path/apt-get {tmp_path}/path/chromium"
    tool(tmp_path / "path/apt-get", f'echo "$*" >> {tmp_path}/asked; case "$*" in *install*chromium*) {put};; esac')
    done = install(machine)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (tmp_path / "asked").read_text().splitlines()[0].startswith("-qq install")
    assert "update" not in (tmp_path / "asked").read_text()


@pytest.mark.slow  # Playwright tries its download several times
def test_a_machine_that_cannot_have_a_browser_says_why(machine: dict[str, str], tmp_path: Path):
    """Each way is tried in turn, and the message has their output and what to do."""
    tool(tmp_path / "path/apt-get", 'case "$*" in *install*) echo no such package; exit 100;; esac')
    done = install(machine)
    assert done.returncode == 1
    assert done.stderr.index("no such package") < done.stderr.index("playwright install") < done.stderr.index("by hand")
    assert "ROLLTRACE_CHROMIUM" in done.stderr
