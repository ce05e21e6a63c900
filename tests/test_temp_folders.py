"""Temporary folders are removed with their process or by the next command, and a full disk is reported."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolltrace.jobs.play import play
from rolltrace.store.create import create_run
from rolltrace.temp_folders import PREFIX, make_folder, remove_abandoned, remove_folder, temporary_folder

LONG = "select count(*) from " + ", ".join(f"rollouts r{number}" for number in range(12))
LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    "from rolltrace.cli.app import main; sys.argv[0] = 'rolltrace'; main()"
)
"""The command in a process that can write no file of more than 4 KiB: its temporary folder is full."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that is large enough for `check` to need the disk."""
    path = tmp_path_factory.mktemp("runs") / "run"
    play("arithmetic", "scripted:noisy", out=path, groups=1_500, group_size=4)
    return path


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The test's own temporary directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def folders(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name.startswith(PREFIX))


def rolltrace(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rolltrace", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_leftovers_of_a_killed_query_are_removed(run, place):
    """The next command removes what a killed query left, but not what a running one uses."""
    command = [sys.executable, "-m", "rolltrace", "query", str(run), LONG]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while not any(place.glob(f"{PREFIX}*/lock")):
                assert time.monotonic() < until
                assert process.poll() is None
                time.sleep(0.01)
            [used] = folders(place)
            assert rolltrace("query", run, "select count(*) from runs").returncode == 0
            assert folders(place) == [used]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert folders(place) == [used]
    assert rolltrace("query", run, "select count(*) from runs").returncode == 0
    assert folders(place) == []


@pytest.mark.parametrize("words", [("query", "select count(*) from messages"), ("summary",), ("check",), ("show",)])
def test_commands_leave_nothing(run, place, words):
    """A command that ends normally leaves the temporary directory as it was."""
    verb, *more = words
    assert rolltrace(verb, run, *more).returncode == 0
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("words", [("query", "select count(*) from messages"), ("check",), ("summary",)])
def test_a_full_temporary_directory_is_reported(run, place, words):
    """The command ends with exit code 1 and one sentence that says where and what to do."""
    verb, *more = words
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, verb, str(run), *more], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    [told] = ended.stderr.strip().splitlines()[-1:]
    assert told.startswith(f"Error: Cannot write to {place}")
    assert "TMPDIR" in told
    assert "Traceback" not in ended.stderr


def test_check_of_a_small_run_ends_if_the_temporary_directory_is_full(tmp_path, place):
    """If only the tables of one audit do not fit, the check still ends with one error, and reports no failed audit."""
    with create_run(tmp_path / "run", planned=1_000) as run:
        for index in range(300):
            with run.rollout(env="sums", task="t", group="g", index=index) as rollout:
                rollout.step("1 + 1?", "2", 1.0)
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, "check", str(run.path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"Error: Cannot write to {place}")
    assert len(ended.stderr.strip().splitlines()) == 1


def test_only_abandoned_folders_of_ours_are_removed(tmp_path, monkeypatch):
    """A folder is removed if its lock is free; one with another name, without a lock, or a link stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = make_folder()
    dead, foreign, other, linked = (tmp_path / name for name in ("rolltrace-dead", "rolltrace-x", "other", "target"))
    for folder in (dead, foreign, other, linked):
        folder.mkdir()
        (folder / "file").write_text("x")
        os.utime(folder, (0, 0))
    for folder in (dead, other, linked):
        (folder / "lock").touch()
    (tmp_path / "rolltrace-link").symlink_to(linked)
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [mine.name, "rolltrace-x", "other", "target", "rolltrace-link"]
    )
    remove_folder(mine)
    assert not mine.exists()
    with temporary_folder() as folder:
        assert (folder / "lock").is_file()
    assert not folder.exists()


def test_folder_is_locked_while_it_is_removed(tmp_path, monkeypatch):
    """A process that has made a folder and not yet locked it cannot begin to use it while another removes it."""
    (tmp_path / "rolltrace-new").mkdir()
    (tmp_path / "rolltrace-new/lock").touch()
    real, refused = shutil.rmtree, []

    def remove(path, **options):
        with (Path(path) / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(Path(path).name)
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", remove)
    remove_abandoned(tmp_path)
    assert refused == ["rolltrace-new"]
    assert list(tmp_path.iterdir()) == []


def test_old_folder_without_a_lock_goes_only_if_it_is_empty(tmp_path):
    """An old folder without a lock is removed only if it is still empty at that moment."""
    old = tmp_path / "rolltrace-old"
    old.mkdir()
    os.utime(old, (0, 0))
    remove_abandoned(tmp_path)
    assert not old.exists()
    old.mkdir()
    (old / "file").touch()
    os.utime(old, (0, 0))
    remove_abandoned(tmp_path)
    assert old.exists()
