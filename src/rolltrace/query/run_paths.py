"""Finds and opens the runs that paths, directories of runs, addresses and patterns name."""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rolltrace.errors import InputError, RunNotFoundError
from rolltrace.store.layout import ROLLOUTS, RUN_FILE, find_object_runs, is_run, list_address, read_info
from rolltrace.store.object_address import as_path, is_address
from rolltrace.store.object_files import map_requests
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import LocalFiles, RunFiles

_PATTERN = re.compile(r"[*?[]")


def open_readers(paths: Iterable[str | Path | RunFiles]) -> list[RunReader]:
    """The readers of all runs at these paths; a run that is named twice, or has a copy among them, is refused."""
    runs = [run for path in paths for run in _runs_at(path)]
    if not runs:
        raise InputError("Expected at least one run to open, got no paths.")
    readers = map_requests(RunReader, runs) if any(map(_is_remote, runs)) else [RunReader(run) for run in runs]
    known: dict[str, Path] = {}
    for reader in readers:
        first = known.setdefault(reader.info.id, reader.path)
        if first is not reader.path:
            raise InputError(
                f"Expected each run once, got {first} and {reader.path}, which are copies of the same run: "
                "open one of them, or list the runs one by one."
            )
    return readers


def _is_remote(run: Path | RunFiles) -> bool:
    return is_address(run.path if isinstance(run, RunFiles) else run)


def _runs_at(run: str | Path | RunFiles) -> Sequence[Path | RunFiles]:
    if isinstance(run, RunFiles):
        return [run]
    path = as_path(run)
    if is_run(path):
        return [path]
    runs = _child_runs(path) or _matching_runs(path)
    if not runs:
        if (path / ROLLOUTS).is_dir():
            read_info(LocalFiles(path))  # raises the error for a missing run.json
        raise RunNotFoundError(
            f"Expected a run at {path}, a directory with {RUN_FILE}, or a directory of runs, "
            f"got {'neither' if path.exists() else 'nothing'}."
        )
    return runs


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
