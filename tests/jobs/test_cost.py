"""What recording costs is measured on the very rollouts that were recorded."""

import msgspec

from rolltrace.jobs.cost import _record, recording_seconds
from rolltrace.jobs.demo import play_demo
from rolltrace.query.run import open_run
from rolltrace.store.create import create_run


def test_what_is_timed_is_the_whole_record(tmp_path):
    """The rollouts that are recorded once more come out as they were, so that nothing is left out of the measure."""
    play_demo(tmp_path / "first", policy="scripted:noisy")
    with open_run(tmp_path / "first") as run:
        first = {rollout.id: rollout for rollout in run.rollouts(limit=None)}
    with create_run(tmp_path / "again") as writer:
        for rollout in first.values():
            _record(writer, rollout)
    with open_run(tmp_path / "again") as run:
        again = {rollout.id: rollout for rollout in run.rollouts(limit=None)}
    plain = {"tokens": None}
    for name, rollout in first.items():
        expected = msgspec.structs.replace(
            rollout, steps=tuple(msgspec.structs.replace(step, **plain) for step in rollout.steps)
        )
        assert again[name] == expected
    assert recording_seconds(first.values()) > 0
