"""A listing of runs: found at any depth, fast, and based on their files."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from rolltrace.errors import RunNotFoundError
from rolltrace.query import list_numbers
from rolltrace.query import run_listing as listing
from rolltrace.query.compact import compact
from rolltrace.query.run_listing import list_runs
from rolltrace.query.run_state import RunState
from rolltrace.store.create import create_run
from rolltrace.trace.codec import add_checksum, utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Status, StoppedBy
from rolltrace.trace.strict_json import encode_json


def play(writer, reward=1.0, late=None, **fields):
    """Records one rollout, with a late reward if given."""
    identity = {"env": "sums", "task": "t", "group": "g", "index": 0, "policy": "p"} | fields
    header = Header(id=new_id(), run=writer.run, session=writer.session, started_at=utc_now(), **identity)
    rollout_builder = writer.begin(header)
    rollout_builder.extend([Message("user", "1 + 1?")])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "2"), reward=1.0)
    ended = Outcome(
        ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
        reward=reward, reward_so_far=1.0, unclamped_reward=None,
    )  # fmt: skip
    writer.end(rollout_builder, ended)
    if late is not None:
        score = Score(
            id=new_id(), run=writer.run, session=writer.session, rollout=rollout_builder.id, name="reward", value=late,
            created_at=utc_now(),
        )  # fmt: skip
        writer.write_score(score)


@pytest.fixture
def runs(tmp_path) -> Path:
    """Two runs, one of them deeper, and other files and folders."""
    with create_run(tmp_path / "first") as writer:
        play(writer, group="a", index=0, reward=1.0)
        play(writer, group="a", index=1, reward=0.0, env="products")
        play(writer, group="b", index=0, reward=None, late=2.0)
        play(writer, group="b", index=1, reward=float("nan"))
    with create_run(tmp_path / "deep" / "er" / "second"):
        pass
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "empty").mkdir()
    create_run(tmp_path / ".hidden").close()
    return tmp_path


def test_runs_are_found_wherever_they_are(runs):
    """Runs are found at any depth, the newest first; hidden directories are not entered."""
    assert [run.name for run in list_runs(runs).runs] == ["deep/er/second", "first"]
    assert [run.name for run in list_runs(runs / "first").runs] == ["first"]
    assert list_runs(runs / "empty").runs == ()


def test_numbers_are_those_of_the_files(runs):
    """Late rewards count, and those that are not finite do not; every env and policy is named."""
    first = list_runs(runs).runs[1]
    assert (first.rollouts, first.groups, first.lost, first.state) == (4, 3, 0, RunState.COMPLETE)
    assert (first.envs, first.policies) == (("sums", "products"), ("p",))
    assert first.mean_reward == pytest.approx(1.0)
    assert first.bytes == sum(path.stat().st_size for path in (runs / "first").rglob("*") if path.is_file())
    second = list_runs(runs).runs[0]
    assert (second.rollouts, second.groups, second.envs, second.mean_reward) == (0, 0, (), None)


def test_rewards_beyond_all_numbers(tmp_path):
    """A mean that overflows is infinite, and no error."""
    with create_run(tmp_path / "run") as writer:
        for index in range(3):
            play(writer, index=index, reward=1.7e308, iteration=2**70)
    [run] = list_runs(tmp_path).runs
    assert (run.rollouts, run.mean_reward) == (3, float("inf"))


def test_only_the_newest_are_read(runs, file_reads):
    """With a limit, the other runs are counted and not read."""
    found = list_runs(runs, limit=1)
    assert ([run.name for run in found.runs], found.total) == (["deep/er/second"], 2)
    assert file_reads.opened(runs / "first" / "rollouts") == []
    list_runs(runs)
    assert file_reads.opened(runs / "first" / "rollouts") != []


def test_a_large_run_is_not_read(runs, monkeypatch):
    """Numbers that would take long are left out until there are tables; both ways give the same numbers."""
    read = list_runs(runs / "first").runs[0]
    monkeypatch.setattr(listing, "MAX_BYTES", 10)
    unread = list_runs(runs / "first").runs[0]
    assert (unread.recorded, unread.rollouts) == (4, None)
    assert (unread.groups, unread.envs, unread.policies, unread.mean_reward) == (None, None, None, None)
    compact(runs / "first")
    asked = list_runs(runs / "first").runs[0]
    assert (asked.groups, asked.envs, asked.policies) == (read.groups, read.envs, read.policies)
    assert asked.mean_reward == pytest.approx(read.mean_reward)


def forge(path, *changes):
    """Appends lines to a run's ledger, each with a right checksum."""
    (file,) = (path / "ledger").iterdir()
    record = json.loads(file.read_bytes().splitlines()[-1])
    del record["crc"]
    with file.open("ab") as ledger:
        ledger.writelines(add_checksum(json.dumps(record | fields).encode()) for fields in changes)


