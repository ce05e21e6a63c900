"""Following a run while it is written."""

import subprocess
import sys
import threading

import pytest

from rolltrace.query.run import open_run
from rolltrace.store.compression import compress_segment
from segments import make_run, rollout_line, segment


@pytest.fixture
def run(tmp_path):
    """A run of three rollouts, and the path of its only segment."""
    path = make_run(tmp_path / "run")
    segment(path).write_bytes(b"".join(rollout_line(f"r{index}", "1 + 1?", index=index) for index in range(3)))
    return path, segment(path)


class Steps:
    """A stop event that runs the next action whenever a follower would wait, and is set after the last."""

    def __init__(self, *actions):
        self._actions = list(actions)

    def is_set(self):
        return not self._actions

    def wait(self, timeout=None):
        self._actions.pop(0)()


def test_follower_gets_what_comes(run):
    """Following yields existing and new records once each, across torn lines, new segments and compression."""
    path, file = run
    line = rollout_line("r3", index=3)

    def write(data, name="session-000000"):
        with segment(path, name).open("ab") as stream:
            stream.write(data)

    steps = Steps(
        lambda: write(line[:50]),
        lambda: write(line[50:]),
        lambda: compress_segment(file),
        lambda: write(rollout_line("r4", index=4), "session-000001"),
    )
    with open_run(path) as opened:
        assert [rollout.index for rollout in opened.follow("rollouts", stop=steps)] == [0, 1, 2, 3, 4]
        assert opened.problems == ()


def test_follower_ends_with_all_that_was_written_before(run):
    """A follower that is stopped before it starts yields the existing records."""
    path, _ = run
    stop = threading.Event()
    stop.set()
    with open_run(path) as opened:
        assert [rollout.index for rollout in opened.follow("rollouts", stop=stop)] == [0, 1, 2]
        assert list(opened.follow("scores", stop=stop)) == []
        assert list(opened.follow("ledger", stop=stop)) == []


def test_follower_looks_once_more_when_it_is_stopped(run):
    """Records written just before the stop are still yielded."""
    path, file = run

    class LastWord:
        def is_set(self):
            with file.open("ab") as stream:
                stream.write(rollout_line("r3", index=3))
            return True

        def wait(self, timeout=None):
            raise AssertionError("there is nothing to wait for")

    with open_run(path) as opened:
        assert [rollout.index for rollout in opened.follow("rollouts", stop=LastWord())] == [0, 1, 2, 3]


class Ended:
    """An event that is set when a process has ended."""

    def __init__(self, process):
        self._process = process

    def is_set(self):
        return self._process.poll() is not None

    def wait(self, timeout=None):
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def test_follower_while_another_process_writes(tmp_path):
    """Following a process that writes in pieces, starts new segments and compresses old ones loses nothing."""
    path = make_run(tmp_path / "run")
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(rollout_line(f"r{index}", index=index) for index in range(300)))
    program = (
        "import sys, pathlib\n"
        "from rolltrace.store.compression import compress_segment\n"
        "lines = open(sys.argv[1], 'rb').readlines()\n"
        "for number in range(0, 300, 30):\n"
        "    path = pathlib.Path(sys.argv[2], 'rollouts', f's-{number // 30:06d}.jsonl')\n"
        "    with path.open('ab', buffering=0) as file:\n"
        "        for line in lines[number:number + 30]:\n"
        "            file.write(line[:700])\n"
        "            file.write(line[700:])\n"
        "    compress_segment(path)\n"
    )
    command = [sys.executable, "-c", program, str(lines), str(path)]
    with subprocess.Popen(command) as process, open_run(path) as opened:
        indexes = [rollout.index for rollout in opened.follow("rollouts", stop=Ended(process), seconds=0.001)]
        assert opened.problems == ()
    assert process.returncode == 0
    assert indexes == list(range(300))
