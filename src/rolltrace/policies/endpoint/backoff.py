"""Retries of failed requests with exponential backoff."""

import random
from asyncio import sleep
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

from rolltrace.errors import PolicyError

T = TypeVar("T")


class TransientError(PolicyError):
    """A failure that a retry may resolve; it does not leave this package."""

    retry_after: float | None = None
    """Seconds to wait, as the server requested."""


class Backoff(msgspec.Struct, frozen=True):
    """How often a request is retried, and how long to wait before each retry."""

    retries: int = 5
    initial_wait: float = 0.5
    """Maximum wait before the first retry, in seconds. It doubles with each retry."""
    max_wait: float = 60.0
    """Maximum wait before any retry, in seconds, even if the server requests more."""

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait after this number of failures; at least `retry_after`.

        The wait is random, so that requests that failed together are not retried together.
        """
        longest = min(self.max_wait, self.initial_wait * 2 ** min(failures - 1, 30))
        wait = random.uniform(0.0, longest)  # noqa: S311 - no secret, and nothing recorded depends on it
        return wait if retry_after is None else min(self.max_wait, retry_after + wait)


async def with_retries(attempt: Callable[[], Awaitable[T]], backoff: Backoff) -> T:
    """Call `attempt` until it succeeds, and return its result. Raises the error of the last attempt."""
    failures = 0
    while True:
        try:
            return await attempt()
        except TransientError as error:
            failures += 1
            if failures > backoff.retries:
                times = f" (asked {failures} times)" if failures > 1 else ""
                final = PolicyError(f"{error}{times}")
                final.raw = error.raw
                raise final from error
            wait = backoff.delay(failures, error.retry_after)
        await sleep(wait)


def parse_retry_after(retry_after: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a `Retry-After` header requests, as a number or as a date; None if it is missing or invalid."""
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
    return max(0.0, seconds) if seconds == seconds else None  # not NaN
