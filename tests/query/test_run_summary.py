"""One run's numbers: right denominators, the latest session, and nothing hidden."""

import json
import math
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from rolltrace.errors import RunNotFoundError
from rolltrace.query.run_summary import summarize
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import Failure
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.stop_reasons import Layer, Status, StoppedBy
from rolltrace.trace.strict_json import encode_json
from rolltrace.trace.tokens import Usage

STARTED, SECONDS = datetime(2026, 1, 2, tzinfo=UTC), timedelta(seconds=2.5)
FAILURE = {
    "status": Status.ERROR,
    "stop_reason": "error",
    "error": Failure(Layer.ENV, "OSError", "gone"),
    "reward": None,
}


def play(writer, group, index, reward=1.0, *, iteration=0, attempt=0, split="train", **ended):
    header = Header(
        id=new_id(), run=writer.run, session=writer.session, env="sums", task="t", group=group, index=index,
        policy="p", iteration=iteration, attempt=attempt, split=split, started_at=STARTED,
    )  # fmt: skip
    rollout_builder = writer.begin(header)
    rollout_builder.extend([Message("user", "1 + 1?")])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(Message("assistant", "2"), reward=1.0, usage=Usage(10, 3))
    good = Outcome(
        ended_at=STARTED + SECONDS * (1 + index), status=Status.OK, stop_reason="completed",
        stopped_by=StoppedBy.ENV, error=None, reward=reward, reward_so_far=1.0, unclamped_reward=None,
    )  # fmt: skip
    writer.end(rollout_builder, {**good, **ended})


def begin(writer):
    """Begins a rollout that never ends."""
    writer.begin(
        Header(
            id=new_id(), run=writer.run, session=writer.session, env="sums", task="t", group="z", index=0,
            started_at=utc_now(),
        )
    )  # fmt: skip


@pytest.fixture
def path(tmp_path, played):
    """The run, to be changed."""
    return shutil.copytree(played, tmp_path / "run")


