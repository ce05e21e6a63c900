"""Lets envs and builders give back what they hold, without letting them hold up the record."""

import asyncio
from collections.abc import Awaitable, Callable

from rolltrace.policies.contract import awaitable
from rolltrace.rollout.blame import BLAME_ENV, BlamedError


async def close_within(seconds: float, close: Callable[[], Awaitable[None]], owner: object) -> BaseException | None:
    """Close, and return what went wrong with it; that takes no reward away."""
    try:
        async with asyncio.timeout(seconds):
            with BLAME_ENV:
                await awaitable(close(), owner, close.__name__)
    except TimeoutError:  # only ours: its own arrives blamed
        return TimeoutError(f"it did not end within {seconds} s")
    except BlamedError as blamed:
        return blamed.cause
    return None
