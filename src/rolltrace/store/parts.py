"""Derived parts: the tables made from ranges of a run's lines, as immutable folders of Parquet files."""

import contextlib
import hashlib
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from rolltrace.store.cache_key import add_signature, cache_folders, make_cache_folder, read_signed
from rolltrace.store.read_errors import ReadError
from rolltrace.store.safe_files import open_regular, remove_abandoned_files
from rolltrace.store.segment_reader import SegmentEntry
from rolltrace.trace.ids import new_id

Ranges = dict[str, tuple[int, int]]
"""By file, the first byte and the end, uncompressed."""

Bounds = tuple[float, float]
"""The first and the last iteration of some rows; they may be infinite."""

INFO_FILE = "part.json"
MAX_INFO_BYTES = 16 << 20
_UNFINISHED = re.compile(r"\.part-[a-z]+-[0-9a-f]+")


class RowStats(msgspec.Struct):
    """Counts over the lines of some tables; queries use them to skip joins."""

    rows: dict[str, int] = {}
    """By table, the number of rows."""
    sessions: set[str] = msgspec.field(default_factory=set)
    """The sessions of the rollouts."""
    has_retries: bool = False
    """Whether any rollout is a later attempt."""
    rewards: int = 0
    """How many scores are rewards of rollouts."""
    lines: dict[str, int] = {}
    """By file, the number of its lines."""
    ids: tuple[str, str] = ("", "")
    """The first and the last id of a line, in alphabetical order."""
    repeats: int = 0
    """How many lines repeat the id of another one; counted when a part is written."""
    iterations: tuple[int, int] | None = None
    """The first and the last iteration of rollouts; None if that is not known."""

    def merge(self, other: "RowStats") -> None:
        """Add the counts of other lines."""
        if not self.rows:
            self.ids, self.iterations = other.ids, other.iterations
        elif other.rows:
            own, others = self.iterations, other.iterations
            self.ids = min(self.ids[0], other.ids[0]), max(self.ids[1], other.ids[1])
            self.iterations = (min(own[0], others[0]), max(own[1], others[1])) if own and others else None
        for counts, more in ((self.rows, other.rows), (self.lines, other.lines)):
            counts.update({name: counts.get(name, 0) + count for name, count in more.items()})
        self.sessions |= other.sessions
        self.has_retries |= other.has_retries
        self.rewards += other.rewards


class PartInfo(msgspec.Struct, kw_only=True):
    """What a part says about itself."""

    layout: int = 0
    """The version of its tables."""
    kind: str = ""
    """The kind of its tables: `rollouts`, `texts` or `scores`."""
    ranges: Ranges
    """The ranges of lines that it was made from."""
    stats: RowStats
    finished: dict[str, int] = {}
    """By segment that was compressed and read to its end, the size of its file."""
    scores_covered: dict[str, int] = {}
    """By file of scores, the byte up to which its rewards include them."""
    errors: list[ReadError] = []
    """The lines in its ranges that could not be read."""
    digests: dict[str, str] = {}
    """By table, the checksum of its file; empty as long as the part is private to a process."""
    id_blocks: bytes = b""
    """The blocks of its index by id, which parts of texts do not have, see `id_blocks`."""

    def may_have(self, bounds: Bounds | None) -> bool:
        """Whether it may have rollouts of an iteration between these."""
        own = self.stats.iterations
        return bounds is None or own is None or (own[0] <= bounds[1] and bounds[0] <= own[1])


class ParquetPart(msgspec.Struct, frozen=True):
    """The rows of one table in a part."""

    path: Path
    info: PartInfo

    @property
    def is_intact(self) -> bool:
        """Whether its file has its checksum; that of a private part only has to exist."""
        digest = self.info.digests.get(self.path.stem)
        return self.path.is_file() and (digest is None or _file_digest(self.path) == digest)


class Part(msgspec.Struct, frozen=True):
    """A folder with a Parquet file for each table that has rows."""

    path: Path
    info: PartInfo

    @property
    def size(self) -> int:
        """How many bytes of lines it covers."""
        return sum(last - first for first, last in self.info.ranges.values())

    @property
    def tables(self) -> list[str]:
        """The tables that have rows."""
        return [table for table, rows in self.info.stats.rows.items() if rows]

    def table(self, name: str) -> ParquetPart:
        """The rows of one table."""
        return ParquetPart(self.path / f"{name}.parquet", self.info)


