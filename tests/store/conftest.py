"""Fixtures of the store's tests: rollouts that were really begun and finished."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from object_store import s3_store
from rolltrace.store import object_files
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Status, StoppedBy


class PlayedRollout(NamedTuple):
    """A rollout that has ended and is not recorded yet."""

    writer: RunWriter
    rollout_builder: RolloutBuilder
    outcome: Outcome

    @property
    def id(self) -> str:
        return self.rollout_builder.id

    @property
    def data(self) -> bytes:
        """The line of the rollout."""
        return self.rollout_builder.encode(self.outcome).data

    def record(self) -> None:
        """Hands the line to the writer."""
        self.writer.end(self.rollout_builder, self.outcome)


@pytest.fixture(autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache directory, which has the derived files of runs that cannot be written to."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def make_line() -> Callable[..., PlayedRollout]:
    """Begins a rollout with the writer and plays it; the line is not written."""

    def make(writer: RunWriter, *messages: Message, reward: float | None = 1.0, **fields: Any) -> PlayedRollout:
        identity = {"env": "sums", "task": "t", "group": "g", "index": 0} | fields
        header = Header(id=new_id(), run=writer.run, session=writer.session, started_at=utc_now(), **identity)
        rollout_builder = writer.begin(header)
        rollout_builder.extend(messages or [Message("user", "1 + 1?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "2"), reward=1.0, env_reward=1.0)
        outcome = Outcome(
            ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
            reward=reward, reward_so_far=1.0, unclamped_reward=None,
        )  # fmt: skip
        return PlayedRollout(writer, rollout_builder, outcome)

    return make


@pytest.fixture
def make_score() -> Callable[..., Score]:
    """A score of a rollout."""

    def make(writer: RunWriter, rollout: str, value: float | None, **fields: Any) -> Score:
        named = {"name": "reward", "created_at": utc_now()} | fields
        return Score(id=new_id(), run=writer.run, session=writer.session, rollout=rollout, value=value, **named)

    return make


@pytest.fixture(scope="module")
def s3_server():
    """An S3 server and its proxy."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    with s3_store() as store:
        yield store


@pytest.fixture
def store(s3_server, monkeypatch):
    """The server without faults, with the environment variables that a user would set."""
    s3_server.fault = lambda method, path, number: ""
    s3_server.on_stored = lambda path: None
    s3_server.requests.clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    object_files.forget_connections()
    yield s3_server
    object_files.forget_connections()
