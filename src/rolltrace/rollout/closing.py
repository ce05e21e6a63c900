"""Lets envs and builders give back what they hold, without letting them hold up the record."""

import asyncio
from collections.abc import Awaitable, Callable

from rolltrace.policies.validation import require_awaitable
from rolltrace.rollout.error_layer import ENV_LAYER, LayerError


async def close_with_timeout(
    seconds: float, close: Callable[[], Awaitable[None]], owner: object
) -> BaseException | None:
    """Close, and return what went wrong with it; that takes no reward away."""
    try:
        async with asyncio.timeout(seconds):
            with ENV_LAYER:
                await require_awaitable(close(), owner, close.__name__)
    except TimeoutError:  # only ours: its own arrives blamed
        return TimeoutError(f"it did not end within {seconds} s")
    except LayerError as blamed:
        return blamed.cause
    return None
