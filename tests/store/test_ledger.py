"""Accounting for every rollout: counts that add up, and what is lost."""

import signal
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rolltrace.store.ledger import Ledger, LedgerCounter, decode_ledger, encode_ledger, sum_ledgers
from rolltrace.store.reader import RunReader
from rolltrace.trace.codec import utc_now

DEEDS = st.lists(
    st.tuples(st.sampled_from(["started", "recorded", "dropped", "unrecordable"]), st.sampled_from("abc")),
    max_size=30,
)


@given(DEEDS, st.booleans())
def test_every_rollout_is_recorded_lost_or_maybe_lost(deeds, closed):
    """At all times each rollout is recorded, lost or maybe lost; a closed session has none that is maybe lost."""
    tally = LedgerCounter()
    tally.closed = closed
    for deed, rollout in deeds:
        if deed == "started":
            tally.start_rollout(rollout)
        else:
            tally.settle(rollout, deed, "" if deed == "recorded" else "ENOSPC")
        ledger = tally.ledger("run", "session")
        assert ledger.is_balanced
        assert ledger.dispatched == ledger.recorded + ledger.lost + ledger.maybe_lost
        assert ledger.maybe_lost == (0 if closed else ledger.in_flight)
    assert decode_ledger(encode_ledger(tally.ledger("run", "session"))).closed is closed


def test_older_lines_are_read():
    """A count that an older ledger lacks is read as empty."""
    line = encode_ledger(Ledger(run="run", session="session", written_at=utc_now(), sync_failed={"EIO": 1}))
    assert decode_ledger(line).sync_failed == {"EIO": 1}
    assert not decode_ledger(line).complete
    assert Ledger(run="run", session="session", written_at=utc_now()).sync_failed == {}


def test_rollouts_in_flight_of_a_killed_session_are_maybe_lost(tmp_path):
    """Rollouts that a killed writer had begun and not ended count as maybe lost, not as lost."""
    program = (
        "import os, signal, sys\n"
        "from rolltrace.store.create import create_run\n"
        "run = create_run(sys.argv[1])\n"
        "with run.rollout(env='sums', task='t', group='g', index=0) as recorder:\n"
        "    recorder.step('1 + 1?', '2', 1.0)\n"
        "begun = [run.rollout(env='sums', task='t', group='g', index=index) for index in (1, 2)]\n"
        "run.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=False)
    assert killed.returncode == -signal.SIGKILL
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert (ledger.recorded, ledger.lost, ledger.maybe_lost, ledger.closed) == (1, 0, 2, False)


def test_ledgers_of_several_sessions_add_up():
    """Counts are summed, losses by reason, and the sum is closed if all sessions are."""
    first, second = (
        Ledger(
            run="r", session=name, written_at=utc_now(), dispatched=5, recorded=3, in_flight=1, dropped={"closed": 1},
            scores_recorded=2, closed=True,
        )
        for name in ("a", "b")
    )  # fmt: skip
    total = sum_ledgers([first, replace(second, closed=False, dropped={"ENOSPC": 1})])
    assert (total.session, total.dispatched, total.recorded, total.in_flight) == ("a", 10, 6, 2)
    assert (total.dropped, total.scores_recorded, total.closed) == ({"closed": 1, "ENOSPC": 1}, 4, False)
    assert total.is_balanced
