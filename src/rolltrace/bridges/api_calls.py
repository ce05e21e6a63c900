"""Requests to an OpenAI-compatible API and their answers, as turns of a rollout."""

import contextlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import zstandard

from rolltrace.store.recorder import RolloutRecorder
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message
from rolltrace.trace.tokens import Tokens

CHAT, RESPONSES, COMPLETIONS = "/chat/completions", "/responses", "/completions"
_SETTINGS = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "seed", "n", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias", "reasoning", "reasoning_effort", "tool_choice",
    "response_format", "text",
)  # fmt: skip
"""The fields of a request that say how to sample."""
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_NOT_JOINED = ("role", "id", "type", "name", "finish_reason", "stop_reason")
"""Texts of a stream that come whole, perhaps more than once."""
_FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class ApiRequest(NamedTuple):
    """One request for an answer of the policy; later changes to what it was made from do not change it."""

    prompt: tuple[Message, ...]
    notes: tuple[Note, ...]
    """What could not be read of the prompt."""
    tools: Sequence[Any]
    sampling: dict[str, Any]
    extra: dict[str, Any]


def parse_request(path: str, body: Any) -> ApiRequest | None:
    """The request of this path and JSON body; None if it is not one that a policy answers."""
    kind = next((kind for kind in (CHAT, RESPONSES, COMPLETIONS) if path.rstrip("/").endswith(kind)), None)
    if kind is None or not isinstance(body, Mapping):
        return None
    messages = {CHAT: _chat_messages, RESPONSES: _input_messages, COMPLETIONS: _text_messages}[kind](body)
    notes: list[Note] = []
    prompt = tuple(as_message(message, "prompt", notes) for message in messages)
    sampling = {name: body[name] for name in _SETTINGS if body.get(name) is not None}
    for name in _MAX_TOKENS:
        if body.get(name) is not None:
            sampling["max_tokens"] = body[name]
    tools = body.get("tools")
    extra = {"previous_response_id": body["previous_response_id"]} if body.get("previous_response_id") else {}
    return ApiRequest(prompt, tuple(notes), tools if isinstance(tools, list) else (), sampling, extra)


def _chat_messages(body: Mapping[str, Any]) -> Sequence[Any]:
    messages = body.get("messages")
    return messages if isinstance(messages, list | tuple) else ()


def _text_messages(body: Mapping[str, Any]) -> Sequence[Any]:
    prompt = body.get("prompt")
    texts = prompt if isinstance(prompt, list) and all(isinstance(one, str) for one in prompt) else [prompt]
    return [{"role": "user", "content": one if isinstance(one, str) else ""} for one in texts]


def _input_messages(body: Mapping[str, Any]) -> Iterator[Any]:
    """The instructions and the input of the Responses API, as the messages that a chat would have."""
    if isinstance(body.get("instructions"), str):
        yield {"role": "system", "content": body["instructions"]}
    items = body.get("input")
    for item in items if isinstance(items, list | tuple) else [{"role": "user", "content": items or ""}]:
        yield _input_message(item)


def _input_message(item: Any) -> Any:
    if not isinstance(item, Mapping) or "role" in item:
        return _without_output_parts(item)
    match item.get("type"):
        case "function_call" | "custom_tool_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", item.get("input"))}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output" | "custom_tool_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            pieces = item.get("content") or item.get("summary") or ()
            thoughts = [str(piece.get("text", "")) for piece in pieces if isinstance(piece, Mapping)]
            return {"role": "assistant", "content": "", "reasoning_content": "\n\n".join(thoughts)}
    return {"role": "assistant", "content": [dict(item)]}  # such as a search by the server


def _without_output_parts(item: Any) -> Any:
    """A message whose content is one text as that text, which is what a chat history would have."""
    content = item.get("content") if isinstance(item, Mapping) else None
    if isinstance(content, list | tuple) and len(content) == 1 and isinstance(content[0], Mapping):
        part = content[0]
        if part.get("type") in ("input_text", "output_text") and isinstance(part.get("text"), str):
            return {"role": item["role"], "content": part["text"]}
    return item


