"""How many modules one rollout crosses: from the env to the disk, and from the disk to the viewer's page.

A module counts if one of its functions runs on the way. What the first rollout sets up for all is not counted.
"""

import _thread
import asyncio
import http.client
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import rolltrace


class Echo:
    """A policy that repeats the last message."""

    name = "echo"
    version = None
    context_length = None

    async def complete(self, request: rolltrace.Request) -> rolltrace.Completion:
        """The last message."""
        return rolltrace.Completion(message=rolltrace.Message("assistant", request.messages[-1].content))

    def count_tokens(self, _: rolltrace.Request) -> int | None:
        """Not known."""
        return None


class Crossed:
    """The modules of the package whose functions are called, in every thread that starts after this was made."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.is_counting = False
        threading.setprofile(self._call)
        sys.setprofile(self._call)
        _thread.start_new_thread = partial(self._start, _thread.start_new_thread)  # which `threading` knows nothing of

    def _start(self, start: Callable[..., int], function: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        def run() -> None:
            sys.setprofile(self._call)
            function(*arguments)

        return start(run, ())

    def _call(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if self.is_counting and event == "call" and _is_function(frame.f_code) and name.startswith("rolltrace."):
            self.names.add(name)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & 0x2) and code.co_name != "__getattr__"  # not a module's or a class's body


async def to_disk(out: Path) -> list[str]:
    """The modules that a rollout crosses until it is on disk."""
    crossed = Crossed()
    with rolltrace.create_run(out) as run:
        runner = rolltrace.Runner(Echo(), sink=run)
        builder = rolltrace.PromptOnlyGroup(env="echo", task="1", messages="Say something.", episodes=1)
        async for _ in runner.play([builder]):  # the first one sets up what all share
            run.flush()
        crossed.is_counting = True
        async for _ in runner.play([builder], iteration=1):
            run.flush()
        return sorted(crossed.names)


def to_page(run: Path) -> list[str]:
    """The modules that a viewer needs to answer with one rollout."""
    first, second = (rollout.id for rollout in rolltrace.open_run(run).rollouts())
    command = [sys.executable, __file__, "serve", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            address = process.stdout.readline().strip()
            ask_page(address, run.name, first)
            process.send_signal(signal.SIGUSR1)
            process.stdout.readline()  # it counts from here on
            ask_page(address, run.name, second)
            process.send_signal(signal.SIGUSR2)
            return process.stdout.readline().split()
        finally:
            process.terminate()
            process.wait()


def ask_page(address: str, run: str, rollout: str) -> None:
    """Makes the viewer answer with a rollout."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    headers = {"Authorization": f"Bearer {parse_qs(parts.query)['token'][0]}"}
    connection.request("GET", f"/api/rollout?{urlencode({'run': run, 'id': rollout})}", headers=headers)
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise SystemExit(f"The viewer answered {response.status}: {body!r}")


def serve(run: str) -> None:
    """`rolltrace view`, which begins to count on SIGUSR1 and prints what it has on SIGUSR2."""
    crossed = Crossed()

    def begin(*_: Any) -> None:
        crossed.is_counting = True
        print("counting", flush=True)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, lambda *_: print(*sorted(crossed.names), flush=True))
    sys.argv = ["rolltrace", "view", str(Path(run).parent), "--no-open"]
    runpy.run_module("rolltrace", run_name="__main__")


def main() -> None:
    """Print both counts, and the modules."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for title, names in (("from env to disk", asyncio.run(to_disk(run))), ("from disk to page", to_page(run))):
            print(f"{title}: {len(names)} modules")
            for name in names:
                print(f"  {name}")


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1:2] == ["serve"] else main()
