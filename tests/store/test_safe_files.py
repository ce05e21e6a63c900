"""Files are published whole, and abandoned ones are removed."""

import os
import re

import pytest

from rolltrace.errors import RecordError, StorageError
from rolltrace.store.safe_files import (
    open_regular,
    publish_file,
    refuse_link,
    remove_abandoned_files,
    unfinished_file,
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def synced(monkeypatch):
    """The paths that were passed to fsync."""
    paths = []
    real = os.fsync

    def note(descriptor):
        paths.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_published_file_replaces_the_old_one_and_is_synced(tmp_path, synced):
    """The file is synced before it gets its name, and the folder is synced after that."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with unfinished_file(tmp_path / ".file") as unfinished:
        unfinished.write_bytes(b"new")
        publish_file(unfinished, path)
    assert path.read_bytes() == b"new"
    assert names_in(tmp_path) == ["file"]
    assert synced == [str(tmp_path / ".file"), str(tmp_path)]


def test_sync_can_be_left_to_the_caller(tmp_path, synced):
    """With `sync=False`, nothing is synced."""
    with unfinished_file(tmp_path / ".file") as unfinished:
        unfinished.write_bytes(b"new")
        publish_file(unfinished, tmp_path / "file", sync=False)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert synced == []


def test_failure_leaves_no_unfinished_file(tmp_path):
    """An error while the file is written leaves the folder as it was."""

    def write():
        with unfinished_file(tmp_path / ".file") as unfinished:
            unfinished.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_existing_file_is_not_overwritten(tmp_path, monkeypatch, has_links):
    """Without `overwrite`, the first file is kept, also on a file system without links."""
    if not has_links:

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    for data in (b"first", b"second"):
        with unfinished_file(tmp_path / ".file") as unfinished:
            unfinished.write_bytes(data)
            if data == b"first":
                publish_file(unfinished, tmp_path / "file", overwrite=False)
            else:
                with pytest.raises(FileExistsError):
                    publish_file(unfinished, tmp_path / "file", overwrite=False)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert names_in(tmp_path) == ["file"]


def test_only_old_files_of_the_pattern_are_abandoned(tmp_path):
    """A file that changed within the last hour may still be written, and other names are not touched."""
    for name, is_old in ((".a.new", True), (".b.new", False), ("other", True)):
        (tmp_path / name).write_bytes(b"")
        if is_old:
            os.utime(tmp_path / name, (0, 0))
    remove_abandoned_files(tmp_path, re.compile(r"\..*\.new"))
    assert names_in(tmp_path) == [".b.new", "other"]


def test_pipes_and_links_are_refused(tmp_path):
    """Opening a pipe does not block, and nothing is written through a link."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordError, match="regular file"):
        open_regular(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="link"):
        refuse_link(tmp_path / "link")
