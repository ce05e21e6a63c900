"""Asking a server once, for all who want to know, how it gives token ids."""

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.endpoint.backoff import Backoff, TransientError
from rolltrace.policies.endpoint.dialects import Dialect, detect_dialect
from rolltrace.policies.endpoint.http_client import Client, HttpReply

_PATIENCE = Backoff(retries=1, max_wait=5.0)
_SECONDS = 30.0
"""How long the list of models may take; answers wait for it."""
REPROBE_SECONDS = 60.0
"""After a failure that may pass, the server is left alone for so long."""


class DialectProbe:
    """Reads the list of models. All who ask meanwhile wait for the same; what will not change is not asked again."""

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self.reason = "the server gives no token ids in a way that is known here"
        """Why there is none, where there is none."""
        self._client = client.with_limits(timeout=_SECONDS, patience=_PATIENCE)  # it waits behind no answers
        self._known = dialect
        self._forget()

    async def dialect(self, url: str) -> Dialect:
        """What the server speaks beside the OpenAI API, as far as it can be known now."""
        if self._known is not Dialect.AUTO:
            return self._known
        loop = asyncio.get_running_loop()
        asking = self._asking.get(loop)
        if asking is None:
            if loop.time() < self._quiet_until:
                return Dialect.OPENAI
            asking = self._asking[loop] = loop.create_task(self._ask(url))
        await asyncio.wait([asking])  # whoever stops waiting does not stop it for others
        return Dialect.OPENAI if asking.cancelled() else asking.result()

    async def close(self) -> None:
        """Stop asking in this event loop."""
        if (asking := self._asking.get(asyncio.get_running_loop())) is not None:
            asking.cancel()
            await asyncio.wait([asking])

    async def _ask(self, url: str) -> Dialect:
        loop = asyncio.get_running_loop()
        try:
            self._known = detect_dialect(await self._client.request(url, None, _read_list, _nothing))
        except PolicyError as error:
            self.reason = f"the server does not list its models: {error}"
            if isinstance(error.__cause__, TransientError):
                self._quiet_until = loop.time() + REPROBE_SECONDS
                return Dialect.OPENAI
            self._known = Dialect.OPENAI
        finally:
            try:
                await self._client.close()
            finally:
                self._asking.pop(loop, None)
        return self._known

    def _forget(self) -> None:
        self._asking: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Dialect]] = WeakKeyDictionary()
        self._quiet_until = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_asking": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()  # another process has another clock


def _nothing() -> None:
    return


def _read_list(reply: HttpReply[None]) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"Expected JSON, got something else: {error}") from None
