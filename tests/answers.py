"""Runs that were really written, with the fields that a test cares about."""

from typing import Any

from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import Status, StoppedBy

_OUTCOME = set(Outcome.__annotations__)


def write(writer: RunWriter, steps: Any = 1, step: dict[str, Any] | None = None, **fields: Any) -> str:
    """Write a rollout with these fields, of its header or its outcome, and a grade; returns its id."""
    outcome = {name: fields.pop(name) for name in list(fields) if name in _OUTCOME}
    metrics, grade = fields.pop("metrics", None), fields.pop("grade", None)
    identity = {"env": "sums", "task": "t", "group": "g", "index": 0, "id": new_id()} | fields
    rollout_builder = writer.begin(Header(run=writer.run, session=writer.session, started_at=utc_now(), **identity))
    rollout_builder.extend([Message("user", "1 + 1?")])
    for _ in range(steps):
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "2"), **{"reward": 1.0, "env_reward": 1.0, **(step or {})})
    good = Outcome(
        ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
        reward=1.0, reward_so_far=1.0, unclamped_reward=None,
    )  # fmt: skip
    rollout_builder.metrics.update(metrics or {})
    rollout_builder.grade = grade
    writer.end(rollout_builder, {**good, **outcome})  # type: ignore[typeddict-item]
    return rollout_builder.id


def score(writer: RunWriter, rollout: str | None, value: float | None, **fields: Any) -> None:
    """Write a score."""
    named = {"name": "reward", "created_at": utc_now()} | fields
    writer.write_score(
        Score(id=new_id(), run=writer.run, session=writer.session, rollout=rollout, value=value, **named)
    )
