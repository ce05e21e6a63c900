"""Parts of a table that were made before: immutable Parquet files in a run's `cache/`, each knowing what it covers."""

import contextlib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rolltrace.query.table_rows import RowStats
from rolltrace.query.table_schema import LAYOUT_VERSION, sql_literal
from rolltrace.store.layout import CACHE
from rolltrace.store.safe_files import (
    file_crc32,
    matches_name_checksum,
    publish_file,
    refuse_link,
    remove_abandoned_files,
    unfinished_file,
)
from rolltrace.trace.rollout_builder import new_id

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "CACHE",
    "METADATA_KEY",
    "ParquetPart",
    "PartMetadata",
    "Ranges",
    "covering_parts",
    "find_parts",
    "is_intact",
    "parquet_files",
    "publish_part",
]

METADATA_KEY = "rolltrace"
"""The key of a Parquet file's own metadata under which a part says what it is."""

Ranges = dict[str, tuple[int, int]]
"""By file, from which byte and up to which, uncompressed."""

_CHECKSUM = re.compile(r"[a-z_]+-[0-9a-f]+-([0-9a-f]{8})\.parquet")
_UNFINISHED = re.compile(r"\.[a-z_]+-[0-9a-f]+\.parquet")


class PartMetadata(msgspec.Struct, kw_only=True):
    """What a part says of itself."""

    layout: int = LAYOUT_VERSION
    table: str
    ranges: Ranges
    """What it was made from."""
    facts: RowStats
    scores_covered: dict[str, int] = {}
    """By file of scores, up to which byte the rewards in it are taken into account."""


class ParquetPart(msgspec.Struct, frozen=True):
    """A Parquet file with some rows of a table."""

    path: Path
    label: PartMetadata

    @property
    def size(self) -> int:
        """How many bytes of lines it covers."""
        return sum(last - first for first, last in self.label.ranges.values())


def find_parts(
    run: Path, tables: Iterable[str], connection: "duckdb.DuckDBPyConnection"
) -> dict[str, list[ParquetPart]]:
    """The parts in the run's cache that can be read; whatever else is there is passed over."""
    found: dict[str, list[ParquetPart]] = {table: [] for table in tables}
    for path in parquet_files(run):
        # A flipped bit can give wrong numbers as easily as an error, so the bytes are checked before they are used.
        is_wanted = path.name.partition("-")[0] in found and is_intact(path)
        if is_wanted and (part := _read_part(path, connection)) is not None:
            found[part.label.table].append(part)
    return found


def covering_parts(parts: Sequence[ParquetPart], sizes: Mapping[str, int]) -> tuple[list[ParquetPart], dict[str, int]]:
    """Parts that together cover each file from its first byte on, once; and how far they do.

    `sizes` has the files that are there: a part made from what is not there any more is not used.
    """
    covered: dict[str, int] = {}
    chosen: list[ParquetPart] = []
    rest = sorted(parts, key=lambda part: (part.size, part.path.name), reverse=True)
    rest = [part for part in rest if all(last <= sizes.get(file, -1) for file, (_, last) in part.label.ranges.items())]
    while fitting := next((part for part in rest if _fits(part, covered)), None):
        rest.remove(fitting)
        chosen.append(fitting)
        covered |= {file: last for file, (_, last) in fitting.label.ranges.items()}
    return chosen, covered


def publish_part(part: ParquetPart, run: Path) -> ParquetPart:
    """Copy a part atomically to the run's cache."""
    folder, name = run / CACHE, f"{part.label.table}-{new_id()}"
    refuse_link(folder).mkdir(exist_ok=True)
    remove_abandoned_files(folder, _UNFINISHED)
    with unfinished_file(folder / f".{name}.parquet") as unfinished:
        shutil.copyfile(part.path, unfinished)
        path = folder / f"{name}-{file_crc32(unfinished):08x}.parquet"
        publish_file(unfinished, path)
    return ParquetPart(path, part.label)


def is_intact(path: Path) -> bool:
    """Whether a part has the checksum in its name; a part outside a cache has none, and only has to exist."""
    return path.is_file() and (_CHECKSUM.fullmatch(path.name) is None or matches_name_checksum(path) is True)


def remove_stale_parts(kept: Iterable[Path], existing: Iterable[Path]) -> None:
    """Delete parts that were there before and are not needed any more."""
    names = {path.name for path in kept}
    for path in existing:
        if path.name not in names:
            with contextlib.suppress(OSError):
                path.unlink()


def parquet_files(run: Path) -> list[Path]:
    """Every finished part in the run's cache, sound or not; links and what others put there are passed over."""
    folder = run / CACHE
    if folder.is_symlink():
        return []
    try:
        paths = list(folder.iterdir())
    except OSError:
        return []
    return sorted(path for path in paths if _CHECKSUM.fullmatch(path.name) and _is_plain_file(path))


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read_part(path: Path, connection: "duckdb.DuckDBPyConnection") -> ParquetPart | None:
    import duckdb

    try:
        metadata = f"parquet_kv_metadata({sql_literal(path)})"
        query = f"select decode(value) from {metadata} where decode(key) = {sql_literal(METADATA_KEY)}"
        row = connection.execute(query).fetchone()
        label = msgspec.json.decode(row[0], type=PartMetadata) if row is not None else None
    except duckdb.InterruptException:
        raise
    except (duckdb.Error, ValueError):
        return None
    if label is None or label.layout != LAYOUT_VERSION or not path.name.startswith(f"{label.table}-"):
        return None
    return ParquetPart(path, label)


def _fits(part: ParquetPart, covered: Mapping[str, int]) -> bool:
    ranges = part.label.ranges
    return bool(ranges) and all(covered.get(file, 0) == first for file, (first, _) in ranges.items())
