"""A chat server on loopback that misbehaves as each test configures it, one behaviour per request."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from aiohttp import web

from stage import skip_time

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Runs one behaviour per request, repeats the last one, and keeps every request that it received.

    Requests to other paths get the entry of `others` as JSON or as a response, or 404.
    """

    def __init__(self, *behaviours: Behaviour, others: dict[str, Any] | None = None) -> None:
        self.behaviours = behaviours
        self.others = others or {}
        self.sent: list[dict[str, Any]] = []
        """The bodies of the chat requests."""
        self.headers: list[dict[str, str]] = []
        self.asked: list[tuple[str, Any]] = []
        """The other paths, with what was posted to them."""
        self.in_flight = 0
        self.most_in_flight = 0
        self.reached = asyncio.Event()
        """Set when a chat request has come."""
        self.left = asyncio.Event()
        """Set when a client went away before it had its answer."""
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        if not request.path.endswith("/chat/completions"):
            self.asked.append((request.path, body))
            answer = self.others.get(request.path)
            if answer is None:
                return web.json_response({"error": {"message": "no such path"}}, status=404)
            found = answer(body) if callable(answer) else answer
            if asyncio.iscoroutine(found):
                found = await found
            return found if isinstance(found, web.StreamResponse) else web.json_response(found)
        self.sent.append(body)
        self.reached.set()
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.behaviours[min(len(self.sent), len(self.behaviours)) - 1](request)
        except asyncio.CancelledError:
            self.left.set()
            raise
        finally:
            self.in_flight -= 1


def completion(
    content: Any = "Hello.", *, finish_reason: Any = "stop", usage: Any = (7, 3), choice: Any = None, **message: Any
) -> dict[str, Any]:
    """A chat completion as a well-behaved server gives it."""
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]} if usage else None
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content, **message},
                "finish_reason": finish_reason,
                **(choice or {}),
            }
        ],
        "usage": counts,
    }


def call(name: str = "look", arguments: Any = '{"at": "wall"}', **fields: Any) -> dict[str, Any]:
    """A tool call as servers write it."""
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def replies(
    body: Any, status: int = 200, *, content_type: str = "application/json", headers: dict[str, str] | None = None
) -> Behaviour:
    """Sends this body: text and bytes as they are, anything else as JSON."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()

    async def reply(request: web.Request) -> web.StreamResponse:
        return web.Response(body=data, status=status, content_type=content_type, headers=headers)

    return reply


def says(content: Any = "Hello.", **fields: Any) -> Behaviour:
    """Answers properly."""
    return replies(completion(content, **fields))


def calls(*tool_calls: Any, **fields: Any) -> Behaviour:
    """Calls tools."""
    return says(None, finish_reason="tool_calls", tool_calls=list(tool_calls), **fields)


def hangs(seconds: float = 3600.0) -> Behaviour:
    """Sends no byte while this much (fake) time passes."""

    async def hang(request: web.Request) -> web.StreamResponse:
        skip_time(seconds)
        await asyncio.Event().wait()
        raise AssertionError

    return hang


def waits() -> Behaviour:
    """Sends no byte, and no time passes."""
    return hangs(0.0)


def resets(after: bytes | None = None) -> Behaviour:
    """Breaks the connection: before anything is sent, or after these bytes of a longer body."""

    async def reset(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100000"})
        if after is not None:
            await response.prepare(request)
            await response.write(after)
            await asyncio.sleep(0)
        assert request.transport is not None
        request.transport.abort()
        return response

    return reset


def drips(pieces: Iterable[bytes], seconds: float = 0.0) -> Behaviour:
    """Sends the body in chunks, and lets this much time pass before each."""

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
            skip_time(seconds)
        await response.write_eof()
        return response

    return drip


def gzipped(body: Any) -> Behaviour:
    """Sends a compressed body."""

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.json_response(body)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    return reply


def echoes_headers(status: int) -> Behaviour:
    """Echoes the request headers in its reply, as careless gateways do."""

    async def echo(request: web.Request) -> web.StreamResponse:
        headers = dict(request.headers)
        if status == 200:
            return web.json_response(completion(f"You sent {headers}.", other=headers))
        return web.json_response({"error": {"message": f"bad headers: {headers}", "headers": headers}}, status=status)

    return echo
