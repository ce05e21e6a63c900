"""A writer that is killed at any moment: what `flush` acknowledged is there once, and the run can be continued."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rolltrace.check.check_run import check_run
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.layout import is_run
from rolltrace.store.reader import RunReader

MOMENTS = {
    "mkdir run": 1, "fsync unfinished run": 1, "link unfinished run": 1, "mkdir rollouts": 1, "mkdir blobs": 1,
    "open rollouts.jsonl": 3, "write rollouts.jsonl": 3, "fsync rollouts.jsonl": 3, "fsync rollouts": 3,
    "fsync unfinished rollouts": 2, "replace unfinished rollouts": 2, "unlink rollouts.jsonl": 2,
    "write scores.jsonl": 3, "write ledger.jsonl": 3, "fsync ledger.jsonl": 3,
    "replace unfinished blobs": 3, "open blob": 3, "fsync blob": 3, "fsync blobs": 2,
}  # fmt: skip
"""Operations while a run is made, lines are written, segments are rotated and sealed; how often each comes at least."""

TORN = {"write rollouts.jsonl", "write scores.jsonl", "write ledger.jsonl"}


@pytest.fixture(scope="module")
def killer():
    """Lets a writer write and be killed, as `crashing_writer.py` says."""
    script = str(Path(__file__).with_name("crashing_writer.py"))
    with subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": ""},
    ) as process:

        def kill(**order):
            process.stdin.write(json.dumps(order, default=str) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield kill
        process.stdin.close()


def assert_safe(path, acknowledged):
    """Asserts that everything acknowledged is found once, in order and by id, and that nothing is there twice."""
    reader = RunReader(path)
    counts = Counter(rollout.id for rollout in reader.rollouts())
    assert set(counts.values()) <= {1}
    assert set(acknowledged) <= counts.keys()
    for rollout in acknowledged[-3:]:
        assert reader.get(rollout).id == rollout
    for rollout in reader.rollouts():
        assert all(reader.blob(part.blob.name) for part in rollout.messages[0].parts)
    assert len({score.id for score in reader.scores()}) == sum(1 for _ in reader.scores())
    assert set(acknowledged) <= {score.rollout for score in reader.scores()}
    assert all(ledger.is_balanced for ledger in reader.ledgers().values())
    return reader


def go_on(path):
    """Writes one more rollout into a run, as a new session."""
    with create_run(path, join=is_run(path)) as writer:
        with writer.rollout(env="sums", task="t", group="after", index=0) as recorder:
            recorder.step("1 + 1?", "2", 1.0)
        writer.score(recorder.id, "advantage", 0.5)
        assert writer.flush()
    return recorder.id


def crash_at_random(killer, path, crashes, rng):
    """Kills writers of one run, one after the other."""
    acknowledged = []
    for _ in range(crashes):
        told = killer(run=path, acknowledgements=rng.randrange(12), seconds=rng.random() * 0.02)
        assert told["signal"] == signal.SIGKILL
        acknowledged += told["acknowledged"]
        if is_run(path):
            acknowledged.append(go_on(path))
            assert_safe(path, acknowledged)


@pytest.mark.parametrize("seed", range(3))
def test_random_moments(tmp_path, killer, seed):
    """A writer that is killed at a random moment loses nothing that was acknowledged; the next continues the run."""
    crash_at_random(killer, tmp_path / "run", 5, random.Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_two_hundred_random_moments(tmp_path, killer, seed):
    """The same, two hundred times."""
    crash_at_random(killer, tmp_path / "run", 20, random.Random(seed))


@pytest.mark.parametrize("moment", sorted(MOMENTS))
def test_chosen_moments(tmp_path, killer, moment):
    """Killed during this operation, the first and the last time: nothing acknowledged is lost."""
    for occurrence in sorted({1, MOMENTS[moment]}):
        path = tmp_path / str(occurrence) / "run"
        told = killer(run=path, moment=moment, occurrence=occurrence)
        assert told["died_at"] == moment
        assert_survived(path, told)


@pytest.mark.slow
def test_every_operation(tmp_path, killer):
    """Killed during each file operation in turn: nothing acknowledged is lost."""
    for operation in range(1, 1000):
        path = tmp_path / str(operation) / "run"
        told = killer(run=path, operation=operation)
        if told["signal"] == 0:
            break
        assert_survived(path, told)
    assert operation > 50
    assert (told["died_at"], told["status"]) == ("end", 0)


def assert_survived(path, told):
    """Asserts that acknowledged rollouts exist, a torn line is reported, and the run can be continued."""
    if (path / "rollouts").is_dir():
        assert_torn_lines_are_reported(path, told["died_at"])
        assert_safe(path, told["acknowledged"])
    assert_safe(path, [*told["acknowledged"], go_on(path)])


def assert_torn_lines_are_reported(path, died_at):
    """Asserts that half a line is the only problem, at its offset, before and after compression."""
    reader = assert_safe(path, [])
    if died_at not in TORN:
        assert {problem.message for problem in reader.read_errors} <= {"No such file or directory"}
        return
    [problem] = reader.read_errors
    folder = died_at.removeprefix("write ").removesuffix(".jsonl")
    assert problem.file.startswith(f"{folder}/")
    torn = path / problem.file
    assert problem.offset == torn.read_bytes().rfind(b"\n") + 1
    assert any(finding.file and torn.stem in finding.file for finding in findings(path))
    if folder != "ledger":
        compress_segment(torn)
        assert [each.offset for each in assert_safe(path, []).read_errors] == [problem.offset]
        assert any(finding.file and torn.stem in finding.file for finding in findings(path))


def findings(path):
    """The findings of the audits in a run."""
    return [finding for result in check_run(path).results for finding in result.findings]
