"""How old a rollout in an object store is when another process sees it: a reader's SQL, and the answers of the viewer.

Several processes write one run at a local S3 server, without a call of `flush`.
Needs: pip install obstore "moto[server]".
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import measure

import rolltrace

ADDRESS = "s3://bench/one"
READ_SECONDS = 0.5
PAGE_SECONDS = 1.5
"""How often the reader asks, and how often the page does."""
SERVER = "from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start(); "
SERVER += "print(s.get_host_and_port()[1], flush=True); import sys; sys.stdin.read(); import os; os._exit(0)"


def write(group: str, seconds: float) -> None:
    """Records ten rollouts a second."""
    deadline = time.monotonic() + seconds
    index = 0
    with rolltrace.create_run(ADDRESS, join=True, continues=()) as run:
        while time.monotonic() < deadline:
            with run.rollout(env="sums", task="t", group=group, index=index) as one:
                one.step(prompt="1 + 1? " * 200, response="2", reward=index % 2)
            index += 1
            time.sleep(0.1)


class Watch:
    """The ages of the rollouts that one reader has shown."""

    def __init__(self, seconds: float, look: Callable[[], Iterator[tuple[str, float]]]) -> None:
        self.ages: list[float] = []
        self.milliseconds: list[float] = []
        self._look = look
        self._seconds = seconds
        self._seen: set[str] = set()
        self._next = 0.0

    def look_if_due(self) -> None:
        """Looks if it is time, and notes the age of new rollouts."""
        if (began := time.monotonic()) < self._next:
            return
        self._next = began + self._seconds
        shown = list(self._look())
        now = time.time()
        self.milliseconds.append(1000 * (time.monotonic() - began))
        self.ages += [now - ended for name, ended in shown if name not in self._seen]
        self._seen |= {name for name, _ in shown}

    def row(self, name: str) -> dict[str, Any]:
        """The figures."""
        return {
            "way": name,
            "rollouts": len(self.ages),
            "median age, s": measure.median(self.ages),
            "largest age, s": max(self.ages),
            "a look, ms": measure.median(self.milliseconds),
        }


@contextlib.contextmanager
def process(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A Python process that prints a line when it is ready."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "ignore", *words]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as started:  # noqa: S603 - this interpreter
        try:
            yield started
        finally:
            started.kill()


def measure_ages(writers: int, seconds: float) -> list[dict[str, Any]]:
    """Watch a run that several processes write."""
    with contextlib.ExitStack() as stack:
        endpoint = f"http://127.0.0.1:{int(_line(stack.enter_context(process('-c', SERVER))))}"
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bench", data=b"", method="PUT")).close()  # noqa: S310 - the server
        cache = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        os.environ.update(settings, AWS_ENDPOINT_URL=endpoint, XDG_CACHE_HOME=cache)
        rolltrace.create_run(ADDRESS).close()
        words = ("-m", "rolltrace", "view", "s3://bench", "--no-open", "--port", "0")
        viewer = urlsplit(_line(stack.enter_context(process(*words))))
        token = parse_qs(viewer.query)["token"][0]
        run = stack.enter_context(rolltrace.open_run(ADDRESS))

        def read() -> Iterator[tuple[str, float]]:
            for name, ended in run.sql("select id, epoch_us(ended_at) from rollouts"):
                yield name, ended / 1e6

        def view() -> Iterator[tuple[str, float]]:
            url = f"{viewer.scheme}://{viewer.netloc}/api/rollouts?run=one&sort=-id&limit=500&columns=ended_at"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the viewer
            with urllib.request.urlopen(request) as answer:  # noqa: S310 - the viewer
                for row in json.loads(answer.read())["rows"]:
                    yield row["id"], datetime.fromisoformat(row["ended_at"]).timestamp()

        watches = {"SQL": Watch(READ_SECONDS, read), "viewer": Watch(PAGE_SECONDS, view)}
        started = [stack.enter_context(process(__file__, "--write", f"g{one}", str(seconds))) for one in range(writers)]
        while any(one.poll() is None for one in started):
            for watch in watches.values():
                watch.look_if_due()
            time.sleep(0.02)
        return [watch.row(name) for name, watch in watches.items()]


def _line(started: "subprocess.Popen[str]") -> str:
    assert started.stdout is not None  # noqa: S101 - it was asked for
    return started.stdout.readline().strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the table; with `--write`, be one of the processes that write."""
    parser = measure.parser(__doc__)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--write", nargs=2, metavar=("GROUP", "SECONDS"))
    options = parser.parse_args(arguments)
    if options.write:
        write(options.write[0], float(options.write[1]))
        return
    seconds = 5.0 if options.quick else options.seconds
    tables = {"Age of a rollout when it is first seen": measure_ages(options.writers, seconds)}
    parameters = {"writers": options.writers, "seconds": seconds}
    report = {"benchmark": "object_store_age", **measure.machine(), "figures": tables, "parameters": parameters}
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
