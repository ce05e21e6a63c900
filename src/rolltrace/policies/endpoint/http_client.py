"""HTTP to one endpoint: one session for each event loop, so many requests in flight, and each reply read whole."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.endpoint.api_key import WITHHELD, ApiKey, redact_key, redact_key_in_text
from rolltrace.policies.endpoint.backoff import Backoff, Sleep, TransientError, parse_retry_after, with_retries
from rolltrace.policies.endpoint.server_errors import error_from_status

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A longer reply is not read to its end."""
_KEPT_OF_TOO_MUCH = 100_000
_CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 15.0
"""How long a connection is kept for the next request; servers close idle ones, and a race with that is a reset."""

S = TypeVar("S")


class HttpReply(msgspec.Struct, Generic[S], frozen=True):
    """What a server sent with a status of success."""

    body: bytes
    sent_version: S
    """What was true when the request was sent."""


class Client:
    """Sends requests to one server, and asks again where a failure may pass.

    It may be used from several event loops, one after the other or at once; it pickles without its connections.
    """

    def __init__(
        self,
        *,
        where: str,
        key: ApiKey,
        max_in_flight: int,
        timeout: float,
        patience: Backoff,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._where = where
        self._key = key
        self._max_in_flight = max_in_flight
        self._timeout = timeout
        self._patience = patience
        self._sleep = sleep
        self._doors: WeakKeyDictionary[asyncio.AbstractEventLoop, _Door] = WeakKeyDictionary()

    async def request(
        self, url: str, body: bytes | None, read: Callable[[HttpReply[S]], Any], stamp: Callable[[], S]
    ) -> Any:
        """What `read` makes of the reply to a POST, or without a body to a GET.

        It is asked for again where the server fails in passing, which includes a reply that `read` finds unreadable
        by raising `TransientError`.
        """
        return await with_retries(partial(self._attempt, url, body, read, stamp), self._patience, self._sleep)

    def with_limits(self, *, timeout: float, patience: Backoff) -> "Client":
        """A client to the same server, with connections of its own, that waits and asks again no more than so."""
        return Client(
            where=self._where,
            key=self._key,
            max_in_flight=1,
            timeout=min(timeout, self._timeout),
            patience=msgspec.structs.replace(patience, retries=min(patience.retries, self._patience.retries)),
            sleep=self._sleep,
        )

    async def close(self) -> None:
        """Close the connections of this event loop, and forget those of loops that are no more."""
        for loop in self._loops():
            if loop is asyncio.get_running_loop() or loop.is_closed():
                await self._shut(loop)

    async def _attempt(
        self, url: str, body: bytes | None, read: Callable[[HttpReply[S]], Any], stamp: Callable[[], S]
    ) -> Any:
        key = self._key.read()
        try:
            return await self._answer(url, body, read, stamp, key)
        except PolicyError as error:  # whatever it is made of, its text is recorded
            error.args = (redact_key_in_text(str(error), key),)
            if error.raw is not None:
                error.raw = redact_key_in_text(error.raw, key)
            raise

    async def _answer(
        self, url: str, body: bytes | None, read: Callable[[HttpReply[S]], Any], stamp: Callable[[], S], key: str | None
    ) -> Any:
        door = self._doors.get(asyncio.get_running_loop()) or await self._open()
        async with door.places:
            given = stamp()
            received: list[bytes] = []
            try:
                status, headers = await self._exchange(door, url, body, key, received)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                # Without its cause, whose text may be headers that the server echoed.
                raise self._broken(error, b"".join(received), key) from None
        reply = redact_key(b"".join(received), key)
        if 200 <= status < 300:
            if reply == WITHHELD:
                raise PolicyError(f"Expected a reply from {self._where} without the API key, got one that repeats it.")
            return read(HttpReply(reply, given))
        location = headers.get("Location")
        if location is not None and redact_key_in_text(unquote(location), key) != unquote(location):
            location = None  # a host's name is written small, so that the key could not be found in it later
        failure = error_from_status(status, reply, where=self._where, key=self._key, location=location)
        if isinstance(failure, TransientError):
            failure.retry_after = parse_retry_after(headers.get("Retry-After"))
        raise failure

    async def _exchange(
        self, door: "_Door", url: str, body: bytes | None, key: str | None, received: list[bytes]
    ) -> tuple[int, Any]:
        """Send, and receive piece by piece, so that what came before a failure is known."""
        async with door.session.request(
            "GET" if body is None else "POST",
            url,
            data=body,
            headers=door.headers(key),
            allow_redirects=False,  # the key is for this server only
        ) as response:
            size = 0
            while not response.content.at_eof():
                piece = await response.content.readany()
                size += len(piece)
                received.append(piece)
                if size > MAX_REPLY_BYTES:
                    raise self._too_much(received, key)
            return response.status, response.headers

    def _too_much(self, received: list[bytes], key: str | None) -> PolicyError:
        error = PolicyError(f"Expected at most {MAX_REPLY_BYTES:,} bytes from {self._where}, got more: set max_tokens.")
        beginning = redact_key(b"".join(received)[: 2 * _KEPT_OF_TOO_MUCH], key, is_cut=True)
        error.raw = beginning[:_KEPT_OF_TOO_MUCH].decode("utf-8", "replace")
        return error

    def _broken(self, error: Exception, received: bytes, key: str | None) -> PolicyError:
        """A connection that failed: whether it is worth trying again, and what came until then."""
        what = type(error).__name__
        if isinstance(error, OSError | aiohttp.InvalidURL):  # the texts of others may quote headers
            what = f"{what}: {error}".removesuffix(": ")
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            what = f"no whole reply within {self._timeout:g} s"
        kind = PolicyError if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL) else TransientError
        broken = kind(f"Expected an answer from {self._where}, got {what}")
        if received:
            broken.raw = redact_key(received, key, is_cut=True).decode("utf-8", "replace")
        return broken

    async def _open(self) -> "_Door":
        door = self._doors[asyncio.get_running_loop()] = _Door(self._max_in_flight, self._timeout)
        for loop in self._loops():  # only now: other tasks of this loop come to use the same door meanwhile
            if loop.is_closed():
                await self._shut(loop)
        return door

    async def _shut(self, loop: asyncio.AbstractEventLoop) -> None:
        if (door := self._doors.pop(loop, None)) is not None:
            await door.session.close()

    def _loops(self) -> list[asyncio.AbstractEventLoop]:
        """The loops with a door, taken at once: other threads have loops too."""
        return [loop for reference in self._doors.keyrefs() if (loop := reference()) is not None]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_doors": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._doors = WeakKeyDictionary()


class _Door:
    """What one event loop has open to the server."""

    def __init__(self, max_in_flight: int, timeout: float) -> None:
        self.places = asyncio.Semaphore(max_in_flight)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS),
            trust_env=False,  # neither a proxy nor a .netrc gets to see the key unasked
            skip_auto_headers=("User-Agent",),
        )
        self._headers: tuple[str | None, dict[str, str]] | None = None

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers, made once for each key."""
        if self._headers is None or self._headers[0] != key:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate"}
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            self._headers = (key, headers)
        return self._headers[1]
