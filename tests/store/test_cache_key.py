"""Signatures of derived files: made with the user's key or a team's, and with nothing else."""

import secrets
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rolltrace.errors import ChecksumError, StorageError
from rolltrace.store.cache_key import add_signature, cache_folders, check_signature, make_cache_folder, sign


@pytest.fixture
def key_file(tmp_path, monkeypatch) -> Path:
    """The path of the user's key; the environment has no key."""
    monkeypatch.delenv("ROLLTRACE_CACHE_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/rolltrace/cache.key"


def test_a_signature_is_valid_for_its_bytes_key_and_context(monkeypatch):
    """A signature is valid only for the bytes, context and key with which it was made."""
    signed = add_signature(b"data", "run")
    assert check_signature(signed, "run") == b"data"
    for other in (signed[:-1] + b"e", signed[1:], signed[:-4], b""):
        with pytest.raises(ChecksumError):
            check_signature(other, "run")
    with pytest.raises(ChecksumError):
        check_signature(signed, "other run")
    monkeypatch.setenv("ROLLTRACE_CACHE_KEY", "another team's")
    with pytest.raises(ChecksumError):
        check_signature(signed, "run")


def test_context_and_data_are_separated():
    """Bytes that move from the context to the data change the signature."""
    assert sign(b"data", "run") != sign(b"ndata", "ru")


def test_key_is_made_once_and_is_private(key_file):
    """A missing key is created once, readable by the user only, and kept."""
    signature = sign(b"data")
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert len(key_file.read_bytes()) == 32
    assert list(key_file.parent.iterdir()) == [key_file]
    program = "import sys; from rolltrace.store.cache_key import sign; print(sign(b'data').decode())"
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == signature.decode()


def test_processes_that_begin_at_once_agree(key_file):
    """Processes that create a key at the same time all use the same one."""
    program = "import sys; from rolltrace.store.cache_key import sign; input(); print(sign(b'data').decode())"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1
    assert list(key_file.parent.iterdir()) == [key_file]


def test_key_of_another_process_is_not_replaced(key_file, monkeypatch):
    """If another process makes the key first, it is used."""
    others = bytes(range(32))

    def make_both(length):
        key_file.write_bytes(others)
        return bytes(length)

    monkeypatch.setattr(secrets, "token_bytes", make_both)
    sign(b"data")
    assert key_file.read_bytes() == others


def test_damaged_key_is_refused(key_file):
    """A key that is too short is refused, and the error says what to do."""
    key_file.parent.mkdir(parents=True)
    key_file.write_bytes(b"short")
    with pytest.raises(StorageError, match=r"cache\.key, got 5\. Delete the file"):
        sign(b"data")


def test_without_a_home(tmp_path, monkeypatch):
    """Without a home directory nothing is signed, and only the run's own cache is used."""
    for name in ("ROLLTRACE_CACHE_KEY", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StorageError, match="XDG_CONFIG_HOME"):
        sign(b"data")
    assert cache_folders(tmp_path, "run") == [tmp_path / "cache"]


def test_folders_of_a_run(tmp_path, user_cache):
    """A run has its own cache folder, and one in the user's cache that depends on its path and id."""
    run = tmp_path / "run"
    run.mkdir()
    own, users = cache_folders(run, "id")
    assert own == run / "cache"
    assert users.is_relative_to(user_cache)
    assert cache_folders(run, "other")[1] != users
    assert cache_folders(tmp_path / "x" / ".." / "run", "id")[1] == users
    assert stat.S_IMODE(make_cache_folder(users).stat().st_mode) == 0o700
    assert make_cache_folder(own).is_dir()


def test_deleted_run_stays_deleted(tmp_path):
    """No cache folder is made in a run that was deleted, nor through a link."""
    with pytest.raises(FileNotFoundError):
        make_cache_folder(tmp_path / "gone/cache")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="link"):
        make_cache_folder(tmp_path / "cache")
