"""What a run of many rollouts costs to write, compress, index and ask; each part in a process of its own."""

import contextlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import measure

from rolltrace.query.compact import closed_segments, compact
from rolltrace.query.run import open_run
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.store.writer import RunWriter
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Status, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Usage

GROUP_SIZE = 8
GROUPS_IN_ITERATION = 64
WORDS = 100
"""In each of the four messages of a rollout: about 4.4 KB a line."""
PARAGRAPHS = 40_000
"""So many different texts that few come twice in what is compressed at once."""
ID_FILE = "ids.json"
_BATCH = 2_000
_KEPT_IDS = 500
_PAGE = 50
_FIRST_GETS = 10
_REPEATS = 3

LISTINGS: dict[str, dict[str, Any]] = {
    "as written": {},
    "latest iteration first": {"order_by": 'iteration desc, "group", "index"'},
    "lowest reward first": {"order_by": "reward, id"},
    "longest first": {"order_by": "seconds desc"},
    "failed": {"where": "status <> 'ok'"},
    "one group": {"where": "iteration = 0 and \"group\" = '3'", "order_by": '"index"'},
    "by a metric": {"where": "metrics['length'] > 0.99", "order_by": "id"},
}
QUESTIONS = {
    "mean reward by iteration": "select iteration, avg(reward), count(*) from rollouts group by 1 order by 1",
    "stop reasons": "select stop_reason, count(*) / sum(count(*)) over () from rollouts group by 1",
    "groups with a signal": "select iteration, avg(has_signal::int) from groups group by 1 order by 1",
    "steps by termination": "select termination, count(*), avg(reward) from steps group by 1",
    "mean of a reward part": "select avg(reward_data['correct']) from steps",
}


# What each child process does; its answer is one object


