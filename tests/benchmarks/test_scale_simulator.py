"""The simulator of runs at scale keeps to the laws of the writer; `tests/store` compares it with a real store."""

import pytest

from rolltrace.store import upload
from rolltrace.store.ledger import LedgerCounter
from rolltrace.store.upload import MAX_UPLOAD_SECONDS, UPLOAD_SECONDS

pytestmark = pytest.mark.core


def test_bytes_objects_and_age_keep_to_the_rules(simulator):
    """At any rate, less than 3 bytes are uploaded for each, and what was recorded is uploaded after a few seconds."""
    for rate in (1e3, 1e5, 1e7):
        one = simulator.simulate_worker(rate, 5_000, rollouts=60)
        assert 0 < one.uploaded < upload.MAX_UPLOAD_RATIO * one.recorded
        assert one.recorded == pytest.approx(rate * 5_000, rel=0.1)
        assert 0 < one.segments <= one.puts
        assert one.stale_seconds <= MAX_UPLOAD_SECONDS


def test_old_and_crowded_sessions_upload_less_often(simulator):
    """The interval grows with the age of a session and with the number of sessions, up to a bound."""

    def interval(age, workers=1):
        now, store = [0.0], simulator.SimulatedStore()
        with store.installed():
            writer = simulator.make_writer(LedgerCounter(()), now)
            writer.sync_if_due()
            store.sizes |= {f"run/ledger/other-{number}.jsonl": 0 for number in range(workers - 1)}
            now.append(age)
            writer.sync_if_due()
            return writer._next_upload - age

    assert [interval(age) for age in (10.0, 2_400.0, 90_000.0)] == [UPLOAD_SECONDS, 4.0, MAX_UPLOAD_SECONDS]
    assert [interval(100.0, workers) for workers in (100, 200, 5_000)] == [UPLOAD_SECONDS, 4.0, MAX_UPLOAD_SECONDS]


def test_merging_rewrites_each_row_a_few_times(simulator):
    """A reader that polls a growing run rewrites what it has read a few times, and keeps few small parts."""
    read = simulator.simulate_reader(1e7, 5_000, polls=300)
    assert 0 < read["rewritten ÷ read"] < 8
    assert read["small parts"] < 20
