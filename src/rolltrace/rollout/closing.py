"""Lets envs and builders give back what they hold, without letting them hold up the record."""

import asyncio
from collections.abc import Awaitable, Callable

from rolltrace.rollout.contract import awaitable


async def close_within(seconds: float, close: Callable[[], Awaitable[None]], owner: object) -> Exception | None:
    """Close, and return what went wrong with it; that takes no reward away."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            await awaitable(close(), owner, close.__name__)
    except TimeoutError as error:
        return TimeoutError(f"it did not end within {seconds} s") if clock.expired() else error
    except Exception as error:  # noqa: BLE001 - anything at all is only said
        return error
    return None
