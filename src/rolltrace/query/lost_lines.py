"""Lines that a run's ledgers count and that cannot be read, and lines that repeat an earlier one."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolltrace.query.deduplication import DistinctParts
from rolltrace.query.part_writer import copy_to_parquet, parquet_source
from rolltrace.store.layout import PLAIN_SUFFIX, ROLLOUTS, SCORES, SegmentName
from rolltrace.store.ledger import Ledger
from rolltrace.store.parts import ParquetPart, Part, PartInfo, RowStats
from rolltrace.store.read_errors import ReadError, ReadErrorKind

if TYPE_CHECKING:
    import duckdb

LineCounts = Mapping[tuple[str, str], int]
"""By folder and session, how many different lines of its files can be read."""


def missing_lines(
    ledgers: Collection[Ledger],
    lines: LineCounts,
    errors: Iterable[ReadError],
    folders: Collection[str] = (ROLLOUTS, SCORES),
) -> list[ReadError]:
    """An error for each session that wrote more lines than can be read, unless `errors` name each of them.

    This finds files that were deleted or truncated although no later file of the session shows it. The ledgers must
    have been read before the lines.
    """
    named: Counter[tuple[str, str]] = Counter()
    for error in errors:
        if error.offset is not None and error.kind is not ReadErrorKind.REPEATED:
            named[_folder_and_session(error.file)] += 1
    return [
        ReadError(
            f"{folder}/{ledger.session}",
            None,
            f"{recorded:,} {folder} were recorded, {lines.get((folder, ledger.session), 0):,} can be read.",
            kind=ReadErrorKind.MISSING,
        )
        for ledger in ledgers
        for folder, recorded in ((ROLLOUTS, ledger.recorded), (SCORES, ledger.scores_recorded))
        if folder in folders and recorded > lines.get((folder, ledger.session), 0) + named[folder, ledger.session]
    ]


def count_lines(files: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """The counts by folder and session of the counts by file."""
    counts: Counter[tuple[str, str]] = Counter()
    for file, count in files.items():
        counts[_folder_and_session(file)] += count
    return counts


def repeated_lines(files: Mapping[str, tuple[int, int]]) -> list[ReadError]:
    """An error for each file with lines whose id an earlier line has: by file, their number and the first offset."""
    return [
        ReadError(
            f"{file}{PLAIN_SUFFIX}",
            offset,
            f"{'One line repeats' if count == 1 else f'{count:,} lines repeat'} the id of an earlier line, which alone "
            "counts; the first is here.",
            kind=ReadErrorKind.REPEATED,
        )
        for file, (count, offset) in files.items()
    ]


class RepeatedLines:
    """Finds the lines of one run whose id an earlier line has, looking at each part once."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", new_path: Callable[[str], Path], distinct: DistinctParts
    ) -> None:
        self._connection = connection
        self._new_path = new_path
        self._distinct = distinct
        self._known: set[Path] = set()
        self.parts: list[ParquetPart] = []
        """The table of these lines, with run, id, _file and _offset; an empty list if no line repeats another."""
        self.files: dict[str, tuple[int, int]] = {}
        """By file, how many of its lines they are, and the first offset."""
        self.copies: dict[str, int] = {}
        """By file, how many of its lines repeat a line of the same session: they are not in its ledger."""

    def update(self, folder: str, parts: Sequence[Part]) -> None:
        """Look at the parts of a folder that are new; most have no id in common with another, by their range of ids."""
        own = [part for part in parts if part.info.stats.rows.get(folder)]
        new = [part for part in own if part.path not in self._known]
        suspects = {part.path for part in new if part.info.stats.repeats}
        for part in new:
            suspects |= {path for other in own if _overlap(part, other) for path in (part.path, other.path)}
        if suspects:
            self._find([part.table(folder) for part in own if part.path in suspects], f"{folder} ids")
        self._known |= {part.path for part in new}

    def _find(self, parts: Sequence[ParquetPart], what: str) -> None:
        if self._distinct.includes(parts, what):
            return
        source = parquet_source(part.path for part in parts)
        repeated_id = f"select 1 from {source} group by hash(id) having count(*) > 1 limit 1"
        if self._connection.execute(repeated_id).fetchone() is None:
            self._distinct.add(parts, what)
            return
        path = self._new_path("repeated").with_suffix(".parquet")
        before = "".join(f" union all from {parquet_source([part.path])}" for part in self.parts)
        lines = f"select run, id, _file, _offset, bool_or(is_copy) as is_copy from ({_REPEATED.format(source)}{before})"
        copy_to_parquet(self._connection, f"{lines} group by all", path)
        columns = "_file, count(*), min(_offset), count(*) filter (is_copy)"
        counts = f"select {columns} from {parquet_source([path])} group by _file order by _file"
        rows = self._connection.execute(counts).fetchall()
        self.files = {file: (count, offset) for file, count, offset, _ in rows}
        self.copies = {file: copies for file, *_, copies in rows}
        if rows:
            stats = RowStats(rows={"repeated": sum(count for _, count, *_ in rows)})
            self.parts = [ParquetPart(path, PartInfo(ranges={}, stats=stats))]


def _overlap(part: Part, other: Part) -> bool:
    (first, last), (other_first, other_last) = part.info.stats.ids, other.info.stats.ids
    return part is not other and first <= other_last and other_first <= last


_REPEATED = """
    select run, id, _file, _offset,
        row_number() over (partition by id, regexp_replace(_file, '-[^-]*$', '') order by _file, _offset) > 1 as is_copy
    from (
        select lines.* from (select run, id, _file, _offset, hash(id) as h from {0}) lines
        semi join (select hash(id) as h from {0} group by h having count(*) > 1) using (h)
    ) qualify row_number() over (partition by id order by _file, _offset) > 1
"""


def _folder_and_session(file: str) -> tuple[str, str]:
    folder, _, name = file.partition("/")
    segment = SegmentName.parse(name)
    return folder, "" if segment is None else segment.session
