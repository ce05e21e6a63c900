"""A real HTTP server on loopback, in a thread of its own, for tests whose client is another process."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """The address of a server that answers every request with what the handler gives; it is gone afterwards."""
    loop = asyncio.new_event_loop()
    ready: threading.Event = threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
        await site.start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await stopping.wait()
        await runner.cleanup()

    stopping = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="loopback")
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{ports[0]}/v1"
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(60)
        loop.close()


def chat(content: str, **fields: object) -> dict[str, object]:
    """A chat completion that says this."""
    message = {"role": "assistant", "content": content, **fields}
    return {
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if fields else "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
