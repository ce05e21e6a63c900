"""Cached parts of tables: immutable Parquet files in a run's `cache/`, each with the range of lines that it covers."""

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

METADATA_KEY = "rolltrace"
"""The key of `PartMetadata` in the metadata of a Parquet file."""

Ranges = dict[str, tuple[int, int]]
"""By file, the first byte and the end, uncompressed."""

_CHECKSUM = re.compile(r"[a-z_]+-[0-9a-f]+-([0-9a-f]{8})\.parquet")
_UNFINISHED = re.compile(r"\.[a-z_]+-[0-9a-f]+\.parquet")


class PartMetadata(msgspec.Struct, kw_only=True):
    """The metadata that a part stores in its file."""

    layout: int = LAYOUT_VERSION
    table: str
    ranges: Ranges
    """The ranges of lines that it was made from."""
    facts: RowStats
    scores_covered: dict[str, int] = {}
    """By file of scores, the byte up to which its rewards include them."""


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
    """The valid parts in the run's cache, by table."""
    parts: dict[str, list[ParquetPart]] = {table: [] for table in tables}
    for path in parquet_files(run):
        # A flipped bit may give wrong numbers instead of an error, so the checksum is verified first.
        is_usable = path.name.partition("-")[0] in parts and is_intact(path)
        if is_usable and (part := _read_part(path, connection)) is not None:
            parts[part.label.table].append(part)
    return parts


def covering_parts(parts: Sequence[ParquetPart], sizes: Mapping[str, int]) -> tuple[list[ParquetPart], dict[str, int]]:
    """Choose parts that cover each file from its first byte on, without overlap; returns them and how far they reach.

    `sizes` are the sizes of the existing files. A part made from a deleted or truncated file is not used.
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
    """Whether a part has the checksum that is in its name; a private part has none, and only has to exist."""
    return path.is_file() and (_CHECKSUM.fullmatch(path.name) is None or matches_name_checksum(path) is True)


def remove_stale_parts(current: Iterable[Path], existing: Iterable[Path]) -> None:
    """Delete those of the existing parts that are not current."""
    names = {path.name for path in current}
    for path in existing:
        if path.name not in names:
            with contextlib.suppress(OSError):
                path.unlink()


def parquet_files(run: Path) -> list[Path]:
    """Every part in the run's cache, damaged or not; links and other files are skipped."""
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
