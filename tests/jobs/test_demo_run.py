"""What recording costs is measured on the very rollouts that were recorded."""

from types import SimpleNamespace

import msgspec
import pytest

from rolltrace.jobs.demo_run import record_again, recording_seconds
from rolltrace.jobs.play import play
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter


@pytest.mark.parametrize("env", ["calculator", "rubric"])
def test_what_is_timed_is_the_whole_record(tmp_path, env):
    """The rollouts that are recorded once more come out as they were, so that nothing is left out of the measure."""
    play(env, "scripted:noisy", out=tmp_path / "first", groups=2)
    first = read(tmp_path / "first")
    with create_run(tmp_path / "again") as writer:
        for rollout in first.values():
            record_again(writer, rollout)
    missing_token_reasons = {
        name: msgspec.structs.replace(
            rollout, steps=tuple(msgspec.structs.replace(step, tokens=None) for step in rollout.steps)
        )
        for name, rollout in first.items()
    }
    assert read(tmp_path / "again") == missing_token_reasons


def test_seconds_are_those_of_recording_every_rollout(tmp_path, monkeypatch):
    """The time is that from the making of a run to its end, in which every rollout is recorded once."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "first", groups=2)
    first = read(tmp_path / "first")
    clock = SimpleNamespace(now=5.0, process_time=lambda: clock.now)
    monkeypatch.setattr("rolltrace.jobs.demo_run.time", clock)
    recorded, real = [], RunWriter.end

    def end(writer, rollout_builder, outcome):
        recorded.append(rollout_builder.id)
        clock.now += 0.25
        real(writer, rollout_builder, outcome)

    monkeypatch.setattr(RunWriter, "end", end)
    assert recording_seconds(first.values()) == 0.25 * len(first)
    assert recorded == list(first)


def test_the_envs_that_are_timed_have_all_that_is_recorded(tmp_path):
    """Between them, the rollouts above have several turns, tools, calls of a grader and a grade."""
    played = []
    for env in ("calculator", "rubric"):
        play(env, "scripted:noisy", out=tmp_path / env, groups=2)
        played.extend(read(tmp_path / env).values())
    assert any(len(rollout.steps) > 1 for rollout in played)
    for field in ("tools", "calls", "grade"):
        assert any(getattr(rollout, field) for rollout in played)


def read(path):
    """The rollouts of a run by their id."""
    with open_run(path) as run:
        return {rollout.id: rollout for rollout in run.rollouts(limit=None)}
