"""Audits of the files and blobs: all exist, complete and unchanged."""

import re
from collections.abc import Iterator

from rolltrace.check.audit import Finding, Severity, audit
from rolltrace.check.audited_run import AuditedRun
from rolltrace.errors import RecordError
from rolltrace.store.layout import (
    BLOBS,
    COMPRESSED_SUFFIX,
    FOLDERS,
    LEDGER,
    PLAIN_SUFFIX,
    ROLLOUTS,
    SCORES,
    LedgerName,
    SegmentName,
)
from rolltrace.store.read_errors import ReadError, ReadErrorKind
from rolltrace.trace.field_types import FORMAT_VERSION

_BLOB = re.compile(r"sha256-[0-9a-f]{64}")
_EXPECTED = {
    ROLLOUTS: f"SESSION-NUMBER{PLAIN_SUFFIX} or SESSION-NUMBER{COMPRESSED_SUFFIX}",
    SCORES: f"SESSION-NUMBER{PLAIN_SUFFIX} or SESSION-NUMBER{COMPRESSED_SUFFIX}",
    LEDGER: f"SESSION{PLAIN_SUFFIX}",
    BLOBS: "sha256- and 64 hexadecimal digits",
}


@audit(
    Severity.ERROR,
    "A folder of the run is missing or cannot be listed, so its records are in no number.",
    "Restore it from a copy, or fix its permissions.",
)
def missing_folders(run: AuditedRun) -> Iterator[Finding]:
    """Each folder can be listed."""
    for folder in FOLDERS:
        try:
            run.reader.files.list_files(folder)
        except OSError:
            yield Finding(f"expected a directory {folder}/ that can be listed", file=folder)


@audit(
    Severity.ERROR,
    "Bytes cannot be read, or differ from those that were written, so the records in them are lost; others are read.",
    "Restore the file from a copy, and check the disk, or who edited the file.",
)
def damaged(run: AuditedRun) -> Iterator[Finding]:
    """Every file can be read, and every line is a record with a valid checksum."""
    for problem in run.problems:
        if (
            problem.kind not in (ReadErrorKind.MISSING, ReadErrorKind.NEWER)
            and not _is_tail(problem)
            and _is_read(problem)
        ):
            yield Finding(problem.message, file=problem.file, offset=problem.offset)


@audit(
    Severity.WARNING,
    "The last line of a file has no line feed, so its record, which no flush had confirmed, is lost: the writer was "
    "killed, the machine lost power, or it is being written at this moment.",
    "Nothing can be restored. If the run was written to the end, find out who killed its writer.",
)
def truncated_files(run: AuditedRun) -> Iterator[Finding]:
    """Every file ends with a whole line."""
    for problem in run.problems:
        if _is_tail(problem):
            yield Finding(problem.message, file=problem.file, offset=problem.offset)


@audit(
    Severity.WARNING,
    "These records were written by a newer Rolltrace and are left out of everything here.",
    "Upgrade to read them.",
)
def newer_version(run: AuditedRun) -> Iterator[Finding]:
    """Every record is of a version that can be read."""
    for file, count in run.newer_records.items():
        message = f"{count} records are of a newer version of the format than {FORMAT_VERSION}"
        yield Finding(message, file=file, data={"records": count})


@audit(
    Severity.ERROR,
    "A session numbers its files without gaps, so a missing file was deleted or not copied, with all its records.",
    "Restore or copy the file.",
)
def missing_segments(run: AuditedRun) -> Iterator[Finding]:
    """The files of each session are numbered from 0 without a gap."""
    for folder in (ROLLOUTS, SCORES):
        for session, numbers in sorted(_sequences(run, folder).items()):
            highest = max(numbers)
            if missing := highest + 1 - len(numbers):
                first = next(number for number in range(highest) if number not in numbers)
                name = SegmentName(session, first)
                yield Finding(
                    f"{missing} of the {highest + 1} files of the session in {folder}/ are missing, first {name}",
                    session=session, file=f"{folder}/{name}", data={"missing": missing, "first": first},
                )  # fmt: skip