@pytest.fixture(scope="module")
def summary(played):
    """The numbers of the run."""
    return summarize(played)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Group a has a signal, b has none, c failed and was retried; an evaluation; and a following iteration."""
    path = tmp_path_factory.mktemp("played") / "run"
    with create_run(path) as writer:
        play(writer, "a", 0, 1.0)
        play(writer, "a", 1, 0.0, stop_reason="max_turns")
        play(writer, "b", 0, 1.0)
        play(writer, "b", 1, 1.0)
        play(writer, "c", 0, **FAILURE)
        play(writer, "c", 0, 0.5, attempt=1)
        play(writer, "a", 0, -1.0, iteration=1)
        play(writer, "a", 0, 1.0, split="test")
    return path


def test_totals(summary):
    """Everything is counted once, over all rollouts; earlier attempts are counted apart."""
    assert (summary.rollouts, summary.retried, summary.superseded, summary.steps) == (7, 1, 0, 7)
    assert summary.attempts == 8
    assert summary.envs == {"sums": 7}
    assert summary.policies == {"p": 7}
    assert summary.stop_reasons == {"completed": 6, "max_turns": 1}
    assert list(summary.stop_reasons) == ["completed", "max_turns"]
    assert summary.statuses == {"ok": 7}
    assert (summary.prompt_tokens, summary.completion_tokens) == (70, 21)
    assert summary.mean_seconds == (5 * 2.5 + 2 * 5.0) / 7
    assert (summary.sessions, summary.open_sessions) == (1, 0)
    assert summary.ledger["dispatched"] == summary.ledger["recorded"] == 8
    assert summary.problem_count == 0


def test_rewards(summary):
    """The mean is over rollouts with a reward, and the number of the others is given."""
    rewards = summary.rewards
    assert (rewards.n, rewards.missing, rewards.non_finite) == (7, 0, 0)
    assert rewards.mean == pytest.approx(3.5 / 7)
    values = [1, 0, 1, 1, 0.5, -1, 1]
    assert rewards.std == pytest.approx(math.sqrt(sum((value - 0.5) ** 2 for value in values) / 7))
    assert (rewards.min, rewards.max) == (-1.0, 1.0)


def test_groups_with_and_without_signal(summary):
    """A group has a signal if members differ; a group of one is in neither number."""
    assert (summary.groups, summary.groups_with_signal, summary.groups_without_signal) == (5, 1, 1)


def test_iterations(summary):
    """Each iteration of each split has its own numbers."""
    iterations = {(one.split, one.iteration): one for one in summary.iterations}
    assert list(iterations) == [("test", 0), ("train", 0), ("train", 1)]
    first = iterations["train", 0]
    assert (first.rollouts, first.groups, first.failed) == (5, 3, 0)
    assert (first.groups_with_signal, first.groups_without_signal) == (1, 1)
    assert first.rewards.mean == pytest.approx(3.5 / 5)
    assert first.mean_steps == 1.0
    assert iterations["train", 1].rewards.mean == -1.0


def test_errors_are_counted_by_layer_and_type(summary):
    """A failure has its layer, type, count and one message, also if it was retried."""
    [error] = summary.errors
    assert (error.layer, error.type, error.count, error.example) == ("env", "OSError", 1, "gone")


def test_a_restart_supersedes(path):
    """If a later session repeats an iteration, its rollouts count, and the others are counted apart."""
    with create_run(path, join=True) as writer:
        play(writer, "a", 0, 0.25)
    summary = summarize(path)
    assert (summary.rollouts, summary.superseded, summary.sessions) == (7, 1, 2)
    assert summary.rewards.mean == pytest.approx(2.75 / 7)


def test_rewards_that_are_not_finite_are_counted(path):
    """NaN and infinities are left out of the mean, and counted."""
    with create_run(path, join=True) as writer:
        play(writer, "z", 0, float("nan"))
        play(writer, "z", 1, float("inf"))
    rewards = summarize(path).rewards
    assert (rewards.n, rewards.non_finite) == (7, 2)
    assert rewards.mean == pytest.approx(0.5)


def test_an_empty_run(tmp_path):
    """The summary of a run without rollouts is no error."""
    create_run(tmp_path / "run").close()
    summary = summarize(tmp_path / "run")
    assert (summary.rollouts, summary.groups, summary.iterations) == (0, 0, ())
    assert (summary.rewards.n, summary.rewards.mean, summary.mean_seconds) == (0, None, None)
    json.loads(encode_json(summary))


def test_unreadable_places_are_reported(path):
    """Problems are counted and named."""
    (file,) = (path / "rollouts").iterdir()
    file.write_bytes(file.read_bytes() + b"garbage\n")
    summary = summarize(path)
    assert summary.problem_count == 1
    assert file.name in summary.problems[0]
    assert summary.rollouts == 7


def test_a_torn_ledger_is_reported(path):
    """A torn line of a ledger counts among the problems."""
    (file,) = (path / "ledger").iterdir()
    file.write_bytes(file.read_bytes() + b'{"v":2,"to')
    summary = summarize(path)
    assert summary.problem_count == 1
    assert file.name in summary.problems[0]
    assert summary.ledger["recorded"] == 8


def test_rollouts_in_flight_are_maybe_lost_or_lost(path):
    """Rollouts in flight of an open session are maybe lost; those of a closed one are lost."""
    with create_run(path, join=True) as writer:
        begin(writer)
        writer.flush()
        summary = summarize(path)
        assert (summary.lost, summary.maybe_lost, summary.open_sessions) == (0, 1, 1)
    summary = summarize(path)
    assert (summary.lost, summary.maybe_lost, summary.open_sessions) == (1, 0, 0)


def test_a_directory_of_runs_is_no_run(path):
    """A summary is of one run, so a directory of runs is refused."""
    with pytest.raises(RunNotFoundError):
        summarize(path.parent)


def test_a_summary_is_strict_json(path):
    """Numbers that are not finite are written as text."""
    with create_run(path, join=True) as writer:
        for index in range(2):
            play(writer, "huge", index, 1.7e308, iteration=5)

    def refuse(constant):
        raise AssertionError(constant)

    told = json.loads(encode_json(summarize(path)), parse_constant=refuse)
    assert told["iterations"][-1]["rewards"]["max"] == 1.7e308
    assert told["iterations"][-1]["rewards"]["mean"] == "Infinity"
    assert told["ledger"]["recorded"] == 10


def test_a_place_without_a_run_is_refused(tmp_path):
    """A path without a run is refused."""
    with pytest.raises(RunNotFoundError):
        summarize(tmp_path)
