"""One immutable SQLite file of the id index: the locations of lines, for some ranges of some segments."""

import contextlib
import re
import secrets
import sqlite3
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rolltrace.store.cursor import LineLocation
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.store.safe_files import (
    file_crc32,
    matches_name_checksum,
    publish_file,
    refuse_link,
    remove_abandoned_files,
)

_VERSION = 4
_NAME = re.compile(r"offsets-[0-9a-f]{16}-[0-9a-f]{8}\.sqlite")
_UNFINISHED_NAME = re.compile(r"\.offsets-[0-9a-f]{16}")

_SCHEMA = f"""
PRAGMA page_size = 8192; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA user_version = {_VERSION};
PRAGMA cache_size = -32768;
CREATE TABLE files (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE ranges (file TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE problems (file TEXT NOT NULL, position INTEGER NOT NULL, message TEXT NOT NULL, kind TEXT NOT NULL);
CREATE TABLE lines (
    rollout TEXT, file INTEGER, position INTEGER, length INTEGER, PRIMARY KEY (rollout, file, position)
) WITHOUT ROWID;
BEGIN;
"""

_ABSORB = """
INSERT OR IGNORE INTO lines SELECT theirs.rollout, files.number, theirs.position, theirs.length
FROM other.lines AS theirs JOIN other.files AS named ON named.number = theirs.file JOIN files ON files.name = named.name
"""
_FIND = "SELECT rollout, name, position, length FROM lines JOIN files ON number = file WHERE rollout IN ({})"


class ByteRange(NamedTuple):
    """A range of a segment whose lines are all in the index."""

    file: str
    first: int
    last: int
    """The offset after its last byte."""


