"""How many requests are at a server at once, whoever sends them."""

import asyncio
from weakref import WeakKeyDictionary


class LoopSemaphores:
    """So many places for each event loop: one is taken with `async with places.for_this_loop():`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def for_this_loop(self) -> asyncio.Semaphore:
        """The places of the event loop that runs."""
        return self._loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._number))
