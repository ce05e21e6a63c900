"""What the tests of audits play with: a real run with a bit of everything, and hands to break it with."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rolltrace.envs.message_env import MessageEnv, MessageStepResult
from rolltrace.graders.grader import Grader
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import add_checksum, utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, Part
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.score import Grade, GroupKey
from rolltrace.trace.stop_reasons import Status, StoppedBy
from seeded_runs import SeededRun, checked_clean, play_clean
from stage import Remembering, Stage, said

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
    """A run by the real runner with nothing wrong: graded, clamped, retried and late rewards, and a picture.

    Lines 0 and 1 are group `a`, line 2 is a failure and 3 its retry, 4 waits for a grade. Score 0 is its grade, score
    1 is about a group.
    """
    path = tmp_path_factory.mktemp("sound") / "run"
    asyncio.run(play_sound(path))
    lines = [(one["group"], one["index"], one["attempt"]) for one in Broken(path).records(Broken(path).rollouts)]
    assert lines == [("a", 0, 0), ("a", 1, 0), ("b", 0, 0), ("b", 0, 1), ("c", 0, 0)]
    return checked_clean(path)


class Sum(MessageEnv):
    """Asks about a picture; raises instead of a reward, or goes on, if it is made to."""

    def __init__(self, *, fails: bool = False, ends: bool = True) -> None:
        self.fails, self.ends = fails, ends

    async def initial_observation(self) -> list[Message]:
        """The question."""
        return [Message("user", "1 + 1?", parts=(Part("image", blob=PICTURE),))]

    async def step(self, message: Any) -> MessageStepResult:
        """Any answer is right."""
        if self.fails:
            raise OSError("gone")
        history = [*await self.initial_observation(), message]
        history += [] if self.ends else [Message("user", "And 2 + 2?")]
        return MessageStepResult(1.0, episode_done=self.ends, next_messages=history, reward_data={"correct": 1.0})


class GradedSums(Stage):
    """Sums that are graded together."""

    env = "sums"

    async def grade_group(self, rollouts: Sequence[Rollout]) -> Mapping[str, Grade]:
        """The same for each."""
        return {rollout.id: Grade(0.25) for rollout in rollouts}


async def play_sound(path: Path) -> None:
    """One group after the other, so that the order of the lines is known."""
    failures = iter([True, False])
    groups = {
        "a": Stage(lambda number: Sum(ends=number == 0), episodes=2, grader=Styled()),
        "b": Stage(lambda number: Sum(fails=next(failures))),
        "c": GradedSums(lambda number: Sum()),
    }
    with create_run(path) as writer:
        limits = Limits(max_turns=1, zero_reward_on_limit=True)
        runner = Runner(Remembering(said("2")), sink=writer, limits=limits, retries=1)
        for name, builder in groups.items():
            builder.env, builder.task = "sums", "t"
            await runner.play_group(builder, GroupKey("train", 0, "sums", name))
        writer.score(None, "spread", 0.75, group=GroupKey("train", 0, "sums", "a"))


class Styled(Grader):
    """Grades the style."""

    async def grade(self, rollout: Rollout) -> Grade:
        """The same for each."""
        return Grade(0.5, {"style": 0.5})


def play(writer: RunWriter, group: str, index: int, *, attempt: int = 0, **fields) -> str:
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
    good = Outcome(
        ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
        reward=1.0, reward_so_far=1.0, unclamped_reward=None,
    )  # fmt: skip
    writer.end(rollout_builder, {**good, **fields})  # type: ignore[typeddict-item]
    return rollout_builder.id


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory) -> Path:
    """A run by the real runner, in which no audit finds anything."""
    return checked_clean(play_clean(tmp_path_factory.mktemp("clean") / "run"))


@pytest.fixture
def seeded(tmp_path, clean_run) -> Iterator[SeededRun]:
    """A copy of the clean run, to be given a fault."""
    with closing(SeededRun(clean_run, tmp_path / "seeded")) as run:
        yield run


@pytest.fixture(scope="session")
def clean_series(tmp_path_factory) -> Path:
    """A run by the real runner with enough iterations and groups for audits of trends, in which none finds anything."""
    path = tmp_path_factory.mktemp("series") / "run"
    return checked_clean(play_clean(path, {"arithmetic": {}}, iterations=6, groups=16))


@pytest.fixture
def series(tmp_path, clean_series) -> Iterator[SeededRun]:
    """A copy of that run, to be given a fault."""
    with closing(SeededRun(clean_series, tmp_path / "series")) as run:
        yield run
