"""Creates a run, or opens an existing one for writing."""

import errno
import logging
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rolltrace.errors import InputError, RolltraceError, RunExistsError, StorageError
from rolltrace.secret_redaction import redact_mapping
from rolltrace.store.layout import FOLDERS, RUN_FILE, RunInfo, decode_info, encode_info, read_info
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.object_files import ObjectFiles, files_of
from rolltrace.store.recording import Level, Recording, resolve_recording
from rolltrace.store.safe_files import publish_file, refuse_link, sync_path, unfinished_file
from rolltrace.store.upload import upload_leftovers
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import Note, describe, to_json_mapping
from rolltrace.trace.ids import new_id
from rolltrace.trace.limits import MAX_INFO_BYTES
from rolltrace.version import __version__

logger = logging.getLogger(__name__)

_GIT_SECONDS = 2.0
_BAD_PATH_ERRNOS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP})
"""Errors of a path that cannot exist. All others are failures of the disk."""
_UNFINISHED = f".{RUN_FILE}."
"""Prefix of the temporary file that becomes `run.json`. A process that died may have left one."""


def create_run(
    path: str | Path,
    config: Mapping[str, Any] | None = None,
    join: bool = False,
    trace: Recording | Level | str | None = None,
    continues: Iterable[str] | None = None,
    planned: int | None = None,
    handle_sigterm: bool = True,
) -> RunWriter:
    """Return a writer for a new run at `path`; with `join`, for an existing run, as a new session.

    A run that is joined keeps its config. `planned` is how many rollouts (in games: episodes) the run is to have: a run
    that is closed with fewer is shown as interrupted. `trace` says how much to record.

    `continues` names the sessions that this one resumes: it supersedes those and no others, and `()` supersedes none.
    Without it, time decides: a session that starts after another has ended supersedes it, and sessions that overlap
    collide.

    If SIGTERM has its default action and this is the main thread, the signal records open rollouts as cancelled and
    closes the run before it ends the process; `handle_sigterm=False` leaves it alone.
    """
    folder = as_path(path)
    continued = _check_continues(continues, join)
    recording = resolve_recording(trace)
    try:
        info = _join(folder) if join else _create(folder, config, _check_planned(planned))
    except RolltraceError:
        raise
    except OSError as error:
        kind = InputError if error.errno in _BAD_PATH_ERRNOS else StorageError
        raise kind(f"Cannot write a run at {folder}: {error.strerror or error}. Choose another path.") from error
    writer = RunWriter(folder, info, recording, continued, handle_sigterm=handle_sigterm)
    if is_address(folder) and writer.records and not writer.ledger_is_stored():
        writer.close()
        raise StorageError(f"Cannot write a run at {folder}: its ledger cannot be uploaded. Try again, with join=True.")
    return writer


def unused_run_path(folder: str | Path, name: str) -> Path:
    """A path in the folder that does not exist yet: the name, or the name with a number."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip(".-") or "run"
    path = Path(folder) / safe
    number = 2
    while path.exists():
        path = Path(folder) / f"{safe}-{number}"
        number += 1
    return path


def _check_continues(continues: Iterable[str] | None, join: bool) -> tuple[str, ...] | None:
    """Check the ids of the sessions to continue; `()` for a new run."""
    if continues is None:
        return None if join else ()
    value: Any = continues
    sessions = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(session, str) and session for session in sessions):
        raise InputError(f"Expected the ids of sessions in continues=, got {describe(value)}.")
    if sessions and not join:
        raise InputError("Expected join=True with continues=: a new run has no sessions to continue.")
    return sessions


def _check_planned(planned: Any) -> int | None:
    if planned is None or (type(planned) is int and planned > 0):
        return planned
    raise InputError(f"Expected planned= to be a number of rollouts, 1 or more, got {describe(planned)}.")


def _create(folder: Path, config: Mapping[str, Any] | None, planned: int | None) -> RunInfo:
    if is_address(folder):
        return _create_objects(ObjectFiles(folder), _new_info(config, planned))
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a new or empty directory for the run, got the file {folder}. Choose another path.")
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    if RUN_FILE in names:
        raise _exists(folder)
    if any(not name.startswith(_UNFINISHED) for name in names):
        raise InputError(
            f"Expected a new or empty directory for the run, got {folder}, which has other files. Choose another path."
        )
    info = _new_info(config, planned)
    created = [parent for parent in (folder.absolute(), *folder.absolute().parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    _write_new(folder / RUN_FILE, info)
    _make_folders(folder)
    for path in created or [folder.absolute()]:
        sync_path(path.parent)
    return decode_info(info)


def _create_objects(files: ObjectFiles, info: bytes) -> RunInfo:
    """Create a run in an object store. Its folders need not be made."""
    try:
        files.put(RUN_FILE, info, overwrite=False)
    except FileExistsError:
        if files.read(RUN_FILE, 0, MAX_INFO_BYTES) != info:  # else the answer to the first request was lost
            raise _exists(files.path) from None
    return decode_info(info)


def _new_info(config: Mapping[str, Any] | None, planned: int | None) -> bytes:
    """The bytes of a new `run.json`."""
    info = encode_info(
        RunInfo(
            id=new_id(),
            created_at=utc_now(),
            config=_plain_config(config),
            package_version=__version__,
            code_revision=code_revision(),
            planned=planned,
        )
    )
    if len(info) > MAX_INFO_BYTES:
        raise InputError(f"Expected a config of at most {MAX_INFO_BYTES} bytes as JSON, got {len(info)}.")
    return info


def _join(folder: Path) -> RunInfo:
    info = read_info(files_of(folder))
    if is_address(folder):
        upload_leftovers(ObjectFiles(folder), info.id)
    else:
        _make_folders(folder)
    return info


def _make_folders(run: Path) -> None:
    for name in FOLDERS:
        refuse_link(run / name).mkdir(exist_ok=True)
    sync_path(run)


def _write_new(path: Path, data: bytes) -> None:
    """Write a file atomically; raise if another process has created it meanwhile."""
    with unfinished_file(path.with_name(f"{_UNFINISHED}{new_id()}")) as unfinished:
        unfinished.write_bytes(data)
        try:
            publish_file(unfinished, path, overwrite=False)
        except FileExistsError:
            raise _exists(path.parent) from None


def _exists(folder: Path) -> RunExistsError:
    return RunExistsError(
        f"Expected no run at {folder}, got one: a run is never overwritten. Choose another path, or pass join=True."
    )


def _plain_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    notes: list[Note] = []
    plain = to_json_mapping(config or {}, "config", notes)
    for note in notes:
        logger.warning("%s: %s", note.path, note.message)
    return dict(redact_mapping(plain))


def code_revision() -> str | None:
    """The commit of the working directory; None if git is missing, slow or fails."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],  # noqa: S607 - whichever git the user runs
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_GIT_SECONDS, check=False, text=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
