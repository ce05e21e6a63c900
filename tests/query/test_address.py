"""Where rollouts stand."""

import pytest

from rolltrace.query.address import address, short_addresses
from rolltrace.query.rollout_lookup import RolloutAddress

FIELDS = {"split": "train", "env": "sums", "iteration": 0, "group": "g", "index": 0, "attempt": 0, "session": "s"}


@pytest.mark.parametrize("field", ["split", "env", "iteration", "group", "index"])
def test_short_addresses_tell_rollouts_apart(field):
    """Whatever differs in a run, each short address is an end of the address, and names one rollout."""
    values = (0, 1) if field in ("iteration", "index") else ("one", "two")
    rollouts = [RolloutAddress(id=str(value), **(FIELDS | {field: value})) for value in values]
    short = short_addresses(rollouts)
    assert len(set(short.values())) == 2
    for rollout in rollouts:
        assert address(rollout).endswith(short[rollout.id])
        assert "/" in short[rollout.id]
