"""Makes a run, or opens an existing one for writing."""

import errno
import logging
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rolltrace.errors import InputError, RolltraceError, RunExistsError, StorageError
from rolltrace.secret_redaction import redact_mapping
from rolltrace.store.layout import FOLDERS, RUN_FILE, RunInfo, decode_info, encode_info
from rolltrace.store.recording import Level, Recording, resolve_recording
from rolltrace.store.run_info import read_info
from rolltrace.store.safe_files import publish_file, refuse_link, sync_folder, unfinished_file
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.freeform import Note, describe, to_json_mapping
from rolltrace.trace.rollout_builder import new_id
from rolltrace.version import __version__

logger = logging.getLogger(__name__)

_GIT_SECONDS = 2.0
_BAD_PATH_ERRNOS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP})
"""What goes wrong where a place cannot exist; all else is the disk's."""
_UNFINISHED = f".{RUN_FILE}."
"""How the names of files begin that are to become `run.json`; a process that died may have left one."""


def create_run(
    path: str | Path,
    config: Mapping[str, Any] | None = None,
    join: bool = False,
    trace: Recording | Level | str | None = None,
    continues: Iterable[str] | None = None,
    planned: int | None = None,
    handle_sigterm: bool = True,
) -> RunWriter:
    """A writer for a new run at `path`; with `join`, for one that exists, as a new session.

    A run that is joined keeps the config it was made with. `planned` is how many rollouts (of games: episodes) the run
    is to have: a run that is closed with fewer is shown as interrupted. `trace` says how much to record.

    `continues` names the sessions that this one resumes: it supersedes those and no others, and `()` supersedes none.
    Without it, readers go by time: a session that begins after another has ended repeats it, sessions that overlap
    collide.

    If SIGTERM has its default action and this is the main thread, the signal records open rollouts as cancelled and
    closes the run before it ends the process; `handle_sigterm=False` leaves it alone.
    """
    place = Path(path)
    continued = _continued(continues, join)
    recording = resolve_recording(trace)
    try:
        info = _join(place) if join else _create(place, config, _checked_plan(planned))
    except RolltraceError:
        raise
    except OSError as error:
        kind = InputError if error.errno in _BAD_PATH_ERRNOS else StorageError
        raise kind(f"Cannot write a run at {place}: {error.strerror or error}. Choose another place.") from error
    return RunWriter(place, info, recording, continued, handle_sigterm=handle_sigterm)


def unused_run_path(folder: str | Path, name: str) -> Path:
    """A place in the folder at which there is nothing yet: the name, or the name with a number."""
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).strip(".-") or "run"
    path = Path(folder) / safe
    number = 2
    while path.exists():
        path = Path(folder) / f"{safe}-{number}"
        number += 1
    return path


def _continued(continues: Iterable[str] | None, join: bool) -> tuple[str, ...] | None:
    """The sessions to continue, checked; a new run has none."""
    if continues is None:
        return None if join else ()
    given: Any = continues
    sessions = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(session, str) and session for session in sessions):
        raise InputError(f"Expected the ids of sessions in continues=, got {describe(given)}.")
    if sessions and not join:
        raise InputError("Expected join=True with continues=: a new run has no sessions to continue.")
    return sessions


def _checked_plan(planned: Any) -> int | None:
    if planned is None or (type(planned) is int and planned > 0):
        return planned
    raise InputError(f"Expected planned= to be a number of rollouts, 1 or more, got {describe(planned)}.")


def _create(place: Path, config: Mapping[str, Any] | None, planned: int | None) -> RunInfo:
    if place.exists() and not place.is_dir():
        raise InputError(f"Expected a place for a new run, got the file {place}. Choose another place.")
    found = {entry.name for entry in place.iterdir()} if place.exists() else set()
    if RUN_FILE in found:
        raise _exists(place)
    if any(not name.startswith(_UNFINISHED) for name in found):
        raise InputError(
            f"Expected a new or empty directory for the run, got {place}, which holds other files. "
            "Choose another place."
        )
    described = encode_info(
        RunInfo(
            id=new_id(),
            created_at=utc_now(),
            config=_plain_config(config),
            package_version=__version__,
            code_revision=code_revision(),
            planned=planned,
        )
    )
    made = [parent for parent in (place.absolute(), *place.absolute().parents) if not parent.exists()]
    place.mkdir(parents=True, exist_ok=True)
    _write_new(place / RUN_FILE, described)
    _make_folders(place)
    for folder in made or [place.absolute()]:
        sync_folder(folder.parent)
    return decode_info(described)


def _join(place: Path) -> RunInfo:
    info = read_info(place)
    _make_folders(place)
    return info


def _make_folders(place: Path) -> None:
    for folder in FOLDERS:
        refuse_link(place / folder).mkdir(exist_ok=True)
    sync_folder(place)


def _write_new(path: Path, data: bytes) -> None:
    """Write a file atomically; raise if another process has made it meanwhile."""
    with unfinished_file(path.with_name(f"{_UNFINISHED}{new_id()}")) as unfinished:
        unfinished.write_bytes(data)
        try:
            publish_file(unfinished, path, overwrite=False)
        except FileExistsError:
            raise _exists(path.parent) from None


def _exists(place: Path) -> RunExistsError:
    return RunExistsError(
        f"Expected no run at {place}, found one: a run is never overwritten. Choose another place, or join it."
    )


def _plain_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    notes: list[Note] = []
    plain = to_json_mapping(config or {}, "config", notes)
    for note in notes:
        logger.warning("%s: %s", note.path, note.message)
    return dict(redact_mapping(plain))


def code_revision() -> str | None:
    """The commit of the working directory, where git is there and quick to say it."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],  # noqa: S607 - whichever git the user runs
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_GIT_SECONDS, check=False, text=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