class StreamCollector:
    """Puts the events of a stream together to the answer that it is a stream of, as far as it came."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[Any, Any], _Pieces] = {}
        self._response: Any = None

    def add(self, event: Any) -> None:
        """Add an event: decoded from JSON, or an object of the `openai` package."""
        fields = event if isinstance(event, Mapping) else as_json(event)
        kind = fields.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            self._add_response_event(kind, fields)
            return
        self._answer |= {name: value for name, value in fields.items() if name != "choices" and value is not None}
        for choice in fields.get("choices") or ():
            whole = self._choices.setdefault(choice.get("index") or 0, {})
            message = {"message": {"role": "assistant", "content": "", **(choice.get("delta") or {})}}
            _merge(whole, {**choice, "delta": None, **({} if "text" in choice else message)})

    @property
    def answer(self) -> dict[str, Any]:
        """A completion, or a response of the Responses API."""
        if self._response is not None:
            return dict(self._response)
        if self._texts:
            texts = [{"type": "output_text", "text": _joined(pieces)} for pieces in self._texts.values()]
            return {"status": "in_progress", "output": [{"type": "message", "content": texts}]}
        return {**self._answer, "choices": [_joined(choice) for _, choice in sorted(self._choices.items())]}

    def _add_response_event(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind in _FINAL_EVENTS:
            self._response = event.get("response")
        elif kind == "response.output_text.delta":
            key = event.get("output_index"), event.get("content_index")
            self._texts.setdefault(key, _Pieces()).append(str(event.get("delta", "")))


class _Pieces(list[str]):
    """The pieces of a text, which are joined at the end."""


def _merge(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a piece of a choice: texts are joined, lists extended, and tool calls completed by their index."""
    for name, value in piece.items():
        if value is None or (name in _NOT_JOINED and name in whole):
            continue
        if name == "tool_calls":
            calls = whole.setdefault(name, [])
            for number, call in enumerate(value):
                place = call.get("index", number)
                calls.extend({} for _ in range(place + 1 - len(calls)))
                _merge(calls[place], {**call, "index": None})
        elif isinstance(value, Mapping):
            _merge(whole.setdefault(name, {}), value)
        elif isinstance(value, list):
            whole.setdefault(name, []).extend(value)
        elif isinstance(value, str) and name not in _NOT_JOINED:
            whole.setdefault(name, _Pieces()).append(value)
        else:
            whole[name] = value


def _joined(value: Any) -> Any:
    """The value with all texts in it joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _joined(item) for name, item in value.items()}
    return [_joined(item) for item in value] if isinstance(value, list) else value


def record_answer(recorder: RolloutRecorder, request: ApiRequest, answer: Any, seconds: float, **extra: Any) -> None:
    """Record an answer as a step that has no reward yet; of several choices the first, and the others in `extra`."""
    answer = answer if isinstance(answer, Mapping) or not hasattr(answer, "model_dump") else as_json(answer)
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if isinstance(choices, list) and len(choices) > 1:
        extra["other_choices"] = choices[1:]
        answer = {**answer, "choices": choices[:1]}
    recorder.step(
        request.prompt,
        answer,
        None,
        tools=request.tools,
        sampling=request.sampling or None,
        seconds=seconds,
        tokens=_tokens(answer),
        extra={**request.extra, **extra} or None,
    )


def as_json(model: Any) -> Any:
    """An object of the `openai` package as JSON has it."""
    return model.model_dump(mode="json", exclude_unset=True, warnings=False)


def _tokens(answer: Any) -> Tokens | None:
    """The token ids of an answer, where the server gives them, as vLLM does on request."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    choice = choices[0] if choices else {}
    prompt, response = answer.get("prompt_token_ids") if choices else None, choice.get("token_ids")
    if not isinstance(prompt, list) or not isinstance(response, list):
        return None
    entries = (choice.get("logprobs") or {}).get("content")
    logprobs = [entry.get("logprob") for entry in entries] if isinstance(entries, list) else []
    return Tokens(tuple(prompt), tuple(response), tuple(logprobs) if len(logprobs) == len(response) else None)


def split_choices(answer: Any) -> list[Any]:
    """An answer for each choice, which are members of a group."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or len(choices) < 2:
        return [answer]
    return [{**answer, "choices": [choice]} for choice in choices]


def read_answer(text: bytes, content_type: str) -> Any:
    """The answer in the body of a response: JSON, or the events of a stream."""
    if "event-stream" in content_type:
        events = EventStream()
        events.add(text)
        return events.answer
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(text)
    return {"choices": [{"message": {"role": "assistant", "content": text.decode(errors="replace")}}]}


class EventStream:
    """Reads the events of a stream piece by piece, as they come."""

    def __init__(self) -> None:
        self._collector = StreamCollector()
        self._rest = b""

    def add(self, chunk: bytes) -> None:
        """Read the lines that are complete by now."""
        lines, _, self._rest = (self._rest + chunk).rpartition(b"\n")
        self._read(lines)

    @property
    def answer(self) -> dict[str, Any]:
        """The answer as far as it came."""
        self._read(self._rest)
        self._rest = b""
        return self._collector.answer

    def _read(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                with contextlib.suppress(ValueError):  # the last line of a stream that was cut
                    event = msgspec.json.decode(line[5:])
                    if isinstance(event, Mapping):
                        self._collector.add(event)


def decompress(data: bytes, encoding: str, most: int) -> bytes:
    """The body of a response without its compression, up to so many bytes."""
    with contextlib.suppress(zlib.error, zstandard.ZstdError):
        if encoding in ("gzip", "deflate"):
            return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, most)
        if encoding == "zstd":
            return zstandard.ZstdDecompressor().stream_reader(data).read(most)
    return data
