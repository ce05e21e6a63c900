"""A real viewer over runs, started as a user starts it, for tests that look at it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit


class Viewer(NamedTuple):
    """A viewer that is being served."""

    entry: str
    """The address with the token, as it was printed."""
    folder: Path
    process: "subprocess.Popen[str]"

    @property
    def origin(self) -> str:
        """The address without path and token."""
        parts = urlsplit(self.entry)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def token(self) -> str:
        """What lets one in."""
        return parse_qs(urlsplit(self.entry).query)["token"][0]


@contextmanager
def viewing(folder: Path, *options: str) -> Iterator[Viewer]:
    """`rolltrace view` over a folder of runs; it is gone afterwards."""
    command = [sys.executable, "-m", "rolltrace", "view", str(folder), "--no-open", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                process.kill()
                raise AssertionError(f"The viewer did not start: {process.communicate()[1]}")
            yield Viewer(address, folder, process)
        finally:
            process.terminate()
            process.communicate(timeout=60)
