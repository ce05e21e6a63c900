"""Addresses of rollouts."""

import msgspec
import pytest

from rolltrace.query.address import address, short_addresses
from rolltrace.query.rollout_lookup import RolloutAddress
from rolltrace.trace.score import GroupKey

KEY = GroupKey("train", 0, "sums", "g")


@pytest.mark.parametrize("field", ["split", "env", "iteration", "group", "index"])
def test_short_addresses_tell_rollouts_apart(field):
    """Each short address is a suffix of the full one and names one rollout, whatever differs in a run."""
    values = (0, 1) if field in ("iteration", "index") else ("one", "two")
    rollouts = []
    for value in values:
        key = KEY if field == "index" else msgspec.structs.replace(KEY, **{field: value})
        rollouts.append(RolloutAddress(key, str(value), value if field == "index" else 0, 0, "s"))
    short = short_addresses(rollouts)
    assert len(set(short.values())) == 2
    for rollout in rollouts:
        assert address(rollout).endswith(short[rollout.id])
        assert "/" in short[rollout.id]
