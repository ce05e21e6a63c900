"""Reading a run: whatever is whole, and a report of what is not."""

import json
from datetime import timedelta

import pytest

from rolltrace.errors import ChecksumError, RecordError, RunNotFoundError, UnknownNameError
from rolltrace.query.rewards import latest_rewards
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import seal, utc_now


@pytest.fixture
def run(tmp_path, make_line):
    """A run of three rollouts, and the path of its only segment."""
    with create_run(tmp_path / "run") as writer:
        for index in range(3):
            writer.write_rollout(make_line(writer, index=index))
    [segment] = (tmp_path / "run/rollouts").iterdir()
    return tmp_path / "run", segment


def indexes(reader):
    return [rollout.index for rollout in reader.rollouts()]


def test_order_is_stable(run):
    """Two readers give the same rollouts in the same order."""
    path, _ = run
    assert [r.id for r in RunReader(path).rollouts()] == [r.id for r in RunReader(path).rollouts()]
    assert indexes(RunReader(path)) == [0, 1, 2]


def test_no_run_says_what_was_expected(tmp_path):
    """A place without a run is named, with what a run looks like."""
    with pytest.raises(RunNotFoundError, match=r"run\.json.*found nothing"):
        RunReader(tmp_path / "nowhere")
    with pytest.raises(RunNotFoundError, match="found other things"):
        RunReader(tmp_path)


def test_torn_tail_costs_only_itself(run):
    """Half a last line is a problem, reported once however often it is met."""
    path, segment = run
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])
    reader = RunReader(path)
    assert indexes(reader) == [0, 1]
    assert indexes(reader) == [0, 1]
    [problem] = reader.problems
    assert (problem.file, problem.line) == (f"rollouts/{segment.name}", 3)
    assert "whole line" in problem.message


@pytest.mark.parametrize("damage", [b"\x00\xff\xfe", b"not json", b"", b"{}", b'{"v":1,"crc":"00000000"}'])
def test_damaged_line_costs_only_itself(run, damage):
    """Whatever a line was overwritten with, the others are read and the damage is named by file and line."""
    path, segment = run
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(lines[0] + damage + b"\n" + lines[2])
    reader = RunReader(path)
    assert indexes(reader) == [0, 2]
    [problem] = reader.problems
    assert problem.line == 2


def test_flipped_bit_is_found(run):
    """A changed byte inside a line that is still JSON is found by the checksum."""
    path, segment = run
    segment.write_bytes(segment.read_bytes().replace(b'"1 + 1?"', b'"1 + 2?"', 1))
    reader = RunReader(path)
    assert indexes(reader) == [1, 2]
    assert "checksum" in reader.problems[0].message


def test_newer_line_is_refused_by_name(run):
    """A line of a newer version is a problem that says so; older ones beside it are read."""
    path, segment = run
    with segment.open("ab") as file:
        file.write(seal(b'{"v":99,"id":"x"}'))
    reader = RunReader(path)
    assert indexes(reader) == [0, 1, 2]
    assert "version 99" in reader.problems[0].message


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("", "Expected a run record"), ('{"v":99,"id":1}', "version 99")],
)
def test_lost_run_file_leaves_the_run_readable(run, content, message):
    """A missing, torn or newer `run.json` costs what it held, and no more."""
    path, _ = run
    if content is None:
        (path / "run.json").unlink()
    else:
        (path / "run.json").write_text(content)
    reader = RunReader(path)
    assert reader.info is None
    assert indexes(reader) == [0, 1, 2]
    assert reader.problems[0].file == "run.json"
    assert message in reader.problems[0].message


def test_strange_files_are_named(run):
    """A file that is no segment is a problem, and does not stop reading."""
    path, _ = run
    (path / "rollouts/notes.txt").touch()
    (path / "rollouts/folder.jsonl").mkdir()
    reader = RunReader(path)
    assert indexes(reader) == [0, 1, 2]
    assert {problem.file for problem in reader.problems} == {"rollouts/notes.txt", "rollouts/folder.jsonl"}


def test_get_finds_by_id(run):
    """A rollout is found by its id; an unknown one is named."""
    path, _ = run
    reader = RunReader(path)
    wanted = list(reader.rollouts())[1]
    assert reader.get(wanted.id) == wanted
    with pytest.raises(UnknownNameError, match="nobody"):
        reader.get("nobody")


def test_blob_names_are_digests(run):
    """No path is followed, and bytes that are not those of the name are refused."""
    path, _ = run
    reader = RunReader(path)
    name = "sha256-" + "0" * 64
    (path / "blobs" / name).write_bytes(b"other bytes")
    with pytest.raises(ChecksumError, match="found sha256-"):
        reader.blob(name)
    for hostile in ("../run.json", "/etc/passwd", name + "/..", name + "\n", "sha256-" + "A" * 64, ""):
        with pytest.raises(RecordError, match="64 hexadecimal digits"):
            reader.blob(hostile)
    with pytest.raises(RecordError, match="No such file"):
        reader.blob("sha256-" + "1" * 64)


def test_latest_reward_counts(tmp_path, make_line, make_score):
    """A rollout's reward is its latest score of that name, even a null one, else its line's."""
    now = utc_now()
    with create_run(tmp_path / "run") as writer:
        lines = [make_line(writer, index=index, reward=1.0) for index in range(4)]
        for line in lines:
            writer.write_rollout(line)
        writer.write_score(make_score(writer, lines[1].id, 0.25, at=now))
        writer.write_score(make_score(writer, lines[1].id, 9.0, at=now - timedelta(seconds=1)))
        writer.write_score(make_score(writer, lines[2].id, 7.0, name="advantage"))
        writer.write_score(make_score(writer, lines[3].id, None))
    reader = RunReader(tmp_path / "run")
    rewards = latest_rewards(reader.rollouts(), reader.scores())
    assert [rewards[line.id] for line in lines] == [1.0, 0.25, 1.0, None]


def test_records_are_plain_json(run):
    """A segment can be read with nothing but a JSON parser."""
    _, segment = run
    first = json.loads(segment.read_text().splitlines()[0])
    assert (first["v"], first["env"], first["reward"]) == (1, "sums", 1.0)
