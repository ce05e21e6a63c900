"""Whatever happens to the files of a run, no reader crashes or returns a wrong number, and each reports a loss."""

import json
import random
import shutil

import pytest

from answers import score, write
from rolltrace.check.check_run import check_run
from rolltrace.errors import RolltraceError, RunNotFoundError
from rolltrace.query import run_tables
from rolltrace.query.compact import compact
from rolltrace.query.run import open_run
from rolltrace.query.run_summary import summarize
from rolltrace.store.create import create_run
from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.open_runs import OpenRuns

PAGES = ("run", "rollouts", "damage")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run with compressed and plain segments, late scores, and every kind of derived file."""
    path = tmp_path_factory.mktemp("sound") / "run"
    for session in range(3):
        with create_run(path, join=session > 0) as writer:
            for index in range(8):
                rollout = write(writer, group=str(session), index=index, reward=float(index))
                if index % 3 == 0:
                    score(writer, rollout, float(10 * index))
        if session == 1:
            compact(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_tables, "MIN_CACHED_BYTES", 1)
        with open_run(path) as run:
            run.sql("select count(*) from messages").fetchall()
            run.get(rollout)
    return path


def read(path):
    """What SQL and Python read from a run, and whether SQL, Python, the summary and the check report a loss."""
    with open_run(path) as run:
        rows = dict(run.sql("select id, reward from rollouts").fetchall())
        by_sql = run.problems
        rollouts = {rollout.id: rollout.reward for rollout in run.rollouts()}
        texts = run.sql("select count(*) from messages").fetchall()
        by_python = run.problems
    summary = summarize(path)
    report = check_run(path)
    return rows, rollouts, texts, (bool(by_sql), bool(by_python), summary.problem_count > 0, not report.ok)


def get_each(path, ids):
    """The rollouts that can be read by id."""
    got = {}
    with open_run(path) as run:
        for rollout in ids:
            try:
                got[rollout] = run.get(rollout).reward
            except RolltraceError:
                continue
    return got


def view(path):
    """The numbers on the viewer's pages."""
    library = OpenRuns(path.parent)
    try:
        api = Api(library)
        pages = {name: json.loads(api.handlers[name](RequestParameters([("run", path.name)]))) for name in PAGES}
        for row in pages["rollouts"]["rows"][:2]:
            for name in ("rollout", "group"):
                parameters = {"run": path.name, "id": row["id"], "split": "train", "iteration": 0, "env": "sums", **row}
                try:
                    api.handlers[name](RequestParameters([(key, str(value)) for key, value in parameters.items()]))
                except RolltraceError:
                    continue
        return pages
    finally:
        library.close()


def corrupt(path, rng):
    """Changes one file in one way; returns what was done."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "truncate", "zero", "delete", "append", "repeat"])
    place = rng.randrange(len(data)) if data else 0
    if kind == "delete":
        file.unlink()
    elif kind == "truncate":
        file.write_bytes(data[:place])
    elif kind == "append":
        file.write_bytes(data + rng.randbytes(rng.randrange(1, 50)))
    elif kind == "repeat":
        file.write_bytes(data + data[place:])
    elif data:
        end = place + 1 if kind == "flip" else min(len(data), place + rng.randrange(1, 200))
        data[place:end] = bytes([data[place] ^ (1 << rng.randrange(8))]) if kind == "flip" else bytes(end - place)
        file.write_bytes(data)
    return f"{kind} at {place} of {file.relative_to(path)}"


@pytest.fixture(scope="module")
def rewards(sound):
    """The rewards of the run as it was, and those without its late scores."""
    with open_run(sound) as run:
        columns = [run.sql(f"select id, {name} from rollouts").fetchall() for name in ("reward", "line_reward")]
    return [dict(column) for column in columns]


def examine(sound, rewards, folder, seed):
    """Corrupts a copy, and compares every reader with the intact run."""
    rng = random.Random(seed)
    path = folder / "run"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound, path)
    what = f"seed {seed}: {corrupt(path, rng)}"
    right, without_scores = rewards
    try:
        rows, rollouts, _, reported = read(path)
        got, pages = get_each(path, right), view(path)
    except RunNotFoundError:
        assert "run.json" in what, what
        return
    for name, answer in (("sql", rows), ("rollouts", rollouts), ("get", got)):
        for rollout, reward in answer.items():
            assert reward in (right[rollout], without_scores[rollout]), f"{name}, {what}"
    assert pages["rollouts"]["total"] == pages["run"]["rollouts"] == len(rows), what
    lost = (rows != right, rollouts != right, rows != right, len({*rows} & {*rollouts} & {*got}) < len(right))
    assert [report for loss, report in zip(lost, reported, strict=True) if loss and not report] == [], what
    assert pages["damage"]["problem_count"] > 0 or pages["run"]["rollouts"] == len(right), what


def test_some_corruptions(sound, rewards, tmp_path):
    """A few of the corruptions below."""
    for seed in range(5):
        examine(sound, rewards, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2_000, 250))
def test_many_corruptions(sound, rewards, tmp_path, first):
    """2,000 random corruptions over segments, ledgers, derived files and manifest."""
    for seed in range(first, first + 250):
        examine(sound, rewards, tmp_path, seed)