def find_parts(run: Path, run_id: str, kind: str) -> list[Part]:
    """The parts of a run with tables of this kind that this user, or the user's team, has made."""
    parts = []
    for path in (path for cache in cache_folders(run, run_id) for path in part_folders(cache, kind)):
        with contextlib.suppress(OSError, ValueError):  # it is damaged, or signed with another key
            info = msgspec.json.decode(read_signed(path / INFO_FILE, run_id, MAX_INFO_BYTES), type=PartInfo)
            parts += [Part(path, info)] if info.kind == kind else []
    return parts


def part_folders(cache: Path, kind: str = "[a-z]+") -> list[Path]:
    """Every part in a cache, or those of a kind, damaged or not; links are skipped."""
    with contextlib.suppress(OSError):
        paths = () if cache.is_symlink() else cache.iterdir()
        named = [path for path in paths if re.fullmatch(f"part-{kind}-[0-9a-f]+", path.name)]
        return sorted(path for path in named if path.is_dir() and not path.is_symlink())
    return []


def covering_parts(
    parts: Sequence[Part], folder: str, segments: Iterable[SegmentEntry]
) -> tuple[list[Part], dict[str, int]]:
    """Choose parts that cover each file from its first byte on, without overlap; returns them and how far they reach.

    `segments` are those that exist in the folder. A part made from a deleted or truncated file is not used.
    """
    # By file, its size; a compressed one counts as unlimited, because it no longer changes.
    sizes = {f"{folder}/{entry.stem}": sys.maxsize if entry.is_compressed else entry.size for entry in segments}
    covered: dict[str, int] = {}
    chosen: list[Part] = []
    rest = sorted(parts, key=lambda part: (part.size, part.path.name), reverse=True)
    rest = [part for part in rest if all(last <= sizes.get(file, -1) for file, (_, last) in part.info.ranges.items())]
    while fitting := next((part for part in rest if _fits(part, covered)), None):
        rest.remove(fitting)
        chosen.append(fitting)
        covered |= {file: last for file, (_, last) in fitting.info.ranges.items()}
    return chosen, covered


def merged_info(infos: Sequence[PartInfo]) -> PartInfo:
    """The description of one part with the rows of several of one kind."""
    stats, ranges = RowStats(), Ranges()
    for info in infos:
        stats.merge(info.stats)
        for file, (first, last) in info.ranges.items():
            start, end = ranges.get(file, (first, last))
            ranges[file] = min(start, first), max(end, last)
    covered = [info.scores_covered for info in infos]
    return PartInfo(
        layout=infos[0].layout,
        kind=infos[0].kind,
        ranges=ranges,
        stats=stats,
        finished={file: size for info in infos for file, size in info.finished.items()},
        scores_covered={file: min(one.get(file, 0) for one in covered) for file in set().union(*covered)},
        errors=[error for info in infos for error in info.errors],
    )


def publish_part(part: Part, cache: Path, run_id: str) -> Part:
    """Move a private part atomically to a cache of its run, or copy it if that is on another file system.

    It is not synced: after a power loss its files may be incomplete, and then their checksums differ.
    """
    name = f"part-{part.info.kind}-{new_id()}"
    remove_abandoned_files(make_cache_folder(cache), _UNFINISHED)
    digests = {table: _file_digest(part.table(table).path) for table in part.tables}
    info = msgspec.structs.replace(part.info, digests=digests)
    (part.path / INFO_FILE).write_bytes(add_signature(msgspec.json.encode(info), run_id))
    try:
        part.path.rename(cache / name)
    except OSError:
        unfinished = cache / f".{name}"
        try:
            shutil.copytree(part.path, unfinished)
            unfinished.rename(cache / name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return Part(cache / name, info)


def remove_parts(paths: Iterable[Path]) -> None:
    """Delete parts."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _fits(part: Part, covered: Mapping[str, int]) -> bool:
    ranges = part.info.ranges
    return bool(ranges) and all(covered.get(file, 0) == first for file, (first, _) in ranges.items())


def _file_digest(path: Path) -> str | None:
    """The checksum of a file; None if it cannot be read."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None