@pytest.mark.parametrize(
    ("fields", "state", "lost", "maybe_lost"),
    [
        ({"closed": False}, RunState.RUNNING, 0, 0),
        ({"closed": False, "in_flight": 2}, RunState.RUNNING, 0, 2),
        ({"closed": False, "in_flight": 2, "written_at": "2026-01-01T00:00:00Z"}, RunState.DIED, 0, 2),
        ({"in_flight": 2}, RunState.COMPLETE, 2, 0),
        ({"dropped": {"ENOSPC": 3}, "unrecordable": {"x": 1}}, RunState.COMPLETE, 4, 0),
        ({"closed": False, "dropped": {"ENOSPC": 3}}, RunState.RUNNING, 3, 0),
    ],
)
def test_state_is_what_the_ledgers_tell(runs, fields, state, lost, maybe_lost):
    """A run with losses says so, in addition to its state."""
    forge(runs / "first", fields)
    first = list_runs(runs / "first").runs[0]
    assert (first.state, first.lost, first.maybe_lost) == (state, lost, maybe_lost)


def test_the_last_whole_line_of_a_ledger_counts(runs):
    """The last complete line counts, however long a ledger is, and however its end was torn."""
    forge(runs / "first", *({"recorded": number} for number in range(300)))
    (file,) = (runs / "first" / "ledger").iterdir()
    file.write_bytes(file.read_bytes() + b'{"v":2,"torn')
    assert file.stat().st_size > 64_000
    assert list_runs(runs / "first").runs[0].recorded == 299


def test_damaged_runs_are_listed(runs):
    """A run that lost its ledger or a line is listed with the rest."""
    for file in (runs / "first" / "ledger").iterdir():
        file.write_bytes(b"garbage\n")
    (file,) = (runs / "first" / "rollouts").iterdir()
    file.write_bytes(file.read_bytes() + b"garbage\n" + add_checksum(b'{"v":2,"id":7}'))
    first = list_runs(runs).runs[1]
    assert (first.name, first.state) == ("first", RunState.UNKNOWN)
    assert first.groups == 3


def test_a_listing_is_json(runs):
    """A program gets every field."""
    told = json.loads(encode_json(list_runs(runs).runs[1]))
    assert told["name"] == "first"
    assert told["state"] == "complete"
    assert told["envs"] == ["sums", "products"]


def test_a_place_that_is_no_directory_is_refused(tmp_path):
    """A file or a missing path cannot be listed."""
    (tmp_path / "file").write_text("")
    for name in ("file", "nowhere"):
        with pytest.raises(RunNotFoundError, match="Expected a directory"):
            list_runs(tmp_path / name)


def large(path, monkeypatch):
    """A run whose numbers are worth storing, last written some time ago."""
    monkeypatch.setattr(listing, "MIN_STORED_BYTES", 1)
    for folder in ("rollouts", "scores", "ledger"):
        for file in (path / folder).iterdir():
            os.utime(file, (1e9, 1e9))


