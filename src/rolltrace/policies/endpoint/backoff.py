"""Asking again: how often, after how long, and with what error at the end."""

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from rolltrace.errors import PolicyError

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


class TransientError(PolicyError):
    """A failure that may be gone the next time; it never leaves the endpoint's own code."""

    retry_after: float | None = None
    """How many seconds the server asked to wait."""


class Backoff(msgspec.Struct, frozen=True):
    """How often and how slowly an endpoint is asked again."""

    retries: int = 5
    initial_wait: float = 0.5
    """Seconds before the first retry, at most; each further one may take twice as long."""
    max_wait: float = 60.0
    """Seconds before any retry, at most, whatever the server asks for."""

    def delay(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after so many failures.

        Chance spreads those who failed together; where a server says when to come back, nobody comes sooner.
        """
        spread = min(self.max_wait, self.initial_wait * 2 ** min(failures - 1, 30))
        wait = random.uniform(0.0, spread)  # noqa: S311 - no secret, and nothing recorded depends on it
        return wait if asked is None else min(self.max_wait, asked + wait)


async def with_retries(attempt: Callable[[], Awaitable[T]], patience: Backoff, sleep: Sleep) -> T:
    """What an attempt gives; after the last one that fails, its error."""
    failures = 0
    while True:
        try:
            return await attempt()
        except TransientError as error:
            failures += 1
            if failures > patience.retries:
                times = f" (asked {failures} times)" if failures > 1 else ""
                final = PolicyError(f"{error}{times}")
                final.raw = error.raw
                raise final from error
            wait = patience.delay(failures, error.retry_after)
        await sleep(wait)


def parse_retry_after(retry_after: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header asks for, as a number or as a date; None where it says nothing."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            return None
        date = date.replace(tzinfo=UTC) if date.tzinfo is None else date
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None  # NaN is a number to Python, and to nobody else
