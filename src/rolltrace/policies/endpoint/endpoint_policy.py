"""`openai:MODEL@BASE_URL`: a policy that asks any server that speaks the OpenAI chat API."""

import asyncio
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.endpoint.api_key import ApiKey, EnvironmentApiKey, redact_key_in_text
from rolltrace.policies.endpoint.backoff import Backoff, Sleep, TransientError
from rolltrace.policies.endpoint.base_url import normalize_base_url, server_root, split_spec
from rolltrace.policies.endpoint.chat_reply import ChatReply, read_completion, read_reply
from rolltrace.policies.endpoint.chat_request import request_body, tool_call_ids, validate_extra
from rolltrace.policies.endpoint.dialects import (
    TOKEN_REQUEST_FIELDS,
    Dialect,
    DialectProbe,
    TokensUnavailableError,
    read_tokens,
)
from rolltrace.policies.endpoint.http_client import Client, HttpReply
from rolltrace.policies.policy import Completion, Request
from rolltrace.terminal_text import escape_line

KEY_VARIABLE = "OPENAI_API_KEY"
MAX_IN_FLIGHT = 512
TIMEOUT = 600.0
_OTHER_FILES = 256
"""How many open files are left to the rest of the process."""
_NUMBER = re.compile(r"\d+")
_MAX_REASONS = 100
_MAX_REASON_CHARS = 1000
_log = logging.getLogger(__name__)


