"""What the tests of the store play with: rollouts that were really begun and finished."""

from collections.abc import Callable
from typing import Any

import pytest

from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import EncodedRecord, new_id
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Status, StoppedBy

MakeLine = Callable[..., EncodedRecord]


@pytest.fixture
def make_line() -> MakeLine:
    """Begins a rollout with the writer and finishes it; the line is not written."""

    def make(writer: RunWriter, *messages: Message, reward: float | None = 1.0, **fields: Any) -> EncodedRecord:
        identity = {"env": "sums", "task": "t", "group": "g", "index": 0} | fields
        header = Header(id=new_id(), run=writer.run, session=writer.session, started_at=utc_now(), **identity)
        rollout_builder = writer.begin(header)
        rollout_builder.extend(messages or [Message("user", "1 + 1?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "2"), reward=1.0, env_reward=1.0)
        return rollout_builder.encode(
            Outcome(
                ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
                reward=reward, reward_so_far=1.0, unclamped_reward=None,
            )
        )  # fmt: skip

    return make


@pytest.fixture
def make_score() -> Callable[..., Score]:
    """A score of a rollout."""

    def make(writer: RunWriter, rollout: str, value: float | None, **fields: Any) -> Score:
        named = {"name": "reward", "created_at": utc_now()} | fields
        return Score(id=new_id(), run=writer.run, session=writer.session, rollout=rollout, value=value, **named)

    return make
