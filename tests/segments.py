"""Runs made by hand, file by file, for tests of reading: what is on the disk is exactly what the test put there."""

from pathlib import Path

from rollout_builders import header, outcome
from rolltrace.store.layout import FOLDERS
from rolltrace.trace.message import Message
from rolltrace.trace.rollout_builder import RolloutBuilder

RUN = '{"v":1,"id":"run","created_at":"2026-01-02T03:04:05Z"}'


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
    (path / "run.json").write_text(RUN)
    return path


def segment(run: Path, name: str = "session-000000", folder: str = "rollouts") -> Path:
    """Where a plain segment of a run is."""
    return run / folder / f"{name}.jsonl"
