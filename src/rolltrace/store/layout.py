"""The names of a run's files, and the first of them: `run.json`."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolltrace.errors import RecordError
from rolltrace.trace.codec import Version, json_encoder, newer_version
from rolltrace.trace.freeform import restore_mapping
from rolltrace.trace.rollout import FORMAT_VERSION, Moment

RUN_FILE = "run.json"
ROLLOUTS = "rollouts"
SCORES = "scores"
LEDGER = "ledger"
BLOBS = "blobs"
FOLDERS = (ROLLOUTS, SCORES, LEDGER, BLOBS)

Record = TypeVar("Record", bound=msgspec.Struct)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `run.json` holds; it is written once, when the run is made."""

    v: int = FORMAT_VERSION
    """The version of the format."""
    id: str
    """Unique everywhere; each record of the run names it."""
    created_at: Moment
    config: dict[str, Any] = {}
    """What the run was started with, as its maker gave it."""
    package_version: str = ""
    """The version of Rolltrace that made it."""
    code_revision: str | None = None
    """The git commit of the directory it was started in, where there is one."""


def segment_name(writer: str, sequence: int) -> str:
    """The file name of a writer's segment; names sort in the order in which they were begun."""
    return f"{writer}-{sequence:06d}.jsonl"


def ledger_name(writer: str, sequence: int) -> str:
    """The file name of a writer's ledger; a second one only where the first could not be written to."""
    return f"{writer}.jsonl" if sequence == 0 else f"{writer}.{sequence}.jsonl"


def is_run(path: Path) -> bool:
    """Whether something at this place can be read as a run, even one that lost its `run.json`."""
    return (path / RUN_FILE).is_file() or (path / ROLLOUTS).is_dir()


def encode_info(info: RunInfo) -> bytes:
    """`run.json` as bytes, indented for people; the config is plain JSON already (see `freeform.plain_mapping`)."""
    return msgspec.json.format(json_encoder.encode(info), indent=2) + b"\n"


def decode_info(data: bytes) -> RunInfo:
    """`run.json` read back; the error says what is wrong and where."""
    info = decode_versioned(data, RunInfo, "run")
    return msgspec.structs.replace(info, config=restore_mapping(info.config))


def decode_versioned(data: bytes, kind: type[Record], name: str) -> Record:
    """A record that says its version first; a newer one is refused by name, whatever else it holds."""
    try:
        version = msgspec.json.decode(data, type=Version).v
        if version <= FORMAT_VERSION:
            return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec lets a UnicodeDecodeError through
        raise RecordError(f"Expected a {name} record: {error}.") from error
    raise newer_version(name, version)
