"""How a server gives token ids and log-probabilities: which dialect it has, and reading them from a reply.

llama.cpp and vLLM differ. Nothing is guessed: tokens that do not match the reply are left out, with the reason.
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
from rolltrace.trace.rollout import Tokens
from rolltrace.trace.stop_reasons import Termination

Ask = Callable[[str, Any], Awaitable[Any]]
"""Posts JSON to a path outside the OpenAI API, and returns the JSON of the reply."""


class Dialect(StrEnum):
    """What a server understands in addition to the OpenAI API."""

    AUTO = "auto"
    """To be detected from the server's list of models."""
    OPENAI = "openai"
    """Nothing, so token ids are not requested."""
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
"""How long the list of models may take; requests wait for it."""
REPROBE_SECONDS = 60.0
"""How long after a transient failure the server is not probed again."""
_MAX_IDS = 2**31
_HIGHEST_LOGPROB = 1e-3
"""The log-probability of a certain token may be rounded above 0."""


class TokensUnavailableError(Exception):
    """Why an answer's tokens cannot be recorded."""


class TokenLogprob(msgspec.Struct):
    """One token of `logprobs.content`."""

    token: str = ""
    logprob: float | None = None
    octets: list[int] | None = msgspec.field(default=None, name="bytes")
    id: int | None = None

    def data(self) -> bytes:
        """Its text, which may be a part of a character."""
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
    """Detects a server's dialect from its list of models: one request for all callers, and one result for good."""

    def __init__(self, client: Client, dialect: Dialect) -> None:
        self.reason = "the server gives no token ids in a known dialect"
        """Why token ids are unavailable, if they are."""
        # Its own connections, so that it does not wait for completions.
        self._client = client.with_limits(timeout=_PROBE_SECONDS, patience=_PROBE_BACKOFF)
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
            self._known = detect_dialect(await self._client.request(url, None, _read_models, _nothing))
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


def _nothing() -> None:
    return


def _read_models(reply: HttpReply[None]) -> Any:
    try:
        return msgspec.json.decode(reply.body)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"Expected JSON, got something else: {error}") from None


async def read_tokens(
    dialect: Dialect, reply: ChatReply, completion: Completion, stop: tuple[str, ...], ask: Ask
) -> tuple[Tokens, str]:
    """The tokens of a reply and their text without special ones.

    Raises `TokensUnavailableError` if they do not match the reply.
    """
    try:
        if dialect is Dialect.LLAMA_CPP:
            return await _from_llama_cpp(reply, completion, ask)
        return _from_vllm(reply, completion, stop)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TokensUnavailableError(f"tokens that cannot be read: {error}") from error


# llama.cpp: ids and the prompt's text are in `__verbose`; the prompt's ids are asked for


async def _from_llama_cpp(reply: ChatReply, completion: Completion, ask: Ask) -> tuple[Tokens, str]:
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
        # Of a character that takes several tokens only the last has an entry, and those of a stop sequence have none.
        entries = []
        visible = ids[:-1] if verbose.stop_type == "eos" else ids
        text = (await ask("/detokenize", {"tokens": visible}))["content"] if visible else ""
    if not _holds(text, verbose.content, whole=verbose.stop_type != "word"):
        raise TokensUnavailableError("the text of the tokens is not what the model wrote")
    found = await ask("/tokenize", {"content": verbose.prompt, "add_special": True, "parse_special": True})
    return _added_up(found["tokens"], ids, entries, completion, char_lengths), text


def _holds(text: str, written: str, *, whole: bool) -> bool:
    return text == written if whole else text.startswith(written)


# vLLM: all is in the reply


def _from_vllm(reply: ChatReply, completion: Completion, stop: tuple[str, ...]) -> tuple[Tokens, str]:
    ids, prompt = reply.choice.token_ids, reply.prompt_token_ids
    if not ids or not prompt:
        raise TokensUnavailableError("no ids in the reply")
    entries = _entries(reply)
    if len(entries) != len(ids):
        raise TokensUnavailableError(f"{len(ids)} ids and {len(entries)} log-probabilities")
    pieces = [entry.data() for entry in entries]
    # The token that ends a turn is sampled, and has a text that no reader sees.
    ends_itself = completion.termination in (Termination.EOS, Termination.TOOL_CALLS)
    for seen in ([*pieces[:-1], b""], pieces) if ends_itself else (pieces,):
        text, char_lengths = join_token_bytes(seen)
        if _accounts_for(text, completion, stop):
            return _added_up(prompt, ids, entries, completion, char_lengths), text
    raise TokensUnavailableError("the text of the tokens is not the text of the answer")


def _accounts_for(text: str, completion: Completion, stop: tuple[str, ...]) -> bool:
    """Whether what the model wrote can have become this answer."""
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
    found = _decode_logprobs(reply.choice.logprobs)
    return (found.content or []) if found is not None else []


def join_token_bytes(pieces: Sequence[bytes]) -> tuple[str, tuple[int, ...] | None]:
    """The text of tokens, and how many characters each gave; a character in parts is counted with the last.

    Where bytes are no text, nobody can say which token gave what stands for them.
    """
    text = b"".join(pieces).decode("utf-8", "replace")
    decoder = _Decoder()
    try:
        char_lengths = [len(decoder.decode(piece)) for piece in pieces]
    except UnicodeDecodeError:
        return text, None
    unfinished, _ = decoder.getstate()
    if unfinished:  # a character of which the end was never written: one sign stands for it
        last = max(place for place, piece in enumerate(pieces) if piece)
        char_lengths[last] += 1
    return text, tuple(char_lengths) if sum(char_lengths) == len(text) else None


def _added_up(
    prompt: Any, ids: Any, entries: list[TokenLogprob], completion: Completion, char_lengths: tuple[int, ...] | None
) -> Tokens:
    for what, row in (("prompt", prompt), ("answer", ids)):
        if not isinstance(row, list) or not all(type(token) is int and 0 <= token < _MAX_IDS for token in row):
            raise TokensUnavailableError(f"ids of the {what} that are none")
    usage = completion.usage
    if usage is None:
        raise TokensUnavailableError("no usage to count the ids against")
    if (len(prompt), len(ids)) != (usage.prompt_tokens, usage.completion_tokens):
        raise TokensUnavailableError(
            f"{len(prompt)} and {len(ids)} ids, where the server counted {usage.prompt_tokens} and "
            f"{usage.completion_tokens}"
        )
    logprobs = tuple(entry.logprob for entry in entries)
    if not all(logprob is None or logprob <= _HIGHEST_LOGPROB for logprob in logprobs):  # NaN is not, either
        raise TokensUnavailableError("log-probabilities that are none: above 0, or no number")
    known = bool(entries) and None not in logprobs
    return Tokens(tuple(prompt), tuple(ids), logprobs if known else None, char_lengths=char_lengths)  # type: ignore[arg-type]
