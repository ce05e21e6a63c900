"""`openai:MODEL@BASE_URL`: a policy for a model on any server with the OpenAI chat API."""

import logging
import math
import re
from collections import Counter
from functools import partial
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.endpoint.api_key import ApiKey, EnvironmentApiKey, redact_key_in_text
from rolltrace.policies.endpoint.backoff import Backoff, TransientError
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
"""Open files that are reserved for the rest of the process."""
_NUMBER = re.compile(r"\d+")
_MAX_REASONS = 100
_MAX_REASON_CHARS = 1000
_log = logging.getLogger(__name__)


class EndpointPolicy:
    """A model on a server.

    Its `version` may be set while it is in use: each completion has the version at the time its request was sent.
    Malformed tool calls are repaired when they are sent back to the server; the record has them as the model wrote
    them. `close()`, or the end of `async with policy:`, closes the connections of the event loop; the policy may be
    used again.
    """

    def __init__(
        self,
        model: str = "",
        base_url: str | None = None,
        key: ApiKey | None = None,
        /,
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
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Without a base URL, `model` is `MODEL@BASE_URL`.

        `timeout` is for one attempt, in seconds. `key_variable` names the environment variable with the API key.
        `key` takes precedence; it cannot be passed by name, because then a specification could contain a key.

        `dialect` says how the server returns token ids: `llama.cpp`, `vllm`, `openai` (not at all) or `auto`. `extra`
        are further fields of the request; null removes a field. Some servers need `max_completion_tokens` as
        `max_tokens_field`. `max_in_flight` is 512 by default, or fewer if the process may open few files.
        """
        if base_url is None:
            model, base_url = split_spec(model)
        if not model:
            raise InputError("Expected the name of a model, got an empty text.")
        if max_in_flight is None:
            max_in_flight = default_max_in_flight()
        if max_in_flight < 1 or not 0 < timeout < math.inf or retries < 0:
            raise InputError(
                "Expected max_in_flight of at least 1, a finite timeout above 0, and retries of at least 0, "
                f"got {max_in_flight}, {timeout} and {retries}."
            )
        if dialect not in list(Dialect):
            raise InputError(f"Expected the dialect to be one of {', '.join(Dialect)}, got {dialect!r}.")
        self.model = model
        self.base_url = normalize_base_url(base_url)
        self.name = name or model
        self.version = version
        self.context_length = context_length
        self.max_in_flight = max_in_flight
        """How many requests an event loop has in flight at most."""
        self.missing_token_reasons: Counter[str] = Counter()
        """How often requested tokens were unavailable, by reason."""
        self._reasons: dict[str, str] = {}
        """The first reason of each kind. Reasons that differ only in numbers are of one kind."""
        self._extra = validate_extra(extra, max_tokens_field)
        self._max_tokens_field = max_tokens_field
        self._send_reasoning = send_reasoning
        self._key = key or EnvironmentApiKey(key_variable)
        self._where = f"{model} at {self.base_url}"
        backoff = Backoff(retries)
        self._client = Client(
            where=self._where, key=self._key, max_in_flight=max_in_flight, timeout=timeout, backoff=backoff
        )
        self._probe = DialectProbe(self._client, Dialect(dialect))

    def __repr__(self) -> str:
        return f"EndpointPolicy({self.model!r}, {self.base_url!r})"

    def count_tokens(self, request: Request) -> int | None:
        """Return None: the server reports prompts that are too long."""
        return None

    async def complete(self, request: Request) -> Completion:
        """Send the request, and retry after transient failures."""
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
        chat, completion = await self._client.request(url, body, partial(self._read, request), lambda: self.version)
        if request.include_tokens:
            return await self._with_tokens(dialect, chat, completion, request.sampling.stop)
        return completion  # type: ignore[no-any-return]

    def _read(self, request: Request, reply: HttpReply) -> tuple[ChatReply, Completion]:
        chat = read_reply(reply.body, where=self._where, key=self._key)
        position, used_ids = len(request.messages), tool_call_ids(request.messages)
        completion = read_completion(chat, position=position, version=reply.sent_version, used_ids=used_ids)
        return chat, self._redact(completion)

    def _redact(self, completion: Completion) -> Completion:
        """The completion without the key, which several parts of the content may make up together."""
        message = completion.message
        redacted = redact_key_in_text(message.content, self._key.read())
        return (
            completion
            if redacted == message.content
            else replace(completion, message=replace(message, content=redacted))
        )

    async def close(self) -> None:
        """Close the connections of this event loop."""
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
            self._count_missing(self._probe.reason)
            return completion
        try:
            tokens, text = await read_tokens(dialect, chat, completion, stop, self._post)
        except (TokensUnavailableError, PolicyError) as error:
            self._count_missing(str(error))
            return completion
        if tokens.logprobs is None:
            self._count_missing("ids only: not every token has a log-probability")
        if text == completion.message.content:
            return replace(completion, tokens=tokens, raw=None)
        raw = redact_key_in_text(text, self._key.read())
        if raw != text:  # the lengths of its tokens no longer match
            tokens = replace(tokens, char_lengths=None)
        return replace(completion, tokens=tokens, raw=raw)

    async def _post(self, path: str, fields: Any) -> Any:
        return await self._client.request(server_root(self.base_url) + path, msgspec.json.encode(fields), _read_json)

    def _count_missing(self, reason: str) -> None:
        kind = reason if reason in self._reasons else _NUMBER.sub("0", reason)
        if kind not in self._reasons:
            if len(self._reasons) >= _MAX_REASONS:
                kind = reason = "other reasons"
            self._reasons.setdefault(kind, escape_line(reason[:_MAX_REASON_CHARS]))
        first = self._reasons[kind]
        self.missing_token_reasons[first] += 1
        if self.missing_token_reasons[first] == 1:
            _log.warning("Tokens of %s: %s", self._where, first)


def default_max_in_flight() -> int:
    """The default, or fewer if the process may open few files: two policies must leave it files to write to."""
    try:
        import resource  # not every system has it
    except ImportError:
        return MAX_IN_FLIGHT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_IN_FLIGHT
    return max(1, min(MAX_IN_FLIGHT, (soft - _OTHER_FILES) // 2))


def _read_json(reply: HttpReply) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (ValueError, RecursionError) as error:
        raise TransientError(f"Expected JSON from the server, got something else: {error}") from error
