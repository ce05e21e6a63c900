"""The dialects in which servers return token ids and log-probabilities: detects them and parses the tokens.

Nothing is guessed: tokens that do not match the reply are left out, with the reason.
"""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from rolltrace.errors import PolicyError
from rolltrace.policies.endpoint.backoff import Backoff, TransientError
from rolltrace.policies.endpoint.chat_reply import ChatReply
from rolltrace.policies.endpoint.http_client import Client, HttpReply
from rolltrace.policies.policy import Completion
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.tokens import Tokens

PostJson = Callable[[str, Any], Awaitable[Any]]
"""Posts JSON to a path outside the OpenAI API, and returns the JSON of the reply."""


class Dialect(StrEnum):
    """The extensions of the OpenAI API that a server has."""

    AUTO = "auto"
    """Detect them from the server's list of models."""
    OPENAI = "openai"
    """No extensions, so token ids are not requested."""
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"


TOKEN_REQUEST_FIELDS: dict[Dialect, dict[str, Any]] = {
    Dialect.LLAMA_CPP: {"logprobs": True, "top_logprobs": 1, "return_tokens": True, "verbose": True},
    Dialect.VLLM: {"logprobs": True, "top_logprobs": 0, "return_token_ids": True},
}
"""Request fields that ask for tokens, with as few alternatives as possible: llama.cpp sends at least one."""

_OWNERS = {"llamacpp": Dialect.LLAMA_CPP, "vllm": Dialect.VLLM}
_PROBE_BACKOFF = Backoff(retries=1, max_wait=5.0)
_PROBE_SECONDS = 30.0
"""Time-out of the list of models; requests wait for it."""
REPROBE_SECONDS = 60.0
"""Seconds after a transient failure before the server is probed again."""
_MAX_IDS = 2**31
_HIGHEST_LOGPROB = 1e-3
"""Rounding may put the log-probability of a certain token slightly above 0."""


class TokensUnavailableError(Exception):
    """The tokens of an answer cannot be recorded; the message says why."""


class TokenLogprob(msgspec.Struct):
    """One token of `logprobs.content`."""

    token: str = ""
    logprob: float | None = None
    octets: list[int] | None = msgspec.field(default=None, name="bytes")
    id: int | None = None

    def data(self) -> bytes:
        """The bytes of its text, which may be part of a character."""
        return self.token.encode("utf-8", "replace") if self.octets is None else bytes(self.octets)


class _Logprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


_Decoder = getincrementaldecoder("utf-8")
_decode_logprobs = msgspec.json.Decoder(_Logprobs | None).decode


def detect_dialect(models: Any) -> Dialect:
    """The dialect of a server by its list of models."""
    try:
        return _OWNERS.get(models["data"][0]["owned_by"], Dialect.OPENAI)
    except (LookupError, TypeError):
        return Dialect.OPENAI


class DialectProbe:
    """Detects a server's dialect from its list of models, with one request for all callers."""

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self.reason = "the server returns no token ids in a known dialect"
        """Why token ids are unavailable, if they are."""
        # Its own connections, so that it does not wait for completions.
        self._client = client.with_limits(timeout=_PROBE_SECONDS, backoff=_PROBE_BACKOFF)
        self._known = dialect
        self._reset()

    async def dialect(self, url: str) -> Dialect:
        """The server's dialect, or `OPENAI` while it is not known."""
        if self._known is not Dialect.AUTO:
            return self._known
        loop = asyncio.get_running_loop()
        probe = self._probes.get(loop)
        if probe is None:
            if loop.time() < self._next_probe_at:
                return Dialect.OPENAI
            probe = self._probes[loop] = loop.create_task(self._probe(url))
        await asyncio.wait([probe])  # a caller that is cancelled does not cancel it for others
        return Dialect.OPENAI if probe.cancelled() else probe.result()

    async def close(self) -> None:
        """Cancel the probe of this event loop."""
        if (probe := self._probes.get(asyncio.get_running_loop())) is not None:
            probe.cancel()
            await asyncio.wait([probe])

    async def _probe(self, url: str) -> Dialect:
        loop = asyncio.get_running_loop()
        try:
            self._known = detect_dialect(await self._client.request(url, None, _read_models))
        except PolicyError as error:
            self.reason = f"the server does not list its models: {error}"
            if isinstance(error.__cause__, TransientError):
                self._next_probe_at = loop.time() + REPROBE_SECONDS
                return Dialect.OPENAI
            self._known = Dialect.OPENAI
        finally:
            try:
                await self._client.close()
            finally:
                self._probes.pop(loop, None)
        return self._known

    def _reset(self) -> None:
        self._probes: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Dialect]] = WeakKeyDictionary()
        self._next_probe_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_probes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()  # another process has another clock


def _read_models(reply: HttpReply) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"Expected JSON, got something else: {error}") from None


async def read_tokens(
    dialect: Dialect, reply: ChatReply, completion: Completion, stop: tuple[str, ...], post: PostJson
) -> tuple[Tokens, str]:
    """The tokens of a reply, and their text without special tokens.

    Raises `TokensUnavailableError` if they do not match the reply.
    """
    try:
        if dialect is Dialect.LLAMA_CPP:
            return await _from_llama_cpp(reply, completion, post)
        return _from_vllm(reply, completion, stop)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TokensUnavailableError(f"the tokens cannot be parsed: {error}") from error


