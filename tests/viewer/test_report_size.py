"""A report is bounded, whatever the run is: linear in a group, reduced if that is huge, and removed if stopped."""

import base64
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest

import rolltrace
from rolltrace.query.evenly_spaced import evenly_spaced, is_evenly_spaced
from rolltrace.query.run import open_run
from rolltrace.viewer import run_subset
from rolltrace.viewer.report_writer import write_report
from segments import make_run, rollout_line, segment


def _group(path: Path, members: int, **fields: Any) -> Path:
    """A run of one group, whose members have one line and no late scores."""
    run = make_run(path)
    lines = [rollout_line(f"rollout-{index:05}", index=index, session="session", **fields) for index in range(members)]
    segment(run).write_bytes(b"".join(lines))
    return run


def _scored_group(path: Path, members: int, text: str = "") -> Path:
    """A run of one group whose rewards are the members' indexes."""
    with rolltrace.create_run(path) as run:
        for index in range(members):
            with run.rollout(env="e", task="t", group="g", index=index) as rollout:
                rollout.step(prompt=[{"role": "user", "content": "?"}], response=f"{index}{text}", reward=index)
    return path


def _packs(file: Path) -> list[dict[str, Any]]:
    blocks = re.findall(r'<script type="text/plain" id="pack-[0-9]+">(.*?)</script>', file.read_text())
    return [json.loads(gzip.decompress(base64.b64decode(block))) for block in blocks]


def _rollouts(file: Path) -> dict[str, Any]:
    return {id_: answer for pack in _packs(file) for id_, answer in pack["rollouts"].items()}


def test_a_member_is_as_large_in_a_large_group(tmp_path: Path) -> None:
    """The answer about a rollout has only the nearest members of its group, so a report is linear in the group."""
    sizes = []
    for members in (100, 800):
        write_report(_group(tmp_path / f"run-{members}", members), tmp_path / "report.html")
        answers = _rollouts(tmp_path / "report.html")
        assert len(answers) == members
        assert {len(answer["group"]["members"]) for answer in answers.values()} == {40}
        assert all(id_ in [one["id"] for one in answer["group"]["members"]] for id_, answer in answers.items())
        sizes.append(sum(len(json.dumps(answer)) for answer in answers.values()) / members)
    assert sizes[1] < 1.1 * sizes[0]
    assert len(_packs(tmp_path / "report.html")) > 3  # a large group is unpacked in pieces


def test_a_huge_group_is_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a huge group, a report has the best, the worst, and others evenly between them, and says so."""
    monkeypatch.setattr(run_subset, "DEFAULT_ROLLOUTS", 10)
    monkeypatch.setattr(run_subset, "_COMPLETE_MEMBERS", 5)
    run, file = _scored_group(tmp_path / "run", 91), tmp_path / "report.html"
    text = write_report(run, file)
    rewards = sorted(answer["reward"] for answer in _rollouts(file).values())
    assert rewards == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert "10 of the run’s 91 rollouts" in text
    assert "Of one large group it has 10 rollouts: the best, the worst" in text


def test_a_reduced_group_has_what_was_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a group that is reduced, rollouts that meet the condition come before others."""
    monkeypatch.setattr(run_subset, "DEFAULT_ROLLOUTS", 6)
    monkeypatch.setattr(run_subset, "_COMPLETE_MEMBERS", 5)
    run, file = _scored_group(tmp_path / "run", 40), tmp_path / "report.html"
    write_report(run, file, where="reward between 7 and 10")
    rewards = sorted(answer["reward"] for answer in _rollouts(file).values())
    assert rewards == [0, 7, 8, 9, 10, 39]


def test_groups_are_complete_before_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer groups are taken rather than some members of each, and all of them fit."""
    monkeypatch.setattr(run_subset, "DEFAULT_ROLLOUTS", 10)
    with rolltrace.create_run(tmp_path / "run") as run:
        for group in range(20):
            for index in range(1 + group % 4):
                with run.rollout(env="e", task="t", group=str(group), index=index) as rollout:
                    rollout.step(prompt=[{"role": "user", "content": "?"}], response="!", reward=index)
    with open_run(tmp_path / "run") as opened:
        part = run_subset.select_subset(opened)
    assert sum(1 + int(key.group) % 4 for key in part.keys) <= 10
    assert len(part.keys) >= 3
    assert part.cut_groups == ()


@pytest.mark.parametrize("most", range(1, 12))
def test_sql_takes_the_same_as_python(most: int) -> None:
    """The condition in SQL selects the same as `evenly_spaced`."""
    for count in range(most + 1, 30):
        condition = is_evenly_spaced("rank", str(count), most)
        rows = duckdb.sql(f"select rank from range({count}) as ranks(rank) where {condition} order by rank").fetchall()
        assert [rank for (rank,) in rows] == evenly_spaced(range(count), most)


def test_long_texts_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest texts are truncated until the report has room for all, and say how much is missing."""
    monkeypatch.setattr(run_subset, "MAX_BYTES", 20_000)
    with rolltrace.create_run(tmp_path / "run") as run:
        for index, text in enumerate(("short", "long " * 20_000)):
            with run.rollout(env="e", task="t", group="g", index=index) as rollout:
                rollout.step(prompt=[{"role": "user", "content": "?"}], response=text, reward=0)
    text = write_report(tmp_path / "run", tmp_path / "report.html")
    assert "Long texts of one rollout are shortened" in text
    short, long = (
        answer["rollout"]["messages"][-1]["content"] for answer in _rollouts(tmp_path / "report.html").values()
    )
    assert short == "short"
    assert 10_000 < len(long) < 20_000
    kept = len(long) - len(long.rpartition("\n")[2]) - 1
    assert long.endswith(f"… {100_000 - kept:,} characters left out here")


def test_progress_counts_every_rollout(tmp_path: Path) -> None:
    """Progress is reported for reading, writing and checking, up to all rollouts."""
    calls: list[tuple[int, int, str]] = []
    run = _group(tmp_path / "run", 30)
    write_report(run, tmp_path / "report.html", on_progress=lambda *call: calls.append(call))
    assert [(done, action) for done, expected, action in calls if done == expected == 30] == [
        (30, "reading"),
        (30, "writing"),
    ]
    assert "checking" in {action for _, _, action in calls}
    write_report(run, tmp_path / "tree.json", as_json=True, on_progress=lambda *call: calls.append(call))
    assert calls[-1] == (30, 30, "writing")


_STOPPED = """
import sys, time
import rolltrace.viewer.report_writer as writer
from rolltrace.cli.app import main

def slow(*_):
    yield b"the beginning" * 100_000
    time.sleep(60)

writer.report_html = slow
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_stopped_report_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM leave neither an unfinished file nor a temporary folder."""
    run, out, temporary = _group(tmp_path / "run", 3), tmp_path / "out", tmp_path / "temporary"
    out.mkdir()
    temporary.mkdir()
    command = [sys.executable, "-c", _STOPPED, "report", str(run), "-o", str(out / "report.html")]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)})
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in out.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(out.iterdir())
    started.send_signal(number)
    started.communicate(timeout=30)
    assert started.returncode == code
    assert list(out.iterdir()) == []
    assert list(temporary.iterdir()) == []
