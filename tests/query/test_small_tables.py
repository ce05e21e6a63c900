"""The small tables: whatever a ledger says can be asked."""

import pytest
from msgspec.structs import fields

from answers import write
from rolltrace.query.table_schema import COUNTS, SMALL_TABLES
from rolltrace.store.create import create_run
from rolltrace.store.ledger import Ledger
from rolltrace.trace.codec import utc_now
from rolltrace.trace.rollout import Header, Timestamp

KINDS = {
    str: "VARCHAR", int: "BIGINT", bool: "BOOLEAN", dict[str, int]: COUNTS, Timestamp: "TIMESTAMP",
    tuple[str, ...] | None: "VARCHAR[]",
}  # fmt: skip


@pytest.mark.parametrize("field", [field for field in fields(Ledger) if field.name != "v"], ids=lambda one: one.name)
def test_every_field_of_a_ledger_is_a_column(field):
    """What a ledger counts is not hidden from SQL, and has the type that it has there."""
    assert SMALL_TABLES["ledger"].get(field.name) == KINDS[field.type]


def test_what_was_in_flight_is_lost_or_in_doubt(path, opened):
    """A session that is not closed leaves doubt about what it was playing; one that was closed has lost it."""
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
