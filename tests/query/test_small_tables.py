"""The small tables: everything in a ledger can be queried."""

from answers import write
from rolltrace.store.create import create_run
from rolltrace.trace.codec import utc_now
from rolltrace.trace.rollout import Header


def test_rollouts_in_flight_are_lost_or_maybe_lost(path, opened):
    """Rollouts in flight of an open session are maybe lost; those of a closed one are lost."""
    question = "select dispatched, recorded, in_flight, lost, maybe_lost, closed from ledger"
    with create_run(path) as writer:
        write(writer)
        writer.begin(
            Header(
                id="never", run=writer.run, session=writer.session, env="e", task="t", group="g", index=1,
                started_at=utc_now(),
            )
        )  # fmt: skip
        writer.flush()
        assert opened(path).sql(question).fetchall() == [(2, 1, 1, 0, 1, False)]
    assert opened(path).sql(question).fetchall() == [(2, 1, 1, 1, 0, True)]
