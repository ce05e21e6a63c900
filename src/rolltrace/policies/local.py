"""`local` and `local:FILE.gguf`: a policy whose model runs on this machine, in a separate llama.cpp process."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.endpoint.api_key import InMemoryApiKey
from rolltrace.policies.endpoint.chat_request import validate_extra
from rolltrace.policies.endpoint.dialects import Dialect
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.llama.llama_server import SERVERS, AnyServer
from rolltrace.policies.llama.server_settings import (
    CONTEXT_LENGTH,
    MAX_SERVER_REQUESTS,
    SLOTS,
    ServerSettings,
    default_threads,
)
from rolltrace.policies.llama.weights import NAME, SMOLLM2_TEMPLATE, default_weights, require_llama, validate_weights
from rolltrace.policies.policy import Completion, Request

_TIMEOUT = 3600.0
"""Time-out of one answer in seconds, including the wait for a slot."""
_RETRIES = 1
_NAME_FOR_SERVER = "local"


class LocalPolicy:
    """Sends requests to a llama.cpp server. The first request starts it, and policies with equal settings share it.

    Samples depend only on the request's seed as long as one slot works at a time:
    with several answers in a batch, or a cached prompt, the last digits of the logits differ, which may change a word.

    `close()`, or the end of `async with policy:`, closes the connections of the event loop; the policy may be used
    again, and the server runs until the process ends.
    """

    def __init__(
        self,
        settings: ServerSettings,
        *,
        name: str,
        version: int | str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        """The version of the weights for the record. It may be set while the policy is in use."""
        self.context_length: int | None = settings.context_length
        self.settings = settings
        """The settings of its server."""
        self._extra = validate_extra(extra)
        self._server: AnyServer | None = None
        self._endpoint: EndpointPolicy | None = None

    def __repr__(self) -> str:
        return f"LocalPolicy({self.settings.weights!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None, "_endpoint": None}

    def count_tokens(self, request: Request) -> int | None:
        """Return None: the server reports prompts that are too long."""
        return None

    async def complete(self, request: Request) -> Completion:
        """Send the request; starts the server if needed."""
        server = await self._ready_server()
        try:
            async with server.request_slots.for_this_loop():
                endpoint = await self._endpoint_for(server)
                endpoint.version = self.version
                return await endpoint.complete(request)
        except PolicyError as error:
            if error.raw is not None or (end := await asyncio.to_thread(server.exit_reason)) is None:
                raise
            raise PolicyError(f"The embedded model's process {end} during a request.") from error

    async def close(self) -> None:
        """Close the connections of this event loop. The server keeps running for other policies."""
        if self._endpoint is not None:
            await self._endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _ready_server(self) -> AnyServer:
        try:
            return await asyncio.wrap_future(SERVERS.get(self.settings))
        except PolicyError as error:  # raise a copy: a shared error would collect the tracebacks of all waiters
            raise PolicyError(str(error)) from None

    async def _endpoint_for(self, server: AnyServer) -> EndpointPolicy:
        if self._endpoint is not None and self._server is server:
            return self._endpoint
        previous, self._server = self._endpoint, server
        endpoint = self._endpoint = EndpointPolicy(
            _NAME_FOR_SERVER,
            server.address,
            InMemoryApiKey(server.key),
            name=self.name,
            max_in_flight=MAX_SERVER_REQUESTS,
            timeout=_TIMEOUT,
            retries=_RETRIES,
            dialect=Dialect.LLAMA_CPP,
            extra=self._extra,
        )
        if previous is not None:
            await previous.close()
        return endpoint


def local_policy(
    path: str | None = None,
    *,
    slots: int = SLOTS,
    context_length: int = CONTEXT_LENGTH,
    threads: int | None = None,
    name: str | None = None,
    version: str | None = None,
    extra: dict[str, Any] | None = None,
) -> LocalPolicy:
    """Make the policy of a GGUF file, or of the embedded model.

    It generates `slots` answers at once, each with a context of `context_length` tokens, with `threads` threads.
    `extra` are further fields of each request, for example a `grammar` that the answer has to follow.
    """
    if path is not None and not path.strip():
        raise InputError("Expected a GGUF file after `local:`, got nothing: use local:FILE.gguf, or local alone.")
    require_llama()
    weights = validate_weights(default_weights() if path is None else Path(path))
    settings = ServerSettings(
        str(weights),
        slots,
        context_length,
        default_threads() if threads is None else threads,
        SMOLLM2_TEMPLATE if path is None else None,
    )
    known_as = name or f"local:{NAME if path is None else weights.stem}"
    return LocalPolicy(settings, name=known_as, version=version, extra=extra)
