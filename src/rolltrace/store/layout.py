"""The layout of a run: the names of its files and folders, and `run.json`."""

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import msgspec

from rolltrace.errors import NewerVersionError, OlderVersionError, RecordError, RunNotFoundError, StorageError
from rolltrace.store.object_address import is_address
from rolltrace.store.object_files import Listing, ObjectFiles, files_of, map_requests
from rolltrace.store.run_files import RunFiles
from rolltrace.trace.codec import RecordVersion, add_checksum, verify_checksum, version_error
from rolltrace.trace.field_types import FORMAT_VERSION, FreeForm, Timestamp
from rolltrace.trace.freeform import from_json_mapping
from rolltrace.trace.limits import MAX_INFO_BYTES, MAX_NESTING
from rolltrace.trace.strict_json import json_encoder

RUN_FILE = "run.json"
ROLLOUTS = "rollouts"
SCORES = "scores"
LEDGER = "ledger"
BLOBS = "blobs"
FOLDERS = (ROLLOUTS, SCORES, LEDGER, BLOBS)
CACHE = "cache"
"""Derived files. It may be missing, so it is not one of `FOLDERS`."""

PLAIN_SUFFIX = ".jsonl"
COMPRESSED_SUFFIX = ".jsonl.zst"

_SEGMENT = re.compile(r"(.+)-([0-9]{6}|[1-9][0-9]{6,17})", re.DOTALL)
_LEDGER = re.compile(r"(.+?)(?:\.([1-9][0-9]{0,17}))?", re.DOTALL)

Record = TypeVar("Record", bound=msgspec.Struct)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `run.json`, which is written once, when the run is created."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere; every record of the run has it."""
    created_at: Timestamp
    config: FreeForm = {}
    """The settings that the run was started with; secrets are `[redacted]`."""
    package_version: str = ""
    """The version of Rolltrace that created it."""
    code_revision: str | None = None
    """The git commit of the directory it was started in, if there is one."""
    planned: int | None = None
    """How many rollouts (of games: episodes) the run is to have, if that was stated when it was made."""


class SegmentName(NamedTuple):
    """The name of a segment without its suffix. Names of a session sort in the order in which it wrote them."""

    session: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.session}-{self.sequence:06d}"

    @property
    def plain(self) -> str:
        """The name of its file while it may grow."""
        return f"{self}{PLAIN_SUFFIX}"

    @property
    def compressed(self) -> str:
        """The name of its file when it is compressed."""
        return f"{self}{COMPRESSED_SUFFIX}"

    @classmethod
    @lru_cache(maxsize=16_384)
    def parse(cls, name: str) -> Self | None:
        """Parse a name, with or without its suffix; None if it is not a segment's."""
        matched = _SEGMENT.fullmatch(strip_extension(name))
        return None if matched is None else cls(matched[1], int(matched[2]))


class LedgerName(NamedTuple):
    """The name of a ledger without its suffix. A session has a second one only if the first became unwritable."""

    session: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.session}.{self.sequence}" if self.sequence else self.session

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name, with or without its suffix."""
        matched = _LEDGER.fullmatch(strip_extension(name))
        return None if matched is None else cls(matched[1], int(matched[2] or 0))


def segment_name(session: str, sequence: int) -> str:
    """The file name of a session's segment."""
    return SegmentName(session, sequence).plain


def ledger_name(session: str, sequence: int) -> str:
    """The file name of a session's ledger."""
    return f"{LedgerName(session, sequence)}{PLAIN_SUFFIX}"


def strip_extension(file: str) -> str:
    """The file name without its suffix, which is the same before and after compression."""
    return file.removesuffix(COMPRESSED_SUFFIX) if file.endswith(COMPRESSED_SUFFIX) else file.removesuffix(PLAIN_SUFFIX)


def is_run(path: Path) -> bool:
    """Whether there is a `run.json`; `read_info` checks that it is valid."""
    if is_address(path):
        try:
            return bool(files_of(path).read(RUN_FILE, 0, 1))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"Cannot read {path}: {error.strerror or error}.") from error
    return (path / RUN_FILE).is_file()


def find_object_runs(folder: Path, depth: int | None = None) -> dict[Path, int]:
    """By address of each run in or below a folder of an object store, when its `run.json` was written, in ns."""
    runs: dict[Path, int] = {}
    folders, level = [folder], 0
    while folders:
        below: list[Path] = []
        for place, listing in zip(folders, map_requests(list_address, folders), strict=True):
            changed = next((one.changed for one in listing.files if one.name == RUN_FILE), None)
            if changed is not None:
                runs[place] = changed
            elif depth is None or level < depth:
                below += [place / name for name in listing.folders if not name.startswith(".")]
        folders, level = below, level + 1
    return dict(sorted(runs.items()))


def list_address(folder: Path) -> Listing:
    """What is directly in a folder of an object store."""
    try:
        return ObjectFiles(folder).listing("")
    except OSError as error:
        raise StorageError(f"Cannot list {folder}: {error.strerror or error}.") from error


def encode_info(info: RunInfo) -> bytes:
    """Encode `run.json` as one line with a checksum; the config must be plain JSON (`freeform.to_json_mapping`)."""
    return add_checksum(json_encoder.encode(info))


def decode_info(data: bytes) -> RunInfo:
    """Decode `run.json`; the error says what is wrong and where."""
    if len(data) > MAX_INFO_BYTES:
        raise RecordError(f"Expected at most {MAX_INFO_BYTES} bytes, got more.")
    info = decode_versioned(data, RunInfo, "run")
    verify_checksum(data)  # after the version: other versions need not have a checksum
    try:
        return msgspec.structs.replace(info, config=from_json_mapping(info.config))
    except RecursionError as error:
        raise RecordError(f"Expected a config that is nested at most {MAX_NESTING} deep.") from error


def decode_versioned(data: bytes, kind: type[Record], name: str) -> Record:
    """Decode a record after checking its version; another version is refused with an error of its own."""
    try:
        version = msgspec.json.decode(data, type=RecordVersion).v
        if version == FORMAT_VERSION:
            return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec lets a UnicodeDecodeError through
        raise RecordError(f"Expected a {name} record: {error}.") from error
    raise version_error(name, version)


_RESTORE = (
    "Restore it from a copy: it never changes after the run was created, and a directory without it is left alone."
)


def read_info(run: RunFiles) -> RunInfo:
    """Read `run.json`; raises `RunNotFoundError` if it is missing or not valid."""
    expected = f"Expected a run at {run.path}"
    try:
        return decode_info(run.read(RUN_FILE, 0, MAX_INFO_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        if run.existing(ROLLOUTS):
            raise RunNotFoundError(f"{expected}, got {ROLLOUTS}/ without {RUN_FILE}. {_RESTORE}") from None
        found = "a directory without it" if run.path.is_dir() else "a file" if run.path.exists() else "nothing"
        raise RunNotFoundError(f"{expected}, a directory with {RUN_FILE}, got {found}.") from None
    except (NewerVersionError, OlderVersionError) as error:
        raise RunNotFoundError(f"{expected} that this version reads: {RUN_FILE}: {error}") from error
    except RecordError as error:
        raise RunNotFoundError(f"{expected} with a valid {RUN_FILE}: {error} {_RESTORE}") from error
    except OSError as error:
        raise StorageError(f"Cannot read {run.path / RUN_FILE}: {error.strerror or error}.") from error
