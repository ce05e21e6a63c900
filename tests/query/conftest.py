"""Fixtures of the query tests: runs that were really written, with the fields that a test needs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolltrace.query.run import Run, open_run
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import EncodedRecord
from rolltrace.trace.stop_reasons import Status, StoppedBy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the run of a test."""
    return tmp_path / "run"


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Run]]:
    """Opens runs, and closes them after the test."""
    runs: list[Run] = []

    def open_(place: Any) -> Run:
        runs.append(open_run(place))
        return runs[-1]

    yield open_
    for run in runs:
        run.close()


@pytest.fixture
def make_line() -> Callable[..., EncodedRecord]:
    """Begins a rollout with the writer and finishes it; the line is not written."""

    def make(writer: RunWriter, **fields: Any) -> EncodedRecord:
        identity = {"env": "sums", "task": "t", "group": "g", "index": 0} | fields
        header = Header(id=new_id(), run=writer.run, session=writer.session, started_at=utc_now(), **identity)
        rollout_builder = writer.begin(header)
        rollout_builder.extend([Message("user", "1 + 1?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "2"), reward=1.0, env_reward=1.0)
        return rollout_builder.encode(
            Outcome(
                ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
                reward=1.0, reward_so_far=1.0, unclamped_reward=None,
            )
        )  # fmt: skip

    return make
