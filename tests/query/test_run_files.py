"""A run is read through a small interface, so that its files can be anywhere."""

import os
from pathlib import Path

import pytest

from rolltrace.errors import RunNotFoundError
from rolltrace.query.run import open_run
from rolltrace.query.run_summary import summarize
from rolltrace.store.compression import compress_segment
from rolltrace.store.create import create_run
from rolltrace.store.run_files import FileEntry, LocalFiles, RunFiles


class MemoryFiles(RunFiles):
    """The files of a run in memory: it can only list, give sizes, and read ranges."""

    path = Path("memory:/run")

    def __init__(self, run: Path) -> None:
        self.files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}

    def list_files(self, folder: str) -> list[FileEntry]:
        names = [Path(name) for name in self.files]
        return sorted(FileEntry(name.name, len(self.files[str(name)])) for name in names if str(name.parent) == folder)

    def size(self, name: str) -> int:
        return len(self._file(name))

    def read(self, name: str, start: int, length: int) -> bytes:
        return self._file(name)[start : start + length]

    def _file(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]


@pytest.fixture
def run(tmp_path) -> Path:
    """Two sessions: a compressed segment and a plain one, a late score, and a picture."""
    for join in (False, True):
        with create_run(tmp_path / "run", join=join) as writer:
            for index in range(4):
                with writer.rollout(env="sums", task="t", group=f"g{join:d}", index=index) as rollout:
                    picture = {"type": "image", "data": b"picture", "media_type": "image/png"}
                    prompt = [{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}, picture]}]
                    rollout.step(prompt=prompt, response="2", reward=float(index))
            writer.score(rollout.id, "quality", 0.5)
    compress_segment(min((tmp_path / "run" / "rollouts").iterdir()))
    return tmp_path / "run"


def test_a_run_without_a_directory_is_read(run):
    """Rollouts by id and in order, late scores, SQL, groups, blobs, ledgers and the summary need only the interface."""
    files = MemoryFiles(run)
    with open_run(files) as read, open_run(run) as local:
        rollouts = list(read.rollouts())
        assert rollouts == list(local.rollouts())
        assert [read.get(rollout.id) for rollout in rollouts] == rollouts
        assert [score.value for rollout in rollouts for score in rollout.scores] == [0.5, 0.5]
        assert read.sql("select count(*), sum(reward) from rollouts").fetchall() == [(8, 12.0)]
        assert [group.mean for group in read.groups()] == [1.5, 1.5]
        [blob] = {
            part.blob.name
            for rollout in rollouts
            for message in rollout.messages
            for part in message.parts
            if part.blob
        }
        assert read.blob(blob) == b"picture"
        assert read.ledgers() == local.ledgers()
        assert read.problems == ()
    assert summarize(files).rollouts == 8


def test_damage_is_noticed_without_a_directory(run):
    """A missing, truncated or damaged file costs its lines, and is reported."""
    files = MemoryFiles(run)
    plain, compressed = sorted((name for name in files.files if name.startswith("rollouts/")), key=len)
    files.files[plain] = files.files[plain][:-10]
    with open_run(files) as read:
        assert len(list(read.rollouts())) == 7
        assert [problem.file for problem in read.problems if problem.offset is not None] == [plain]
    del files.files[compressed]
    assert summarize(files).rollouts == 3
    assert summarize(files).problem_count
    del files.files["run.json"]
    with pytest.raises(RunNotFoundError, match=r"without run\.json"):
        open_run(files)


def test_prefetching_fails_for_no_file(tmp_path, monkeypatch):
    """It is only a hint: a file that is missing or not regular is reported when it is read."""
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    files, lengths = LocalFiles(tmp_path), []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, *_: lengths.append(os.fstat(file).st_size), raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    files.prefetch(["file", "missing", "folder", "pipe"])
    monkeypatch.delattr(os, "posix_fadvise")  # as on macOS
    files.prefetch(["file", "missing"])
    assert lengths == [4], "of the regular file alone"
