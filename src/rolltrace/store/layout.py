"""The names of a run's files, and the first of them: `run.json`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import msgspec

from rolltrace.errors import RecordError
from rolltrace.trace.codec import RecordVersion, add_checksum, json_encoder, verify_checksum, version_error
from rolltrace.trace.field_types import FreeForm, Timestamp
from rolltrace.trace.freeform import from_json_mapping
from rolltrace.trace.rollout import FORMAT_VERSION

RUN_FILE = "run.json"
ROLLOUTS = "rollouts"
SCORES = "scores"
LEDGER = "ledger"
BLOBS = "blobs"
FOLDERS = (ROLLOUTS, SCORES, LEDGER, BLOBS)
CACHE = "cache"
"""Not among the folders: it may be missing, and is derived from them."""

PLAIN_SUFFIX = ".jsonl"
COMPRESSED_SUFFIX = ".jsonl.zst"

_SEGMENT = re.compile(r"(.+)-([0-9]{6}|[1-9][0-9]{6,17})", re.DOTALL)
_LEDGER = re.compile(r"(.+?)(?:\.([1-9][0-9]{0,17}))?", re.DOTALL)

Record = TypeVar("Record", bound=msgspec.Struct)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` holds; it is written once, when the run is made."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere; each record of the run names it."""
    created_at: Timestamp
    config: FreeForm = {}
    """The settings that the run was started with; secrets are `[redacted]`."""
    package_version: str = ""
    """The version of Rolltrace that made it."""
    code_revision: str | None = None
    """The git commit of the directory it was started in, if there is one."""
    planned: int | None = None
    """How many rollouts (of games: episodes) the run is to have, if that was stated when it was made."""


class SegmentName(NamedTuple):
    """The name of a segment without its ending; names compare in the order in which a session began them."""

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
        """The name of its file once it is sealed."""
        return f"{self}{COMPRESSED_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The segment that a name, with or without its ending, is of; None where no writer would have given it."""
        matched = _SEGMENT.fullmatch(strip_extension(name))
        return None if matched is None else cls(matched[1], int(matched[2]))


class LedgerName(NamedTuple):
    """The name of a ledger without its ending; a second one only where the first could not be written to."""

    session: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.session}.{self.sequence}" if self.sequence else self.session

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The ledger that a name, with or without its ending, is of."""
        matched = _LEDGER.fullmatch(strip_extension(name))
        return None if matched is None else cls(matched[1], int(matched[2] or 0))


def segment_name(writer: str, sequence: int) -> str:
    """The file name of a writer's segment."""
    return SegmentName(writer, sequence).plain


def ledger_name(writer: str, sequence: int) -> str:
    """The file name of a writer's ledger."""
    return f"{LedgerName(writer, sequence)}{PLAIN_SUFFIX}"


def strip_extension(file: str) -> str:
    """The name of a segment, the same before and after it is sealed."""
    return file.removesuffix(COMPRESSED_SUFFIX) if file.endswith(COMPRESSED_SUFFIX) else file.removesuffix(PLAIN_SUFFIX)


def sort_segment_names(names: Iterable[str]) -> list[str]:
    """Names without endings in the order in which they are read: those of a session as it began them."""
    return sorted(names, key=lambda name: (SegmentName.parse(name) or (name, -1), name))


def is_run(path: Path) -> bool:
    """Whether there is a `run.json`; `run_file.read_info` says whether it is valid."""
    return (path / RUN_FILE).is_file()


def encode_info(info: RunInfo) -> bytes:
    """`run.json` as one line with a checksum; the config is plain JSON already (see `freeform.to_json_mapping`)."""
    return add_checksum(json_encoder.encode(info))


def decode_info(data: bytes) -> RunInfo:
    """`run.json` read back; the error says what is wrong and where."""
    info = decode_versioned(data, RunInfo, "run")
    verify_checksum(data)  # after the version: other versions need not have a checksum
    return msgspec.structs.replace(info, config=from_json_mapping(info.config))


def decode_versioned(data: bytes, kind: type[Record], name: str) -> Record:
    """A record that says its version first; another version is refused by name, whatever else it holds."""
    try:
        version = msgspec.json.decode(data, type=RecordVersion).v
        if version == FORMAT_VERSION:
            return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec lets a UnicodeDecodeError through
        raise RecordError(f"Expected a {name} record: {error}.") from error
    raise version_error(name, version)