# llama.cpp: the ids and the prompt's text are in `__verbose`; the prompt's ids need another request


async def _from_llama_cpp(reply: ChatReply, completion: Completion, post: PostJson) -> tuple[Tokens, str]:
    verbose = reply.verbose
    if verbose is None or not verbose.prompt:
        raise TokensUnavailableError("no `__verbose` in the reply")
    if not verbose.tokens:
        raise TokensUnavailableError("no ids of the answer")
    ids = verbose.tokens
    entries = _entries(reply)
    char_lengths = None
    if [entry.id for entry in entries] == ids:
        text, char_lengths = join_token_bytes([entry.data() for entry in entries])
    else:
        # Of the tokens of one character only the last has an entry, and tokens of a stop sequence have no entry.
        entries = []
        visible = ids[:-1] if verbose.stop_type == "eos" else ids
        text = (await post("/detokenize", {"tokens": visible}))["content"] if visible else ""
    has_stop_sequence = verbose.stop_type == "word"
    if not (text.startswith(verbose.content) if has_stop_sequence else text == verbose.content):
        raise TokensUnavailableError("the text of the tokens is not what the model wrote")
    prompt = await post("/tokenize", {"content": verbose.prompt, "add_special": True, "parse_special": True})
    return _tokens(prompt["tokens"], ids, entries, completion, char_lengths), text


# vLLM: everything is in the reply


def _from_vllm(reply: ChatReply, completion: Completion, stop: tuple[str, ...]) -> tuple[Tokens, str]:
    ids, prompt = reply.choice.token_ids, reply.prompt_token_ids
    if not ids or not prompt:
        raise TokensUnavailableError("no ids in the reply")
    entries = _entries(reply)
    if len(entries) != len(ids):
        raise TokensUnavailableError(f"{len(ids)} ids and {len(entries)} log-probabilities")
    pieces = [entry.data() for entry in entries]
    # The end-of-turn token is sampled, but its text is not part of the answer.
    has_end_token = completion.termination in (Termination.EOS, Termination.TOOL_CALLS)
    for visible in ([*pieces[:-1], b""], pieces) if has_end_token else (pieces,):
        text, char_lengths = join_token_bytes(visible)
        if _matches_answer(text, completion, stop):
            return _tokens(prompt, ids, entries, completion, char_lengths), text
    raise TokensUnavailableError("the text of the tokens is not the text of the answer")


def _matches_answer(text: str, completion: Completion, stop: tuple[str, ...]) -> bool:
    """Whether the server can have parsed the text of the tokens to this answer."""
    message = completion.message
    if text == message.content:
        return True
    if completion.termination is Termination.STOP_SEQUENCE and not message.reasoning:
        return text.startswith(message.content) and text[len(message.content) :].startswith(stop or ("",))
    if message.reasoning or message.tool_calls:
        parts = [message.content, message.reasoning or "", *(call.name for call in message.tool_calls)]
        return all(part.strip() in text for part in parts)
    return text.strip() == message.content.strip()


# Both


def _entries(reply: ChatReply) -> list[TokenLogprob]:
    logprobs = _decode_logprobs(reply.choice.logprobs)
    return (logprobs.content or []) if logprobs is not None else []


def join_token_bytes(pieces: Sequence[bytes]) -> tuple[str, tuple[int, ...] | None]:
    """The text of tokens, and the number of characters of each; a split character counts for its last token.

    The numbers are None if the bytes are not UTF-8.
    """
    text = b"".join(pieces).decode("utf-8", "replace")
    decoder = _Decoder()
    try:
        char_lengths = [len(decoder.decode(piece)) for piece in pieces]
    except UnicodeDecodeError:
        return text, None
    unfinished, _ = decoder.getstate()
    if unfinished:  # an incomplete character at the end, which becomes one U+FFFD
        last = max(number for number, piece in enumerate(pieces) if piece)
        char_lengths[last] += 1
    return text, tuple(char_lengths) if sum(char_lengths) == len(text) else None


def _tokens(
    prompt: Any, ids: Any, entries: list[TokenLogprob], completion: Completion, char_lengths: tuple[int, ...] | None
) -> Tokens:
    """The tokens, once the ids match the server's usage and the log-probabilities are valid."""
    for owner, row in (("prompt", prompt), ("answer", ids)):
        if not isinstance(row, list) or not all(type(token) is int and 0 <= token < _MAX_IDS for token in row):
            raise TokensUnavailableError(f"the {owner} has invalid ids")
    usage = completion.usage
    if usage is None:
        raise TokensUnavailableError("no usage to compare the ids with")
    if (len(prompt), len(ids)) != (usage.prompt_tokens, usage.completion_tokens):
        raise TokensUnavailableError(
            f"{len(prompt)} and {len(ids)} ids, but the server counted {usage.prompt_tokens} and "
            f"{usage.completion_tokens}"
        )
    logprobs = tuple(entry.logprob for entry in entries)
    if not all(logprob is None or logprob <= _HIGHEST_LOGPROB for logprob in logprobs):  # False for NaN too
        raise TokensUnavailableError("invalid log-probabilities: above 0 or NaN")
    is_complete = bool(entries) and None not in logprobs
    return Tokens(tuple(prompt), tuple(ids), logprobs if is_complete else None, char_lengths=char_lengths)  # type: ignore[arg-type]
