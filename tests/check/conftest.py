"""What the tests of audits play with: a real run with a bit of everything, and hands to break it with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import add_checksum, utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, Part
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import Grade, GroupKey, Score
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy, StopReason
from seeded_runs import SeededRun, play_clean

PICTURE = Blob.of(b"not really a picture")


class Broken:
    """A run on disk whose bytes can be changed; lines keep a right checksum unless they are meant not to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rollouts(self) -> Path:
        return self._only("rollouts")

    @property
    def scores(self) -> Path:
        return self._only("scores")

    @property
    def ledger(self) -> Path:
        return self._only("ledger")

    def lines(self, file: Path) -> list[bytes]:
        return file.read_bytes().splitlines(keepends=True)

    def records(self, file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(file)]

    def forge(
        self, file: Path, number: int, change: Callable[[dict[str, Any]], object] | None = None, **fields
    ) -> None:
        """Change the fields of a line."""
        lines = self.lines(file)
        record = json.loads(lines[number])
        del record["crc"]
        record.update(fields)
        if change is not None:
            change(record)
        lines[number] = sealed(record)
        file.write_bytes(b"".join(lines))

    def repeat(self, file: Path, number: int, **fields) -> None:
        """Put a changed copy of a line at the end; the ledger is told of it."""
        file.write_bytes(file.read_bytes() + self.lines(file)[number])
        if fields:
            self.forge(file, -1, **fields)
        if file.parent.name == "rollouts":
            ledger = self.records(self.ledger)[-1]
            self.forge(self.ledger, -1, dispatched=ledger["dispatched"] + 1, recorded=ledger["recorded"] + 1)

    def remove(self, file: Path, number: int) -> None:
        """Take a line away; the ledger is told of it."""
        lines = self.lines(file)
        del lines[number]
        file.write_bytes(b"".join(lines))
        ledger = self.records(self.ledger)[-1]
        if file.parent.name == "rollouts":
            self.forge(self.ledger, -1, dispatched=ledger["dispatched"] - 1, recorded=ledger["recorded"] - 1)
        else:
            self.forge(self.ledger, -1, scores_recorded=ledger["scores_recorded"] - 1)

    def _only(self, folder: str) -> Path:
        (file,) = (self.path / folder).glob("*.jsonl")
        return file


def sealed(record: dict[str, Any]) -> bytes:
    return add_checksum(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())


@pytest.fixture
def run(tmp_path, sound_run) -> Broken:
    """The sound run, to be broken."""
    return Broken(shutil.copytree(sound_run, tmp_path / "run"))


@pytest.fixture
def record() -> Callable[..., str]:
    """Records a rollout of one step with reward 1.0; gives its id."""
    return play


@pytest.fixture(scope="session")
def sound_run(tmp_path_factory) -> Path:
    """A run with nothing wrong: a graded rollout, a clamped one, a retry, a picture, and a group that was graded late.

    Lines 0 and 1 are group `a`, line 2 is a failure and 3 its retry, 4 waits for a grade. Score 0 is its grade, score
    1 is about a group.
    """
    path = tmp_path_factory.mktemp("sound") / "run"
    with create_run(path) as writer:
        play(writer, "a", 0, grade=Grade(0.5, {"style": 0.5}), reward=1.5, reward_so_far=1.5)
        play(
            writer, "a", 1, reward=0.0, reward_so_far=1.0, unclamped_reward=1.0,
            stop_reason=StopReason.MAX_TURNS, stopped_by=StoppedBy.RUNNER,
        )  # fmt: skip
        failure = Failure(Layer.ENV, "OSError", "gone")
        play(writer, "b", 0, status=Status.ERROR, stop_reason=StopReason.ERROR, error=failure, reward=None)
        play(writer, "b", 0, attempt=1)
        pending = play(writer, "c", 0, reward=None)
        parts = {"reward_so_far": 1.0, "grade": None, "group_grade": 0.25, "unclamped_reward": None}
        score(writer, rollout=pending, name="reward", value=1.25, data=parts)
        score(writer, group=GroupKey("train", 0, "sums", "a"), name="spread", value=0.75)
    return path


def play(writer: RunWriter, group: str, index: int, *, attempt: int = 0, grade: Grade | None = None, **fields) -> str:
    """Record a rollout of one step with reward 1.0; its id."""
    rollout_builder = writer.begin(
        Header(
            id=new_id(), run=writer.run, session=writer.session, env="sums", task="t", group=group, index=index,
            attempt=attempt, started_at=utc_now(),
        )
    )  # fmt: skip
    rollout_builder.extend([Message("user", "1 + 1?", parts=(Part("image", blob=PICTURE),))])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "2"), reward=1.0, env_reward=1.0, reward_data={"correct": 1.0})
    if grade is not None:
        rollout_builder.grade = grade
    good = Outcome(
        ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
        reward=1.0, reward_so_far=1.0, unclamped_reward=None,
    )  # fmt: skip
    writer.end(rollout_builder, {**good, **fields})  # type: ignore[typeddict-item]
    return rollout_builder.id


def score(writer: RunWriter, **fields) -> None:
    writer.write_score(Score(id=new_id(), run=writer.run, session=writer.session, created_at=utc_now(), **fields))


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory) -> Path:
    """A run by the real runner, with nothing wrong."""
    return play_clean(tmp_path_factory.mktemp("clean") / "run")


@pytest.fixture
def seeded(tmp_path, clean_run) -> SeededRun:
    """A copy of the clean run, to be given a fault."""
    return SeededRun(clean_run, tmp_path / "seeded")


@pytest.fixture(scope="session")
def clean_series(tmp_path_factory) -> Path:
    """A run by the real runner with enough iterations and groups for audits of trends, and nothing wrong."""
    path = tmp_path_factory.mktemp("series") / "run"
    return play_clean(path, {"arithmetic": {}}, iterations=6, groups=16)


@pytest.fixture
def series(tmp_path, clean_series) -> SeededRun:
    """A copy of that run, to be given a fault."""
    return SeededRun(clean_series, tmp_path / "series")
