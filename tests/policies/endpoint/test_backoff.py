"""When a request to an endpoint is retried."""

from datetime import UTC, datetime

import pytest

from rolltrace.policies.endpoint.backoff import Backoff, parse_retry_after

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("5", 5.0),
        (" 1.5 ", 1.5),
        ("-3", 0.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        ("Thu, 99 Foo 2026", None),
    ],
)
def test_retry_after(header, seconds):
    """A Retry-After header holds seconds or a date; any other value is ignored."""
    assert parse_retry_after(header, NOW) == seconds


def test_no_wait_is_longer_than_the_longest():
    """No wait exceeds `max_wait`, whatever the number of failures or the Retry-After header."""
    patience = Backoff()
    for failures in (1, 10, 10_000):
        for asked in (None, 0.0, 59.9, 1e9, float("inf")):
            assert 0.0 <= patience.delay(failures, asked) <= patience.max_wait


def test_the_range_of_waits_doubles():
    """The range from which a wait is drawn doubles with each failure, up to the longest wait."""
    patience = Backoff()
    for failures, most in ((1, 0.5), (2, 1.0), (5, 8.0), (20, 60.0)):
        waits = [patience.delay(failures, None) for _ in range(200)]
        assert most / 2 < max(waits) <= most
        assert min(waits) < most / 2
