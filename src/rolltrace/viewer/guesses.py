"""Slows wrong guesses of the token, without keeping the right one out."""

import asyncio
import time
from collections import Counter, OrderedDict

_FREE = 5
"""So many wrong tokens of a client are answered at once: somebody mistyped."""
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0
_FORGET_SECONDS = 60.0
_MOST_CLIENTS = 1024
_MOST_WAITING = 16
"""So many wrong guesses of one client wait for their answers at once; while they do, it gets no further ones in."""
_MOST_WAITING_IN_ALL = 128


class Guesses:
    """Counts the wrong guesses of each client, and delays the answers to them more and more.

    Only the request that guessed wrong waits, as a coroutine: the server goes on. The right token is never delayed. A
    client that floods the server with guesses has `is_flooding`, and is refused without a look at its token until some
    of its guesses are answered; so parallel connections do not help it.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def is_flooding(self, client: str) -> bool:
        """Whether too many wrong guesses, of this client or of all, still wait for their answers."""
        return self._waiting[client] >= _MOST_WAITING or self._waiting.total() >= _MOST_WAITING_IN_ALL

    async def slow_down(self, client: str) -> None:
        """Count a wrong guess, and return when it may be answered."""
        count, last = self._wrong.pop(client, (0, 0.0))
        now = time.monotonic()
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        self._wrong[client] = count, now
        while len(self._wrong) > _MOST_CLIENTS:
            self._wrong.popitem(last=False)
        if count <= _FREE:
            return
        self._waiting[client] += 1
        try:
            await asyncio.sleep(min(_FIRST_DELAY * 2 ** min(count - _FREE - 1, 16), _LONGEST_DELAY))
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