def merge_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge adjacent and overlapping ranges."""
    merged: list[ByteRange] = []
    for following in sorted(ranges):
        if merged and merged[-1].file == following.file and following.first <= merged[-1].last:
            merged[-1] = merged[-1]._replace(last=max(merged[-1].last, following.last))
        else:
            merged.append(following)
    return merged


class IdIndexFile:
    """An index file that is open for reading. Any SQLite error means that it is damaged or deleted."""

    def __init__(self, path: Path | None, connection: sqlite3.Connection) -> None:
        self.path = path
        """None for a private one of this process."""
        self._connection = connection
        self._closing = weakref.finalize(self, connection.close)  # if `close` is never called
        self._closing.atexit = False
        connection.execute("PRAGMA cell_size_check = ON")  # detects damaged pages
        if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
            raise sqlite3.OperationalError("another version")
        self.ranges = [ByteRange(str(file), int(first), int(last)) for file, first, last in self._all("ranges")]
        self.problems = [
            ReadError(str(file), int(at), str(message), kind=ReadErrorKind(kind))
            for file, at, message, kind in self._all("problems")
        ]
        self.size = path.stat().st_size if path else 0
        """In bytes."""

    @classmethod
    def open(cls, path: Path) -> "IdIndexFile":
        """Open the file at `path`."""
        if not path.is_file():  # SQLite would wait for a pipe
            raise sqlite3.OperationalError("not a regular file")
        connection = sqlite3.connect(_immutable(path), uri=True, isolation_level=None, check_same_thread=False)
        try:
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def find(self, rollouts: Sequence[str]) -> list[tuple[str, LineLocation]]:
        """The locations of the lines of these rollouts and of their scores."""
        rows = self._connection.execute(_FIND.format(", ".join("?" * len(rollouts))), rollouts).fetchall()
        return [
            (str(rollout), LineLocation(str(name), int(position), int(length)))
            for rollout, name, position, length in rows
        ]

    def close(self) -> None:
        """Close the file."""
        self._closing()

    def _all(self, table: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - a name of ours


def find_files(folder: Path) -> list[Path]:
    """The index files of a cache folder, by name; links and other files are skipped."""
    if folder.is_symlink():
        return []
    try:
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and not path.is_symlink())
    except OSError:
        return []


def is_intact(path: Path) -> bool:
    """Whether an index file has the checksum that is in its name."""
    return matches_name_checksum(path) is True


def is_damaged(path: Path) -> bool:
    """Whether an index file has another checksum than the one in its name; False if it cannot be read now."""
    return matches_name_checksum(path) is False


class IdIndexWriter:
    """An index file that is being written; without a folder, a private one of this process."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._unfinished: Path | None = None
        if folder is not None:
            refuse_link(folder).mkdir(exist_ok=True)
            remove_abandoned_files(folder, _UNFINISHED_NAME)
            self._unfinished = folder / f".offsets-{secrets.token_hex(8)}"
        # Without a name, SQLite uses a temporary file, which is deleted when the process ends.
        target = "" if self._unfinished is None else self._unfinished.absolute().as_uri()
        self._connection = sqlite3.connect(target, uri=True, isolation_level=None, check_same_thread=False)
        self._numbers: dict[str, int] = {}
        self._ranges: list[ByteRange] = []
        self._problems: dict[tuple[str, int], ReadError] = {}
        self._connection.executescript(_SCHEMA)

    @property
    def is_shared(self) -> bool:
        """Whether other processes will see it."""
        return self._folder is not None

    @property
    def size(self) -> int:
        """In bytes."""
        query = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self._connection.execute(query).fetchone()[0])

    def add(self, lines: Sequence[tuple[str, LineLocation]]) -> None:
        """Add lines, each with the id of the rollout that it records or scores."""
        for file in {location.file for _, location in lines}:
            self._number(file)
        numbers = self._numbers
        self._connection.executemany(
            "INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?)",
            [(rollout, numbers[file], offset, length) for rollout, (file, offset, length) in lines],
        )

    def cover(self, ranges: Iterable[ByteRange], problems: Iterable[ReadError]) -> None:
        """Add the ranges that were scanned, and the read errors in them."""
        self._ranges.extend(ranges)
        for problem in problems:
            if problem.offset is not None:
                self._problems.setdefault((problem.file, problem.offset), problem)

    def merge(self, path: Path, other: IdIndexFile) -> None:
        """Add everything that another file has."""
        self._connection.execute("COMMIT")
        self._connection.execute("ATTACH ? AS other", (_immutable(path),))
        self._connection.execute("BEGIN")
        for (name,) in self._connection.execute("SELECT name FROM other.files").fetchall():
            self._number(name)
        self._connection.execute(_ABSORB)
        self._connection.execute("COMMIT")
        self._connection.execute("DETACH other")
        self._connection.execute("BEGIN")
        self.cover(other.ranges, other.problems)

    def finish(self) -> IdIndexFile:
        """Write the file, and publish it if it is not private."""
        self._connection.executemany("INSERT INTO ranges VALUES (?, ?, ?)", merge_ranges(self._ranges))
        rows = [
            (problem.file, problem.offset, problem.message, problem.kind.value) for problem in self._problems.values()
        ]
        self._connection.executemany("INSERT INTO problems VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")
        if self._unfinished is None or self._folder is None:
            return IdIndexFile(None, self._connection)
        self._connection.close()
        path = self._folder / f"offsets-{secrets.token_hex(8)}-{file_crc32(self._unfinished):08x}.sqlite"
        publish_file(self._unfinished, path)
        return IdIndexFile.open(path)

    def abandon(self) -> None:
        """Delete the unfinished file."""
        self._connection.close()
        if self._unfinished is not None:
            with contextlib.suppress(OSError):
                self._unfinished.unlink(missing_ok=True)

    def _number(self, file: str) -> int:
        number = self._numbers.get(file)
        if number is None:
            number = self._numbers[file] = len(self._numbers)
            self._connection.execute("INSERT INTO files VALUES (?, ?)", (number, file))
        return number


def _immutable(path: Path) -> str:
    """The URI with which SQLite opens an immutable file: without locks, and without creating it."""
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"
