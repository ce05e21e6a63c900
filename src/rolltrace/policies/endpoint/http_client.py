"""The HTTP client of an endpoint: one session per event loop, a limit of requests in flight, and retries."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.endpoint.api_key import WITHHELD, ApiKey, redact_key, redact_key_in_text
from rolltrace.policies.endpoint.backoff import Backoff, TransientError, parse_retry_after, with_retries
from rolltrace.policies.endpoint.server_errors import error_from_status

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""A longer reply is not read to its end."""
_MAX_RAW_BYTES = 100_000
"""How much of a reply that is too long is recorded."""
_CONNECT_SECONDS = 30.0
_IDLE_SECONDS = 15.0
"""How long an idle connection is kept. Servers close idle ones too, and a request at that moment is reset."""

PolicyVersion = int | str | None


class HttpReply(msgspec.Struct, frozen=True):
    """A reply with a status of success."""

    body: bytes
    sent_version: PolicyVersion
    """The policy's version when the request was sent."""


def _no_version() -> PolicyVersion:
    return None


@dataclass(kw_only=True, eq=False, repr=False)
class Client:
    """Sends requests to one server, and retries after transient failures.

    It may be used from several event loops, one after the other or at once; it pickles without its connections.
    """

    where: str
    key: ApiKey
    max_in_flight: int
    timeout: float
    backoff: Backoff

    def __post_init__(self) -> None:
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSession] = WeakKeyDictionary()

    async def request(
        self,
        url: str,
        body: bytes | None,
        read: Callable[[HttpReply], Any],
        get_version: Callable[[], PolicyVersion] = _no_version,
    ) -> Any:
        """Send a POST, or a GET without a body, and return what `read` makes of the reply.

        The request is retried after a transient failure, also if `read` raises `TransientError`.
        """
        return await with_retries(partial(self._attempt, url, body, read, get_version), self.backoff)

    def with_limits(self, *, timeout: float, backoff: Backoff) -> "Client":
        """A client to the same server, with its own connections and at most this time-out and number of retries."""
        retries = min(backoff.retries, self.backoff.retries)
        return replace(
            self,
            max_in_flight=1,
            timeout=min(timeout, self.timeout),
            backoff=msgspec.structs.replace(backoff, retries=retries),
        )

    async def close(self) -> None:
        """Close the connections of this event loop, and those of closed loops."""
        for loop in self._loops():
            if loop is asyncio.get_running_loop() or loop.is_closed():
                await self._close_session(loop)

    async def _attempt(
        self,
        url: str,
        body: bytes | None,
        read: Callable[[HttpReply], Any],
        get_version: Callable[[], PolicyVersion],
    ) -> Any:
        key = self.key.read()
        try:
            return read(await self._send(url, body, get_version, key))
        except PolicyError as error:  # its text is recorded, wherever it comes from
            error.args = (redact_key_in_text(str(error), key),)
            if error.raw is not None:
                error.raw = redact_key_in_text(error.raw, key)
            raise

    async def _send(
        self, url: str, body: bytes | None, get_version: Callable[[], PolicyVersion], key: str | None
    ) -> HttpReply:
        session = self._sessions.get(asyncio.get_running_loop()) or await self._open_session()
        async with session.request_slots:
            version = get_version()
            received: list[bytes] = []
            try:
                status, headers = await self._exchange(session, url, body, key, received)
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                # Without its cause, whose text may be headers that the server echoed.
                raise self._connection_error(error, b"".join(received), key) from None
        reply = redact_key(b"".join(received), key)
        if 200 <= status < 300:
            if reply == WITHHELD:
                raise PolicyError(f"Expected a reply from {self.where} without the API key, got one that repeats it.")
            return HttpReply(reply, version)
        location = headers.get("Location")
        if location is not None and redact_key_in_text(unquote(location), key) != unquote(location):
            location = None  # host names become lower case, so the key could not be redacted from it later
        failure = error_from_status(status, reply, where=self.where, key=self.key, location=location)
        if isinstance(failure, TransientError):
            failure.retry_after = parse_retry_after(headers.get("Retry-After"))
        raise failure

    async def _exchange(
        self, session: "_LoopSession", url: str, body: bytes | None, key: str | None, received: list[bytes]
    ) -> tuple[int, Any]:
        """Send, and append the reply to `received` in chunks, so that a failure leaves those before it."""
        async with session.http.request(
            "GET" if body is None else "POST",
            url,
            data=body,
            headers=session.headers(key),
            allow_redirects=False,  # the key is for this server only
        ) as response:
            size = 0
            while not response.content.at_eof():
                chunk = await response.content.readany()
                size += len(chunk)
                received.append(chunk)
                if size > MAX_REPLY_BYTES:
                    raise self._too_long(received, key)
            return response.status, response.headers

    def _too_long(self, received: list[bytes], key: str | None) -> PolicyError:
        error = PolicyError(f"Expected at most {MAX_REPLY_BYTES:,} bytes from {self.where}, got more: set max_tokens.")
        beginning = redact_key(b"".join(received)[: 2 * _MAX_RAW_BYTES], key, is_cut=True)
        error.raw = beginning[:_MAX_RAW_BYTES].decode("utf-8", "replace")
        return error

    def _connection_error(self, error: Exception, received: bytes, key: str | None) -> PolicyError:
        """The error of a failed connection, transient if a retry may help, with the bytes received before it."""
        reason = type(error).__name__
        if isinstance(error, OSError | aiohttp.InvalidURL):  # the texts of others may quote headers
            reason = f"{reason}: {error}".removesuffix(": ")
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            reason = f"no complete reply within {self.timeout:g} s"
        kind = PolicyError if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL) else TransientError
        failure = kind(f"Expected an answer from {self.where}, got {reason}")
        if received:
            failure.raw = redact_key(received, key, is_cut=True).decode("utf-8", "replace")
        return failure

    async def _open_session(self) -> "_LoopSession":
        session = self._sessions[asyncio.get_running_loop()] = _LoopSession(self.max_in_flight, self.timeout)
        for loop in self._loops():  # after the assignment: during the await, other tasks of this loop need the session
            if loop.is_closed():
                await self._close_session(loop)
        return session

    async def _close_session(self, loop: asyncio.AbstractEventLoop) -> None:
        if (session := self._sessions.pop(loop, None)) is not None:
            await session.http.close()

    def _loops(self) -> list[asyncio.AbstractEventLoop]:
        """A snapshot of the loops with a session, because other threads have loops too."""
        return [loop for reference in self._sessions.keyrefs() if (loop := reference()) is not None]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sessions": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._sessions = WeakKeyDictionary()


class _LoopSession:
    """The HTTP session and request slots of one event loop."""

    def __init__(self, max_in_flight: int, timeout: float) -> None:
        self.request_slots = asyncio.Semaphore(max_in_flight)
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS),
            trust_env=False,  # a proxy or a .netrc of the environment must not get the key
            skip_auto_headers=("User-Agent",),
        )
        self._headers: tuple[str | None, dict[str, str]] | None = None

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers, cached for one key."""
        if self._headers is None or self._headers[0] != key:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip, deflate"}
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            self._headers = (key, headers)
        return self._headers[1]