class EndpointPolicy:
    """A model on a server.

    Its `version` may be set while it is used: each completion has the one that was set when its request was sent.
    Tool calls that no server would take back, because the model broke them, are mended when they are sent again; the
    record has them as the model wrote them. `close()`, or the end of `async with policy:`, gives back the connections
    of the event loop; the policy may be used again.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        name: str | None = None,
        version: int | str | None = None,
        context_length: int | None = None,
        max_in_flight: int | None = None,
        timeout: float = TIMEOUT,
        retries: int = Backoff().retries,
        key_variable: str = KEY_VARIABLE,
        dialect: str = Dialect.AUTO,
        max_tokens_field: str = "max_tokens",
        send_reasoning: bool = True,
        extra: Mapping[str, Any] | None = None,
        key: ApiKey | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """`timeout` is for one attempt, in seconds; the key is in the environment variable that `key_variable` names.

        `dialect` says how the server gives token ids: `llama.cpp`, `vllm`, `openai` for none, or `auto`. `extra` are
        further fields of the request; null takes one away. `max_tokens_field` is `max_completion_tokens` for some.
        `max_in_flight` is 512 unless it is given, or fewer where the process may open few files.
        A `key` that is not in the environment goes before one that is.
        """
        if not model:
            raise InputError("Expected the name of a model, got none.")
        if max_in_flight is None:
            max_in_flight = default_max_in_flight()
        if max_in_flight < 1 or not 0 < timeout < math.inf or retries < 0:
            raise InputError(
                "Expected max_in_flight of at least 1, a timeout above 0 with an end, and retries of at least 0, "
                f"got {max_in_flight}, {timeout} and {retries}."
            )
        if dialect not in list(Dialect):
            raise InputError(f"Expected the dialect to be one of {', '.join(Dialect)}, got {dialect!r}.")
        self.model = model
        self.base_url = normalize_base_url(base_url)
        self.name = name or model
        self.version = version
        self.context_length = context_length
        self.missing_token_reasons: Counter[str] = Counter()
        """Why tokens that were wanted could not be had, and how often."""
        self._reasons: dict[str, str] = {}
        """Each reason as it was first given, by what it is without its numbers."""
        self._extra = validate_extra(extra, max_tokens_field)
        self._max_tokens_field = max_tokens_field
        self._send_reasoning = send_reasoning
        self._key = key or EnvironmentApiKey(key_variable)
        self._where = f"{model} at {self.base_url}"
        self._client = Client(
            where=self._where,
            key=self._key,
            max_in_flight=max_in_flight,
            timeout=timeout,
            patience=Backoff(retries),
            sleep=sleep,
        )
        self._probe = DialectProbe(self._client, Dialect(dialect))

    def __repr__(self) -> str:
        return f"EndpointPolicy({self.model!r}, {self.base_url!r})"

    def count_tokens(self, request: Request) -> int | None:
        """None: only the server knows, and says so where a prompt is too long."""
        return None

    async def complete(self, request: Request) -> Completion:
        """Ask the server, again where that may help."""
        dialect = Dialect.OPENAI
        if request.include_tokens:
            dialect = await self._probe.dialect(f"{self.base_url}/models")
        body = request_body(
            request,
            self.model,
            max_tokens_field=self._max_tokens_field,
            send_reasoning=self._send_reasoning,
            extra={**TOKEN_REQUEST_FIELDS.get(dialect, {}), **self._extra},
        )
        url = f"{self.base_url}/chat/completions"
        chat, completion = await self._client.request(url, body, partial(self._read, request), self._current_version)
        if request.include_tokens:
            return await self._with_tokens(dialect, chat, completion, request.sampling.stop)
        return completion  # type: ignore[no-any-return]

    def _current_version(self) -> int | str | None:
        return self.version

    def _read(self, request: Request, reply: HttpReply[int | str | None]) -> tuple[ChatReply, Completion]:
        chat = read_reply(reply.body, where=self._where, key=self._key)
        place, taken = len(request.messages), tool_call_ids(request.messages)
        return chat, self._safe(read_completion(chat, place=place, version=reply.sent_version, taken=taken))

    def _safe(self, completion: Completion) -> Completion:
        """The completion without a key that came in several parts."""
        content = completion.message.content
        safe = redact_key_in_text(content, self._key.read())
        return completion if safe == content else replace(completion, message=replace(completion.message, content=safe))

    async def close(self) -> None:
        """Close the connections that this event loop has open."""
        await self._probe.close()
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Tokens

    async def _with_tokens(
        self, dialect: Dialect, chat: ChatReply, completion: Completion, stop: tuple[str, ...]
    ) -> Completion:
        if dialect not in TOKEN_REQUEST_FIELDS:
            self._miss(self._probe.reason)
            return completion
        try:
            tokens, text = await read_tokens(dialect, chat, completion, stop, self._ask)
        except (TokensUnavailableError, PolicyError) as error:
            self._miss(str(error))
            return completion
        if tokens.logprobs is None:
            self._miss("ids only: not every token has a log-probability")
        if text == completion.message.content:
            return replace(completion, tokens=tokens, raw=None)
        raw = redact_key_in_text(text, self._key.read())
        if raw != text:  # it can no longer be cut up
            tokens = replace(tokens, char_lengths=None)
        return replace(completion, tokens=tokens, raw=raw)

    async def _ask(self, path: str, fields: Any) -> Any:
        return await self._client.request(
            server_root(self.base_url) + path, msgspec.json.encode(fields), _read_json, _nothing
        )

    def _miss(self, reason: str) -> None:
        kind = reason if reason in self._reasons else _NUMBER.sub("0", reason)
        if kind not in self._reasons:
            if len(self._reasons) >= _MAX_REASONS:
                kind = reason = "other reasons"
            self._reasons.setdefault(kind, escape_line(reason[:_MAX_REASON_CHARS]))
        known = self._reasons[kind]
        self.missing_token_reasons[known] += 1
        if self.missing_token_reasons[known] == 1:
            _log.warning("Tokens of %s: %s", self._where, known)


def endpoint_policy(
    address: str,
    *,
    name: str | None = None,
    version: str | None = None,
    context_length: int | None = None,
    max_in_flight: int | None = None,
    timeout: float = TIMEOUT,
    retries: int = Backoff().retries,
    key_variable: str = KEY_VARIABLE,
    dialect: str = Dialect.AUTO,
    max_tokens_field: str = "max_tokens",
    send_reasoning: bool = True,
    extra: dict[str, Any] | None = None,
) -> EndpointPolicy:
    """The policy of `MODEL@BASE_URL`, with arguments as a command line gives them."""
    model, base_url = split_spec(address)
    return EndpointPolicy(
        model,
        base_url,
        name=name,
        version=version,
        context_length=context_length,
        max_in_flight=max_in_flight,
        timeout=timeout,
        retries=retries,
        key_variable=key_variable,
        dialect=dialect,
        max_tokens_field=max_tokens_field,
        send_reasoning=send_reasoning,
        extra=extra,
    )


def default_max_in_flight() -> int:
    """So many that two policies leave the process files to write to, where it may open few."""
    try:
        import resource  # not every system has it
    except ImportError:
        return MAX_IN_FLIGHT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_IN_FLIGHT
    return max(1, min(MAX_IN_FLIGHT, (soft - _OTHER_FILES) // 2))


def _nothing() -> None:
    return


def _read_json(reply: HttpReply[None]) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (ValueError, RecursionError) as error:
        raise TransientError(f"Expected JSON from the server, got something else: {error}") from error