def write(path: Path, count: str) -> dict[str, Any]:
    """Writes the run; the time to generate the rollouts is not counted."""
    rollouts = int(count)
    texts, rng = _texts(rollouts), random.Random(0)  # noqa: S311 - not for secrets
    cpu = wall = 0.0
    kept: list[str] = []
    every = max(1, rollouts // _KEPT_IDS)
    with create_run(path, trace="full") as run:
        for first in range(0, rollouts, _BATCH):
            numbers = range(first, min(first + _BATCH, rollouts))
            plans = [(_header(run, number), rng.choices(texts, k=4), rng.random()) for number in numbers]
            kept += [header.id for number, (header, _, _) in zip(numbers, plans, strict=True) if number % every == 0]
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            for header, said, luck in plans:
                _play(run.begin(header), said, luck, run)
            cpu, wall = cpu + time.process_time() - cpu_before, wall + time.perf_counter() - wall_before
        cpu_before, wall_before = time.process_time(), time.perf_counter()
    cpu, wall = cpu + time.process_time() - cpu_before, wall + time.perf_counter() - wall_before
    (path.parent / ID_FILE).write_text(json.dumps(kept))
    lost = run.ledger.dispatched - run.ledger.recorded
    size = measure.folder_bytes(path / "rollouts")
    return {"rollouts": rollouts, "lost": lost, "seconds": wall, "CPU seconds": cpu, "MB on disk": size / 1e6}


def _texts(rollouts: int) -> list[str]:
    prose = measure.MarkovText()
    return [prose.words(WORDS) for _ in range(min(PARAGRAPHS, 4 * rollouts))]


def scatter(path: Path, count: str, segments: str, writers: str) -> dict[str, Any]:
    """Writes the same in many small segments from several writers, half of which are not closed."""
    rollouts, texts, rng = int(count), _texts(int(count)), random.Random(0)  # noqa: S311 - not for secrets
    kept: list[str] = []
    size = Recording(segment_bytes=max(4_096, 4_431 * rollouts // int(segments)))
    opened = [create_run(path, trace=size, join=number > 0) for number in range(int(writers))]
    for number in range(rollouts):
        run = opened[number // GROUP_SIZE % len(opened)]
        header = _header(run, number)
        _play(run.begin(header), rng.choices(texts, k=4), rng.random(), run)
        if number % max(1, rollouts // _KEPT_IDS) == 0:
            kept.append(header.id)
        if number % _BATCH == 0:
            for one in opened:
                one.flush()
    for number, run in enumerate(opened):
        run.flush() if number % 2 else run.close()
    (path.parent / ID_FILE).write_text(json.dumps(kept))
    print(json.dumps({"segments": len(list((path / "rollouts").iterdir()))}), flush=True)
    os._exit(0)  # as if the writers went on


def late_scores(path: Path) -> dict[str, Any]:
    """Writes a late score for every rollout, of the same value, so that listings have the same rollouts."""
    with open_run(path) as run:
        rewards = run.sql("select id, reward from rollouts").fetchall()
    with create_run(path, join=True) as writer:
        seconds = _seconds(lambda: [writer.score(one, "reward", reward) for one, reward in rewards])
    return {"scores": len(rewards), "seconds": seconds}


def play(run: RunWriter, number: int, said: Sequence[str], luck: float) -> None:
    """Writes one rollout."""
    _play(run.begin(_header(run, number)), said, luck, run)


def _header(run: RunWriter, number: int) -> Header:
    group, index = divmod(number, GROUP_SIZE)
    iteration, group = divmod(group, GROUPS_IN_ITERATION)
    return Header(
        id=new_id(), run=run.run, session=run.session, iteration=iteration, env="scale", task=f"task-{group}",
        task_data={"answer": str(number)}, group=str(group), index=index, policy="policy", policy_version=iteration,
        seed=number, tags=("scale",), started_at=datetime.now(UTC),
    )  # fmt: skip


def _play(rollout_builder: RolloutBuilder, said: Sequence[str], luck: float, run: RunWriter) -> None:
    """Two turns; one rollout in fifty fails."""
    question, first, answer, second = said
    rollout_builder.extend([Message("user", question)])
    rewards = (0.0, float(luck > 0.5))
    for text, reward in zip((first, second), rewards, strict=True):
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(
            Message("assistant", text), reward=reward, env_reward=reward, env_state={"turn": 1},
            reward_data={"correct": reward, "format": luck}, metrics={"length": luck}, termination=Termination.EOS,
            usage=Usage(200, 120), seconds=luck,
        )  # fmt: skip
        if text is first:
            rollout_builder.extend([Message("user", answer)])
    rollout_builder.metrics["length"] = luck
    failed = luck < 0.02
    run.end(rollout_builder, Outcome(
        ended_at=datetime.now(UTC), status=Status.ERROR if failed else Status.OK,
        stop_reason=StopReason.ERROR if failed else StopReason.COMPLETED,
        stopped_by=StoppedBy.RUNNER if failed else StoppedBy.ENV, error=None,
        reward=None if failed else sum(rewards), reward_so_far=sum(rewards), unclamped_reward=None,
    ))  # fmt: skip


def compress(path: Path) -> dict[str, Any]:
    """Compresses what the writer has not already compressed."""
    plain = [segment for segment in closed_segments(RunReader(path)) if segment.parent.name == "rollouts"]
    size = sum(segment.stat().st_size for segment in plain)
    seconds = _seconds(lambda: [compress_segment(segment) for segment in plain])
    after = measure.folder_bytes(path / "rollouts")
    return {"segments": len(plain), "plain MB": size / 1e6, "seconds": seconds, "MB on disk": after / 1e6}


def tables(path: Path) -> dict[str, Any]:
    """Builds all tables, from what is not in the cache."""
    before = measure.peak_megabytes()
    seconds = _seconds(lambda: open_run(path).sql("select count(*) from rollouts").fetchall())
    size = measure.folder_bytes(path / "cache") if (path / "cache").exists() else 0
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds, "peak MB": measure.peak_megabytes(), "MB before": before, "cache MB": size / 1e6,
        "peak MB of a child": children.ru_maxrss / 1024,
        "CPU seconds of children": children.ru_utime + children.ru_stime,
    }  # fmt: skip


def first_page(path: Path) -> dict[str, Any]:
    """The first page of each listing of a run that was never visited, from what is ready."""
    times, covered = [], []
    for listed in LISTINGS.values():
        shutil.rmtree(path / "cache", ignore_errors=True)
        with open_run(path, partial=True) as run:
            times.append(_seconds(lambda listed=listed, run=run: list(run.rollouts(**listed, limit=_PAGE))))
            covered.append(run.coverage)
    return {"slowest s": max(times), "median s": measure.median(times), "least covered": min(covered)}


def deep_page(path: Path) -> dict[str, Any]:
    """A page at the end of the listing by reward, in a fresh process, and again."""
    opened = open_run(path)
    [(count,)] = opened.sql("select count(*) from rollouts").fetchall()
    statement = "select id from rollouts order by reward, id limit ? offset ?"
    return _twice(lambda: opened.sql(statement, [_PAGE, max(count - 1_000, 0)]).fetchall())


def first_get(path: Path) -> dict[str, Any]:
    """Looks up one rollout by id in a run without an index, several times."""
    times = []
    for rollout in random.Random(1).choices(_ids(path), k=_FIRST_GETS):  # noqa: S311 - not for secrets
        shutil.rmtree(path / "cache", ignore_errors=True)
        times.append(_seconds(lambda rollout=rollout: open_run(path).get(rollout)))
    return {"first ms": 1000 * max(times), "median ms": 1000 * measure.median(times)}


def get(path: Path) -> dict[str, Any]:
    """One rollout by id: the first in a fresh process, then many others."""
    ids = _ids(path)
    random.Random(1).shuffle(ids)  # noqa: S311 - not for secrets
    opened = open_run(path)
    first = _seconds(lambda: opened.get(ids[0]))
    later = [_seconds(lambda rollout=rollout: opened.get(rollout)) for rollout in ids[1:]] or [first]
    return {
        "first ms": 1000 * first, "median ms": 1000 * measure.median(later),
        "p99 ms": 1000 * measure.percentile(later, 0.99),
    }  # fmt: skip


def listing(path: Path, name: str) -> dict[str, Any]:
    """The first page of a listing, whole rollouts included: in a fresh process, and again."""
    opened = open_run(path)
    return _twice(lambda: list(opened.rollouts(**LISTINGS[name], limit=_PAGE)))


def question(path: Path, name: str) -> dict[str, Any]:
    """A question in SQL: in a fresh process, and again."""
    opened = open_run(path)
    return _twice(lambda: opened.sql(QUESTIONS[name]).fetchall())


def _twice(ask: Callable[[], list[Any]]) -> dict[str, Any]:
    rows: list[Any] = []
    first = _seconds(lambda: rows.extend(ask()))
    before = time.process_time()
    again = measure.median([_seconds(ask) for _ in range(_REPEATS)])
    cpu = (time.process_time() - before) / _REPEATS
    return {"rows": len(rows), "first ms": 1000 * first, "again ms": 1000 * again, "CPU ms": 1000 * cpu}


def compaction(path: Path) -> dict[str, Any]:
    """`rolltrace compact`."""
    seconds = _seconds(lambda: compact(path))
    size = measure.folder_bytes(path / "cache")
    return {"seconds": seconds, "cache MB": size / 1e6, "peak MB": measure.peak_megabytes()}


def _ids(path: Path) -> list[str]:
    found: list[str] = json.loads((path.parent / ID_FILE).read_text())
    return found


def _seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    part.__name__: part
    for part in (
        write,
        scatter,
        late_scores,
        compress,
        first_get,
        first_page,
        tables,
        get,
        listing,
        deep_page,
        question,
        compaction,
    )
}


# The parent

Do = Callable[..., dict[str, Any]]
"""Does one part."""


def in_child(part: str, path: Path, *more: str) -> dict[str, Any]:
    """One part in a fresh process."""
    words = [sys.executable, __file__, "--part", part, str(path), *more]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own code
    if ran.returncode != 0:
        raise SystemExit(f"{part} failed:\n{ran.stderr}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


def in_process(part: str, path: Path, *more: str) -> dict[str, Any]:
    """Runs one part in this process, for sizes at which figures mean nothing."""
    return PARTS[part](path, *more)


def questions(path: Path, do: Do, when: str) -> Iterator[dict[str, Any]]:
    """Every listing and question."""
    for part, names in (("listing", LISTINGS), ("question", QUESTIONS)):
        for name in names:
            yield {"when": when, "kind": part, "what": name, **do(part, path, name)}


def _ratios(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratios of CPU time to the earlier measurement."""
    return [
        {
            "what": one["what"], "first ms": two["first ms"], "again ms": two["again ms"], "CPU ms": two["CPU ms"],
            "CPU, times": two["CPU ms"] / one["CPU ms"],
        }
        for one, two in zip(before, after, strict=False)
    ]  # fmt: skip


def measure_scattered(
    folder: Path, rollouts: int, segments: int, writers: int, do: Do
) -> dict[str, list[dict[str, Any]]]:
    """The same rollouts in few segments and in many: the first page, all tables, one rollout, and listings."""
    rows: list[list[dict[str, Any]]] = []
    for name in ("few", "many"):
        path = folder / name / "run"
        path.parent.mkdir(parents=True)
        if name == "few":
            do("write", path, str(rollouts))
        else:
            in_child("scatter", path, str(rollouts), str(segments), str(writers))
        page, got_first = do("first_page", path), do("first_get", path)
        built, got = do("tables", path), do("get", path)
        rows.append([
            {"what": "first page of a run never visited", "ms": 1000 * page["median s"]},
            {"what": "get of a run never visited", "ms": got_first["median ms"]},
            {"what": "all tables", "ms": 1000 * built["seconds"]},
            {"what": "get", "ms": got["median ms"]},
            *({"what": one["what"], "ms": one["again ms"]} for one in questions(path, do, "")),
        ])  # fmt: skip
    few, many = rows
    return {
        f"{rollouts} rollouts in {segments} segments from {writers} writers, half of which are open": [
            {"what": one["what"], "few ms": one["ms"], "many ms": two["ms"], "times": two["ms"] / one["ms"]}
            for one, two in zip(few, many, strict=True)
        ]
    }


def measure_all(folder: Path, rollouts: int, do: Do) -> dict[str, list[dict[str, Any]]]:
    """All parts, in the order in which a run meets them."""
    path = folder / "run"
    written = do("write", path, str(rollouts))
    compressed = do("compress", path)
    got_first = do("first_get", path)
    first_pages = do("first_page", path)
    built = do("tables", path)
    for row in (written, built):
        row["rollouts per second"] = rollouts / row["seconds"]
    got = do("get", path)
    deep = do("deep_page", path)
    asked = list(questions(path, do, "indexed"))
    scored = do("late_scores", path)
    scored |= {"tables s": do("tables", path)["seconds"]}
    late = list(questions(path, do, "scored"))
    deep_late = do("deep_page", path)
    ratios = _ratios([*asked, {"what": "deep page", **deep}], [*late, deep_late])
    compacted = do("compaction", path)
    asked += questions(path, do, "compacted")
    got_again = do("get", path)
    return {
        "Writing": [written],
        "Compressing": [compressed],
        "Making all tables": [built],
        "One rollout by id": [
            {"when": when, **row}
            for when, row in (("never visited", got_first), ("indexed", got), ("compacted", got_again))
        ],
        f"First page ({_PAGE} rollouts) of a run never visited": [first_pages],
        "Page at the end of a listing": [{"when": "indexed", **deep}, {"when": "scored", **deep_late}],
        "Writing a late score for every rollout": [scored],
        "With a late score for every rollout": ratios,
        f"First page ({_PAGE} rollouts) and SQL": asked,
        "Compaction": [compacted],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every part and print tables."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--segments", type=int, help="instead compare few segments with so many")
    parser.add_argument("--writers", type=int, default=50, help="how many write those segments")
    parser.add_argument("--folder", type=Path, help="where to put the run, which is kept; by default a temporary place")
    parser.add_argument("--part", nargs="+", metavar=("PART", "PATH"), help="only this, of the run that is there")
    options = parser.parse_args(arguments)
    if options.part is not None:
        part, path, *more = options.part
        print(json.dumps(PARTS[part](Path(path), *more)))
        return
    do = in_child
    if options.quick:
        options.rollouts, do = 200, in_process
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if options.segments is None:
            tables = measure_all(folder, options.rollouts, do)
        else:
            tables = measure_scattered(folder, options.rollouts, options.segments, options.writers, do)
    report = {
        "benchmark": "store_scale", **measure.machine(), "parameters": {"rollouts": options.rollouts}, "figures": tables
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