@audit(
    Severity.WARNING,
    "Files with other names than those of the format are not read.",
    "If they have records, restore their names; otherwise move them elsewhere.",
)
def unexpected_files(run: AuditedRun) -> Iterator[Finding]:
    """Each file has a name that the format knows."""
    for folder in FOLDERS:
        for entry in run.entries(folder):
            if not entry.name.startswith(".") and not _is_known(folder, entry.name):
                yield Finding(f"expected the name {_EXPECTED[folder]}", file=f"{folder}/{entry.name}")


@audit(
    Severity.INFO,
    "A file exists both plain and compressed, because compression was interrupted. The plain one is read, and "
    "nothing is wrong.",
    "`rolltrace compact` removes one of them.",
)
def compressed_twice(run: AuditedRun) -> Iterator[Finding]:
    """No file exists both plain and compressed."""
    for folder in (ROLLOUTS, SCORES):
        names = {entry.name for entry in run.entries(folder)}
        for name in sorted(names):
            segment = SegmentName.parse(name)
            if segment is not None and name == segment.plain and segment.compressed in names:
                yield Finding("exists plain and compressed", file=f"{folder}/{name}")


@audit(
    Severity.INFO,
    "Temporary files of a writer that is running, or that was killed. Nothing reads them.",
    "They may be deleted when no writer is running.",
)
def leftovers(run: AuditedRun) -> Iterator[Finding]:
    """No temporary file is left."""
    for folder in FOLDERS:
        for entry in run.entries(folder):
            if entry.name.startswith("."):
                yield Finding(f"is a temporary file of {entry.size} bytes", file=f"{folder}/{entry.name}")


@audit(
    Severity.ERROR,
    "A message refers to an image or file whose bytes are missing, so the prompt cannot be shown as the policy saw it.",
    "Restore blobs/ from a copy.",
)
def missing_blobs(run: AuditedRun) -> Iterator[Finding]:
    """Every blob that a record refers to exists."""
    for name, rollout in sorted(run.blobs.items()):
        if _is_missing(run, name):
            yield Finding(f"{name} is missing", rollouts=(rollout,), file=f"{BLOBS}/{name}")


@audit(
    Severity.ERROR,
    "The bytes of a blob do not match the hash in its name, so they are not what the policy saw.",
    "Restore the file from a copy.",
)
def damaged_blobs(run: AuditedRun) -> Iterator[Finding]:
    """Every blob matches the hash in its name."""
    for name, rollout in sorted(run.blobs.items()):
        try:
            if not _is_missing(run, name):
                run.reader.blob(name)
        except RecordError as error:
            yield Finding(str(error), rollouts=(rollout,), file=f"{BLOBS}/{name}")


def _is_missing(run: AuditedRun, blob: str) -> bool:
    try:
        run.reader.files.size(f"{BLOBS}/{blob}")
    except (FileNotFoundError, RecordError):  # or something else has its name
        return True
    except OSError:
        return False
    return False


def _sequences(run: AuditedRun, folder: str) -> dict[str, set[int]]:
    sequences: dict[str, set[int]] = {}
    for entry in run.entries(folder):
        segment = SegmentName.parse(entry.name)
        if segment is not None and _is_known(folder, entry.name):
            sequences.setdefault(segment.session, set()).add(segment.sequence)
    return sequences


def _is_known(folder: str, name: str) -> bool:
    """Whether the name is one that files of this folder have."""
    if folder == BLOBS:
        return _BLOB.fullmatch(name) is not None
    if folder == LEDGER:
        return name.endswith(PLAIN_SUFFIX) and LedgerName.parse(name) is not None
    segment = SegmentName.parse(name)
    return segment is not None and name in (segment.plain, segment.compressed)


def _is_tail(problem: ReadError) -> bool:
    """Whether it is a last line that is incomplete, and may still be written."""
    return problem.kind is ReadErrorKind.TORN and problem.is_transient


def _is_read(problem: ReadError) -> bool:
    """Whether it is about a file of records. Other audits report the other files."""
    folder, _, name = problem.file.partition("/")
    if folder not in FOLDERS or not name:
        return False
    return problem.offset is not None or _is_known(folder, name)
