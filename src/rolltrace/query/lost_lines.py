"""Lines that a run's ledgers count and that cannot be read, and lines that repeat an earlier one."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from rolltrace.store.layout import PLAIN_SUFFIX, ROLLOUTS, SCORES, SegmentName
from rolltrace.store.ledger import Ledger
from rolltrace.store.read_errors import ReadError, ReadErrorKind

LineCounts = Mapping[tuple[str, str], int]
"""By folder and session, how many different lines of its files can be read."""


def missing_lines(ledgers: Collection[Ledger], lines: LineCounts, errors: Iterable[ReadError]) -> list[ReadError]:
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
        if recorded > lines.get((folder, ledger.session), 0) + named[folder, ledger.session]
    ]


def count_lines(files: Mapping[str, int]) -> Counter[tuple[str, str]]:
    """The counts by folder and session of the counts by file."""
    counts: Counter[tuple[str, str]] = Counter()
    for file, count in files.items():
        counts[_folder_and_session(file)] += count
    return counts


def repeated_lines(places: Iterable[tuple[str, int]]) -> Iterator[ReadError]:
    """An error for each file with lines whose id an earlier line has; `places` are the file and offset of each."""
    offsets: dict[str, list[int]] = {}
    for file, offset in places:
        offsets.setdefault(file, []).append(offset)
    for file, some in offsets.items():
        lines = "One line repeats" if len(some) == 1 else f"{len(some):,} lines repeat"
        message = f"{lines} the id of an earlier line, which alone counts; the first is here."
        yield ReadError(f"{file}{PLAIN_SUFFIX}", min(some), message, kind=ReadErrorKind.REPEATED)


def _folder_and_session(file: str) -> tuple[str, str]:
    folder, _, name = file.partition("/")
    segment = SegmentName.parse(name)
    return folder, "" if segment is None else segment.session
