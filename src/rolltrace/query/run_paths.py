"""Finds and opens the runs that paths, directories of runs, addresses and patterns name."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from rolltrace.errors import InputError, RunNotFoundError, StorageError
from rolltrace.store.layout import ROLLOUTS, RUN_FILE, find_object_runs, is_run, list_address, read_info
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.object_files import map_requests
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles, RunFiles

_PATTERN = re.compile(r"[*?[]")


def open_readers(paths: Iterable[str | Path | RunFiles]) -> tuple[list[RunReader], list[ReadError]]:
    """The readers of all runs at these paths, and an error for each run of a directory or pattern that is left out.

    If a run that a path names itself cannot be opened, or if no run can, the error is raised. A run that is named
    twice, or has a copy among them, is refused.
    """
    runs = [run for path in paths for run in _runs_at(path)]
    if not runs:
        raise InputError("Expected at least one run to open, got no paths.")
    opened = map_requests(_open, runs) if any(map(_is_remote, runs)) else [_open(run) for run in runs]
    errors = [one for one in opened if isinstance(one, ReadError)]
    readers = [one for one in opened if isinstance(one, RunReader)]
    if not readers:
        raise RunNotFoundError(errors[0].message)
    known: dict[str, Path] = {}
    for reader in readers:
        first = known.setdefault(reader.info.id, reader.path)
        if first is not reader.path:
            raise InputError(
                f"Expected each run once, got {first} and {reader.path}, which are copies of the same run: "
                "open one of them, or list the runs one by one."
            )
    return readers, errors


class _FoundRun(NamedTuple):
    """A run, and whether a path names it, and not only its directory or a pattern."""

    run: Path | RunFiles
    is_named: bool


def _open(found: _FoundRun) -> RunReader | ReadError:
    try:
        return RunReader(found.run)
    except (RunNotFoundError, StorageError) as error:
        if found.is_named:
            raise
        kind = ReadErrorKind.UNREADABLE if isinstance(error, StorageError) else ReadErrorKind.DAMAGED
        return ReadError(f"{found.run}/{RUN_FILE}", None, f"{error} The other runs are read without it.", kind=kind)


def _is_remote(found: _FoundRun) -> bool:
    return is_address(found.run.path if isinstance(found.run, RunFiles) else found.run)


def _runs_at(run: str | Path | RunFiles) -> list[_FoundRun]:
    if isinstance(run, RunFiles):
        return [_FoundRun(run, is_named=True)]
    path = as_path(run)
    if is_run(path):
        return [_FoundRun(path, is_named=True)]
    runs = _child_runs(path) or _matching_runs(path)
    if not runs:
        if (path / ROLLOUTS).is_dir():
            read_info(LocalFiles(path))  # raises the error for a missing run.json
        raise RunNotFoundError(
            f"Expected a run at {path}, a directory with {RUN_FILE}, or a directory of runs, "
            f"got {'neither' if path.exists() else 'nothing'}."
        )
    return [_FoundRun(run, is_named=False) for run in runs]


def _child_runs(path: Path) -> list[Path]:
    if is_address(path):
        return list(find_object_runs(path, depth=1))
    try:
        # Links are skipped: `runs/latest` may be a link to a run in the same directory.
        return sorted(child for child in path.iterdir() if not child.is_symlink() and is_run(child))
    except OSError:
        return []


def _matching_runs(path: Path) -> list[Path]:
    """The runs, and those in directories of runs, whose paths match a pattern; what is neither is skipped."""
    if not _PATTERN.search(str(path)):
        return []
    return [run for place in _matching_paths(path) for run in ([place] if is_run(place) else _child_runs(place))]


def _matching_paths(path: Path) -> list[Path]:
    if not _PATTERN.search(str(path)):
        return [path]
    folders = _matching_paths(path.parent)
    if not _PATTERN.search(path.name):
        return [folder / path.name for folder in folders]
    return [folder / name for folder in folders for name in _folders_in(folder) if fnmatchcase(name, path.name)]


def _folders_in(path: Path) -> list[str]:
    """The names of the folders in a folder, without hidden ones and links."""
    try:
        names = (
            list_address(path).folders
            if is_address(path)
            else sorted(child.name for child in path.iterdir() if child.is_dir() and not child.is_symlink())
        )
    except OSError:
        return []
    return [name for name in names if not name.startswith(".")]
