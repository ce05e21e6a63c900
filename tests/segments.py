"""Runs made by hand, file by file, for tests of reading: what is on the disk is exactly what the test put there."""

import json
from contextlib import closing
from pathlib import Path

import msgspec

from rollout_builders import header, outcome
from rolltrace.store.compression import Frame, FrameReader
from rolltrace.store.layout import FOLDERS
from rolltrace.store.run_files import LocalFiles
from rolltrace.store.segment_reader import SegmentReader
from rolltrace.trace.codec import add_checksum
from rolltrace.trace.message import Message
from rolltrace.trace.rollout_builder import RolloutBuilder

RUN = b'{"v":2,"id":"run","created_at":"2026-01-02T03:04:05Z"}'


def rollout_line(rollout: str, text: str = "2 + 2?", **fields: object) -> bytes:
    """The line of a rollout of one question and one answer."""
    rollout_builder = RolloutBuilder(header(id=rollout, **fields))
    rollout_builder.extend([Message("user", text)])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "4"), reward=1.0)
    return b"".join([rollout_builder.encode(outcome()).data])


def make_run(path: Path) -> Path:
    """A run without any records."""
    for folder in FOLDERS:
        (path / folder).mkdir(parents=True)
    (path / "run.json").write_bytes(add_checksum(RUN))
    return path


def open_path(path: Path) -> SegmentReader:
    """A segment, open for reading."""
    return SegmentReader(LocalFiles(path.parent).open(path.name))


def frames_of(path: Path) -> list[Frame]:
    """The frames of a compressed file."""
    with closing(LocalFiles(path.parent).open(path.name)) as file:
        return list(FrameReader(file))


def edit_run_info(run: Path, **changes: object) -> None:
    """Change fields of a run's `run.json`, with a checksum that fits."""
    info = json.loads((run / "run.json").read_bytes())
    del info["crc"]
    (run / "run.json").write_bytes(add_checksum(msgspec.json.encode(info | changes)))


def segment(run: Path, name: str = "session-000000", folder: str = "rollouts") -> Path:
    """Where a plain segment of a run is."""
    return run / folder / f"{name}.jsonl"
