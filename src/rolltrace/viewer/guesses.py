"""Delays the answers to wrong tokens, and bounds how many of them wait."""

import asyncio
import time
from collections import Counter, OrderedDict

_FREE = 5
"""How many wrong tokens of a client are answered without a delay: people mistype."""
_FIRST_DELAY = 0.1
_MAX_DELAY = 2.0
_FORGET_SECONDS = 60.0
_MAX_CLIENTS = 1024
_MAX_WAITING = 16
"""How many wrong tokens of one client may wait for their answers; meanwhile its further tokens are not compared."""
_MAX_WAITING_IN_ALL = 128
"""How many of all clients may wait; meanwhile further wrong tokens are refused at once, and the right one is let in."""


class TokenThrottle:
    """Counts the wrong tokens of each client, and delays the answers to them more and more.

    Only the request with the wrong token waits, as a coroutine; the right token is never delayed. A client that floods
    the server (`is_flooding`) is refused before its token is compared, the right one included, until some of its wrong
    tokens are answered: otherwise parallel connections would test tokens without a delay. Other clients are let in
    with the right token whatever it sends.
    """

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._waiting: Counter[str] = Counter()

    def is_flooding(self, client: str) -> bool:
        """Whether too many wrong tokens of this client still wait for their answers."""
        return self._waiting[client] >= _MAX_WAITING

    def is_full(self) -> bool:
        """Whether too many wrong tokens, of all clients together, still wait for their answers."""
        return self._waiting.total() >= _MAX_WAITING_IN_ALL

    async def delay_wrong_token(self, client: str) -> None:
        """Count a wrong guess, and return when it may be answered."""
        count, last = self._wrong.pop(client, (0, 0.0))
        now = time.monotonic()
        count = 1 if now - last > _FORGET_SECONDS else count + 1
        self._wrong[client] = count, now
        while len(self._wrong) > _MAX_CLIENTS:
            self._wrong.popitem(last=False)
        if count <= _FREE:
            return
        self._waiting[client] += 1
        try:
            await asyncio.sleep(min(_FIRST_DELAY * 2 ** min(count - _FREE - 1, 16), _MAX_DELAY))
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