def test_a_run_is_read_once(runs, file_reads, monkeypatch):
    """A run's numbers are stored, and recomputed only if a file has changed or another user stored them."""
    large(runs / "first", monkeypatch)
    read = list_runs(runs / "first").runs[0]
    assert file_reads.opened(runs / "first" / "rollouts") != []
    file_reads.clear()
    assert msgspec.structs.replace(list_runs(runs / "first").runs[0], bytes=read.bytes) == read
    assert file_reads.opened(runs / "first" / "rollouts") == []
    stored = runs / "first" / "cache" / list_numbers.NUMBERS_FILE
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    assert list_runs(runs / "first").runs[0].rollouts == read.rollouts
    assert file_reads.opened(runs / "first" / "rollouts") != []
    with create_run(runs / "first", join=True) as writer:
        play(writer, group="c")
    assert list_runs(runs / "first").runs[0].rollouts == read.rollouts + 1


def test_reading_many_runs_ends_in_time(runs, monkeypatch):
    """After the time limit, runs that were never read are listed by their ledgers."""
    listed = list_runs(runs, seconds=0.0)
    assert ([run.rollouts for run in listed.runs], listed.unread) == ([None, None], 2)
    assert [run.recorded for run in listed.runs] == [0, 4]
    large(runs / "first", monkeypatch)
    list_runs(runs / "first")
    listed = list_runs(runs, seconds=0.0)
    assert ([run.rollouts for run in listed.runs], listed.unread) == ([None, 4], 1)


def test_linked_runs_are_listed_once(runs, tmp_path_factory):
    """A link to a run or to a directory of runs is followed; a loop, or a link to a listed run, is not."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    create_run(elsewhere / "third").close()
    (runs / "deep" / "linked").symlink_to(elsewhere)
    (runs / "latest").symlink_to(runs / "first")
    (runs / "loop").symlink_to(runs)
    (runs / "gone").symlink_to(runs / "nowhere")
    (elsewhere / "again").symlink_to(elsewhere / "third")
    assert [run.name for run in list_runs(runs).runs] == ["deep/linked/third", "deep/er/second", "first"]
    (runs / "only").mkdir()
    (runs / "only" / "link").symlink_to(elsewhere / "third")
    assert [run.name for run in list_runs(runs / "only").runs] == ["link"]


def test_a_missing_last_file_is_damage(runs):
    """A missing last file is found by the ledger's count, also for scores."""
    for folder, message in (("scores", "1 scores were recorded, 0 can be read"), ("rollouts", "4 rollouts were rec")):
        (file,) = (runs / "first" / folder).iterdir()
        file.unlink()
        first = list_runs(runs).runs[1]
        assert first.problem_count == (1 if folder == "scores" else 2)
        assert any(message in problem for problem in first.problems)


def test_a_damaged_line_is_reported_once(runs):
    """A damaged line accounts for the missing line; a line that was cut off is only missed by the ledger."""
    (file,) = (runs / "first" / "rollouts").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0].replace(b"1 + 1", b"1 + 2"), *lines[1:]]))
    first = list_runs(runs).runs[1]
    assert (first.rollouts, first.problem_count) == (3, 1)
    file.write_bytes(b"".join(lines[:3]))
    first = list_runs(runs).runs[1]
    assert (first.rollouts, first.problem_count) == (3, 1)
    assert "4 rollouts were recorded, 3 can be read" in first.problems[0]


def test_a_repeated_line_counts_once(runs):
    """A line that is repeated within a file or in a copy counts once, and the listing says so."""
    before = list_runs(runs).runs[1]
    (file,) = (runs / "first" / "rollouts").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines, lines[1]]))
    (runs / "first" / "rollouts" / "copied-000000.jsonl").write_bytes(b"".join(lines))
    first = list_runs(runs).runs[1]
    assert (first.rollouts, first.groups, first.mean_reward) == (before.rollouts, before.groups, before.mean_reward)
    assert first.problem_count == 2
    assert "One line repeats" in "".join(first.problems)
    assert "4 lines repeat" in "".join(first.problems)
