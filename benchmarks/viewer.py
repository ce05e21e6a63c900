"""How long the viewer takes to answer, over HTTP, about one run of many rollouts, and how much memory it holds.

Every question is new to the server unless its name says otherwise: what it kept of an earlier answer does not help.
"""

import http.client
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import measure
import store_scale

from rolltrace.store.create import create_run
from rolltrace.store.layout import RUN_FILE
from rolltrace.trace.codec import add_checksum
from rolltrace.trace.ids import new_id

RUN = "run"
_PAGE = 100
_POLL_SECONDS = 1.4
"""How often the page asks which runs have changed."""
_SORTS = ("-reward", "seconds", "task", "-advantage", "reward_data.correct", "-metrics.length", "-started_at,env")
_WORDS = (
    "indentation",
    "yield",
    "exceptions",
    "the",
    "generator",
    "nowhere to be found",
    "class",
    "Unicode",
    "(",
    "__",
)

Parameters = list[tuple[str, str]]
Draw = Callable[[random.Random], Parameters]


class Viewer:
    """A viewer in its own process, and a connection to it."""

    def __init__(self, address: str, process: int) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
        self._headers = {"Authorization": f"Bearer {parse_qs(parts.query)['token'][0]}"}
        self.process = process

    def ask(self, question: str, parameters: Parameters, run: str = RUN) -> bytes:
        """The answer to an API request about a run."""
        search = urlencode([("run", run), *parameters])
        self._connection.request("GET", f"/api/{question}?{search}", headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise SystemExit(f"{question} {search}: {response.status} {body[:500]!r}")
        return body


@contextmanager
def serving(folder: Path) -> Iterator[Viewer]:
    """`rolltrace view` over a folder, ended afterwards."""
    command = [sys.executable, "-m", "rolltrace", "view", str(folder), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            yield Viewer(process.stdout.readline().strip(), process.pid)
        finally:
            process.terminate()
            process.wait()


def uncached_filter(rng: random.Random) -> tuple[str, str]:
    """A filter that keeps nearly all rollouts and was never used before."""
    return "filter", f"seed:min:{rng.random() * 1000:.9f}"


def questions(rollouts: int, ids: Sequence[str]) -> dict[str, tuple[str, Draw]]:
    """API paths by name, with functions that draw their parameters."""
    iterations = max(1, rollouts // (store_scale.GROUP_SIZE * store_scale.GROUPS_IN_ITERATION))
    page = ("limit", str(_PAGE))
    columns = ("columns", "iteration,env,group,index,reward,advantage,reward_data.correct,metrics.length,stop_reason")

    def somewhere(rng: random.Random) -> tuple[str, str]:
        return "offset", str(rng.randrange(max(1, rollouts - _PAGE)))

    def group(rng: random.Random) -> Parameters:
        last = min(store_scale.GROUPS_IN_ITERATION, max(1, rollouts // store_scale.GROUP_SIZE))
        place = {"iteration": rng.randrange(iterations), "group": rng.randrange(last)}
        return [("split", "train"), ("env", "scale"), *((name, str(value)) for name, value in place.items())]

    asked: dict[str, tuple[str, Draw]] = {
        "list": ("rollouts", lambda rng: [uncached_filter(rng), page]),
        "list, every kind of column": ("rollouts", lambda rng: [uncached_filter(rng), page, columns]),
        "list, another page of a known order": ("rollouts", lambda rng: [page, columns, somewhere(rng)]),
    }
    for sort in _SORTS:
        asked[f"sort by {sort}"] = ("rollouts", lambda rng, sort=sort: [("sort", sort), uncached_filter(rng), page])
    asked |= {
        "filter by reward and status": ("rollouts", lambda rng: [
            ("filter", f"reward:max:{rng.random()}"), ("filter", "status:is:ok"), uncached_filter(rng), page]),
        "filter by tag and iteration": ("rollouts", lambda rng: [
            ("filter", "tags:has:scale"), ("filter", f"iteration:is:{rng.randrange(iterations)}"), page]),
        "filter by advantage": ("rollouts", lambda rng: [("filter", f"advantage:min:{rng.random()}"), page]),
        "filter by a reward part": ("rollouts", lambda rng: [
            ("filter", f"reward_data.format:min:{rng.random()}"), page]),
        "neighbours": ("neighbours", lambda rng: [("id", rng.choice(ids)), ("sort", "-reward"), uncached_filter(rng)]),
        "facets": ("facets", lambda rng: [("columns", "env,status,stop_reason,tags,policy"), uncached_filter(rng)]),
        "histogram": ("histogram", lambda rng: [("measure", "reward"), uncached_filter(rng)]),
        "histogram of a reward part": (
            "histogram", lambda rng: [("measure", "reward_data.format"), uncached_filter(rng)]),
        "series": ("series", lambda rng: [("measure", "reward"), uncached_filter(rng)]),
        "series of a metric": ("series", lambda rng: [("measure", "metrics.length"), uncached_filter(rng)]),
        "outcomes": ("outcomes", lambda rng: [uncached_filter(rng)]),
        "group": ("group", group),
        "rollout": ("rollout", lambda rng: [("id", rng.choice(ids))]),
        "search": ("rollouts", lambda rng: [("search", rng.choice(_WORDS)), uncached_filter(rng), page]),
        "expression": ("rollouts", lambda rng: [("where", f"seconds < {rng.random()} and reward > 0"), page]),
        "run, known": ("run", lambda _: []),
        "runs, known": ("runs", lambda _: []),
        "revisions": ("revisions", lambda _: []),
    }  # fmt: skip
    return asked


FIRST = {
    "first page of rollouts": ("rollouts", [("limit", str(_PAGE))]),
    "the run": ("run", []),
    "a rollout": ("rollout", []),
    "a search": ("rollouts", [("search", "indentation"), ("limit", "1")]),
}
"""What a fresh server is asked first, when no table is made yet."""


def first_times(viewer: Viewer, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The time of the first request of each kind, which builds the tables."""
    rows = []
    for name, (question, parameters) in FIRST.items():
        named = [("id", ids[0])] if question == "rollout" else []
        rows.append({"first": name, "seconds": _seconds(partial(viewer.ask, question, [*parameters, *named]))})
    return rows


def first_visit(viewer: Viewer, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The first answers, then the slowest ones until all tables are made, and how long that takes."""
    started, rng = time.perf_counter(), random.Random(0)  # noqa: S311 - not for secrets
    rows = first_times(viewer, ids)
    slowest = dict.fromkeys(FIRST, 0.0)
    while json.loads(viewer.ask("damage", []))["coverage"] < 1:
        for row in first_times(viewer, [rng.choice(ids)]):
            slowest[row["first"]] = max(slowest[row["first"]], row["seconds"])
        time.sleep(0.1)
    rows += [{"first": f"{name}, slowest until everything is read", "seconds": most} for name, most in slowest.items()]
    return [*rows, {"first": "everything is read", "seconds": time.perf_counter() - started}]


def again(viewer: Viewer, rollouts: int, ids: Sequence[str], repeat: int) -> list[dict[str, Any]]:
    """The time of each request, with new parameters each time."""
    rows = []
    for name, (question, draw) in questions(rollouts, ids).items():
        rng = random.Random(name)  # noqa: S311 - not for secrets
        viewer.ask(question, draw(rng))
        before = _cpu_seconds(viewer.process)
        times = [_seconds(partial(viewer.ask, question, draw(rng))) for _ in range(repeat)]
        cpu = _cpu_seconds(viewer.process) - before
        rows.append({
            "question": name, "p50 ms": 1000 * measure.median(times), "p95 ms": 1000 * measure.percentile(times, 0.95),
            "max ms": 1000 * max(times), "CPU ms": 1000 * cpu / repeat,
        })  # fmt: skip
    return rows


def many_runs(folder: Path, runs: int, rollouts: int, polls: int) -> list[dict[str, Any]]:
    """The cost of many runs: listing them for the first time and again, a page that waits, and threads after visits."""
    store_scale.in_process("write", folder / "0", str(rollouts))
    for number in range(1, runs):
        copy_run(folder / "0", folder / str(number))
    rows = []
    with serving(folder) as viewer:
        rows.append({"runs": "first list", "figure": _seconds(partial(viewer.ask, "runs", [])), "unit": "s"})
        started = time.perf_counter()
        while json.loads(viewer.ask("runs", []))["pending"]:
            time.sleep(0.1)
        rows.append({"runs": "all numbers", "figure": time.perf_counter() - started, "unit": "s"})
        rows.append({"runs": "list again", "figure": _seconds(partial(viewer.ask, "runs", [])), "unit": "s"})
    with serving(folder) as viewer:
        listed = _seconds(partial(viewer.ask, "runs", []))
        rows.append({"runs": "first list of another server", "figure": listed, "unit": "s"})
        busy, started = _cpu_seconds(viewer.process), time.perf_counter()
        for _ in range(polls):
            viewer.ask("revisions", [])
            time.sleep(1.0)
        share = (_cpu_seconds(viewer.process) - busy) / (time.perf_counter() - started)
        rows.append({"runs": "an idle page", "figure": 100 * share, "unit": "% of a core"})
        for number in range(min(30, runs)):
            viewer.ask("run", [], str(number))
            viewer.ask("rollouts", [("where", "reward > 0")], str(number))
        threads = len(list(Path(f"/proc/{viewer.process}/task").iterdir()))
        rows.append({"runs": "threads after 30 visits", "figure": threads, "unit": ""})
    return rows


def long_rollouts(folder: Path, is_quick: bool) -> list[dict[str, Any]]:
    """The cost of rollouts of 50 MB and more: `show`, the rollout's page for the first time and again, and memory."""
    prose = measure.MarkovText().words(3_700)[:25_000]
    if is_quick:
        record_long(folder / "2 turns", [prose] * 2)
    else:
        record_long(folder / "2,000 turns, 50 MB", [prose] * 2_000)
        record_long(folder / "a message of 80 MB", [prose * 3_200])
        record_long(folder / "100,000 messages", [["?"] * 100_000])
    rows = []
    for path in sorted(folder.iterdir()):
        show = [sys.executable, "-m", "rolltrace", "show", str(path), "g/0"]
        shown = _seconds(partial(subprocess.run, show, stdout=subprocess.DEVNULL, check=True))
        with serving(folder) as viewer:
            [row] = json.loads(viewer.ask("rollouts", [], path.name))["rows"]
            ask = partial(viewer.ask, "rollout", [("id", row["id"])], path.name)
            first, again, size = _seconds(ask), _seconds(ask), len(ask())
            rows.append({
                "rollout": path.name, "show s": shown, "page s": first, "again s": again, "page MB": size / 1e6,
                "peak MB": _peak_megabytes(viewer.process),
            })  # fmt: skip
    return rows


def record_long(path: Path, prompts: Sequence[str | list[str]]) -> None:
    """One rollout with a turn for each prompt: a text, or a list of messages."""
    with create_run(path) as run, run.rollout(env="e", task="t", group="g", index=0) as rollout:
        for prompt in prompts:
            rollout.append(
                [{"role": "user", "content": text} for text in ([prompt] if isinstance(prompt, str) else prompt)]
            )
            rollout.step(response="done", reward=0.0)


def copy_run(source: Path, target: Path) -> None:
    """A copy of a run with its own id and the same files, which take no more space."""
    shutil.copytree(source, target, copy_function=os.link)
    info = json.loads((target / RUN_FILE).read_bytes())
    (target / RUN_FILE).unlink()
    del info["crc"]
    (target / RUN_FILE).write_bytes(add_checksum(json.dumps(info | {"id": new_id()}).encode()))


def growing_run(folder: Path, rate: int, seconds: float) -> list[dict[str, Any]]:
    """The cost of a viewer that follows a growing run, and the age of its answers."""
    writer = multiprocessing.get_context("spawn").Process(target=grow, args=(folder / RUN, rate, seconds))
    writer.start()
    ages: list[float] = []
    newest_at: float | None = None
    try:
        while not list(folder.glob(f"{RUN}/rollouts/*")):
            time.sleep(0.1)
        with serving(folder) as viewer:
            revision, busy, started = "", _cpu_seconds(viewer.process), time.perf_counter()
            while time.perf_counter() - started < seconds or (not ages and time.perf_counter() - started < 60.0):
                now = json.loads(viewer.ask("revisions", []))["revisions"][RUN]
                if now != revision:
                    newest = [("sort", "-started_at"), ("columns", "started_at"), ("limit", str(_PAGE))]
                    rows = json.loads(viewer.ask("rollouts", newest))["rows"]
                    viewer.ask("damage", [])
                    if newest_at is not None:
                        ages.append(time.time() - newest_at)
                    newest_at = datetime.fromisoformat(rows[0]["started_at"]).timestamp() if rows else None
                    revision = now
                time.sleep(_POLL_SECONDS)
            share = (_cpu_seconds(viewer.process) - busy) / (time.perf_counter() - started)
            peak = _peak_megabytes(viewer.process)
    finally:
        writer.terminate()
        writer.join()
    return [
        {
            "growing": "age of a page before it is renewed, median",
            "figure": measure.median(ages),
            "unit": "s",
        },
        {"growing": "age of a page before it is renewed, most", "figure": max(ages), "unit": "s"},
        {"growing": "CPU of the viewer", "figure": 100 * share, "unit": "% of a core"},
        {"growing": "memory of the viewer", "figure": peak, "unit": "MB"},
    ]


def grow(path: Path, rate: int, seconds: float) -> None:
    """Write rollouts at a steady rate."""
    texts = [measure.MarkovText().words(store_scale.WORDS) for _ in range(200)]
    rng = random.Random(0)  # noqa: S311 - not for secrets
    with create_run(path, trace="full") as run:
        started = time.perf_counter()
        for number in range(int(rate * seconds * 2)):
            store_scale.play(run, number, rng.choices(texts, k=4), rng.random())
            ahead = number / rate - (time.perf_counter() - started)
            if ahead > 0.02:
                time.sleep(ahead)


def _seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _cpu_seconds(process: int) -> float:
    """The CPU time of a process, or 0 if it is unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_megabytes(process: int) -> float:
    """The peak memory of a process, and the current memory of its children."""
    total = 0.0
    for one, field in ((process, "VmHWM"), *((child, "VmRSS") for child in _children(process))):
        try:
            lines = Path(f"/proc/{one}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))
    return total


def _children(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def measure_all(folder: Path, rollouts: int, repeat: int) -> dict[str, list[dict[str, Any]]]:
    """Creates the run if necessary, and measures everything."""
    path = folder / RUN
    if not path.exists():
        store_scale.in_process("write", path, str(rollouts))
    ids = json.loads((folder / store_scale.ID_FILE).read_text())
    with serving(folder) as viewer:
        first = first_visit(viewer, ids)
        built = _peak_megabytes(viewer.process)
    with serving(folder) as viewer:
        reopened = [{**row, "first": f"{row['first']}, tables made"} for row in first_times(viewer, ids)]
        answered = again(viewer, rollouts, ids, repeat)
        peak = _peak_megabytes(viewer.process)
    scored = folder / "scored" / RUN
    shutil.rmtree(scored.parent, ignore_errors=True)
    copy_run(path, scored)
    store_scale.in_process("late_scores", scored)
    shutil.rmtree(scored / "cache", ignore_errors=True)
    with serving(scored.parent) as viewer:
        late = [{**row, "first": f"{row['first']}, late scores"} for row in first_visit(viewer, ids)]
    with tempfile.TemporaryDirectory() as other:
        runs = many_runs(Path(other), max(2, rollouts // 200), min(rollouts, 1_360), 1 if repeat == 1 else 20)
    with tempfile.TemporaryDirectory() as other:
        long = long_rollouts(Path(other), repeat == 1)
    with tempfile.TemporaryDirectory() as other:
        growing = growing_run(Path(other), 2_000, 3.0 if repeat == 1 else 60.0)
    memory = [{"while": "making tables", "peak MB": built}, {"while": "answering", "peak MB": peak}]
    return {
        "The first answer of a server": [*first, *reopened, *late], "Questions": answered, "Memory": memory,
        "Many runs": runs, "Long rollouts": long, "A run that grows by 2,000 rollouts a second": growing,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print tables."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=40, help="how often each question is asked")
    parser.add_argument("--folder", type=Path, help="where to put the run, which is kept; by default a temporary place")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rollouts, options.repeat = 600, 1
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        tables = measure_all(options.folder, options.rollouts, options.repeat)
    else:
        with tempfile.TemporaryDirectory() as folder:
            tables = measure_all(Path(folder), options.rollouts, options.repeat)
    report = {
        "benchmark": "viewer", **measure.machine(), "figures": tables,
        "parameters": {"rollouts": options.rollouts, "repeat": options.repeat},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
