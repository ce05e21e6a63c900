"""Renders our requests with the chat template of a TRL trainer, and parses what it sampled."""

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rolltrace.errors import InputError
from rolltrace.policies.policy import Completion, Request
from rolltrace.trace.convert import as_message, to_openai
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.tokens import Tokens, Usage

_QUESTION = {"role": "user", "content": "?"}


class Chat:
    """The chat template, tokenizer and limits of a trainer."""

    def __init__(self, trainer: Any) -> None:
        if getattr(trainer, "_is_vlm", False):
            raise InputError("Expected a model of text alone, got one with images: environments make prompts of text.")
        self._trainer = trainer
        self._tokenizer = trainer.processing_class
        self._templates = import_module("trl.chat_template_utils")
        self._template = trainer.chat_template or self._training_template()
        self._ends = frozenset(trainer.eos_token_ids)
        self.end_token: int = self._tokenizer.eos_token_id

    def _training_template(self) -> str | None:
        """A template that renders earlier messages the same whatever follows, if TRL has one for this tokenizer."""
        try:
            template: str | None = self._templates.get_training_chat_template(self._tokenizer)
        except ValueError:
            return None  # perhaps it is such a template: `render_between` checks that
        return template

    def room(self, prompt_length: int, length: int) -> int:
        """How many tokens may follow."""
        context = getattr(self._trainer.model.config, "max_position_embeddings", None)
        room: int = self._trainer.max_completion_length - length
        return room if context is None else min(room, context - prompt_length - length)

    def render(self, messages: Sequence[Any], tools: Sequence[Any], opens_answer: bool = True) -> list[int]:
        """The ids of chat dicts."""
        ids: list[int] = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=opens_answer, tokenize=True,
            return_dict=False, chat_template=self._template, **self._trainer.chat_template_kwargs,
        )  # fmt: skip
        return ids

    def render_first(self, request: Request) -> list[int]:
        """The ids of the first prompt."""
        _check_stop(request)
        return self.render([_chat_dict(message) for message in request.messages], _tool_dicts(request.tools))

    def render_between(self, before: Request, request: Request, ids: Sequence[int]) -> list[int]:
        """The ids of what the environment said since the policy answered the request before, up to the next answer.

        The conversation is not tokenized again, because a policy's ids may differ from those of its text. Like TRL,
        this compares the ids of a short conversation with and without the new messages.
        """
        _check_stop(request)
        messages, length = request.messages, len(before.messages)
        if messages[:length] != before.messages or [one.role for one in messages[length:][:1]] != ["assistant"]:
            raise InputError(
                "Expected a conversation that only grows, got an environment that replaces its history: a completion "
                "of TRL is one sequence of tokens."
            )
        if request.tools != before.tools:
            raise InputError(
                "Expected the same tools in every turn, got an environment that changes them: in a completion of TRL, "
                "the first prompt names the tools."
            )
        new = [_chat_dict(message) for message in messages[length + 1 :]]
        answer: dict[str, Any] = {"role": "assistant", "content": "!"}
        if new and new[0]["role"] == "tool":
            function = {"name": new[0].get("name", "tool"), "arguments": {}}
            answer = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        start = self.render([_QUESTION, answer], (), opens_answer=False)
        if self.end_token in start:  # the template may write more after the end of a turn, such as a line break
            start = start[: len(start) - start[::-1].index(self.end_token)]
        whole = self.render([_QUESTION, answer, *new], ())
        if whole[: len(start)] != start:
            raise InputError(
                "Expected a chat template that renders earlier messages the same whatever follows; TRL lists those "
                "that it can adapt under `Training templates`."
            )
        missing_end = [] if ids and ids[-1] in self._ends else [self.end_token]
        return [*missing_end, *whole[len(start) :]]

    def parse(self, request: Request, tokens: Tokens, version: int) -> Completion:
        """What the policy sampled, as our runner wants it."""
        ids = list(tokens.response)
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        parsed: dict[str, Any] = {"role": "assistant", "content": text}
        if self._can_parse(bool(request.tools)):
            tools = _tool_dicts(request.tools) or None
            parsed = self._templates.parse_response(self._tokenizer, ids, prefix=list(tokens.prompt), tools=tools)
        message = as_message({"role": "assistant", **parsed}, "response", [])
        termination = Termination.TOOL_CALLS if message.tool_calls else Termination.EOS
        return Completion(
            message=message,
            termination=termination if ids and ids[-1] in self._ends else Termination.LENGTH,
            raw=None if text == message.content else text,
            policy_version=version,
            usage=Usage(len(tokens.prompt), len(ids)),
            tokens=tokens,
        )

    def _can_parse(self, has_tools: bool) -> bool:
        """Whether the tokenizer can parse answers; with tools, it has to."""
        names = ("response_template", "response_schema")
        if not any(getattr(self._tokenizer, name, None) is not None for name in names):
            if not has_tools:
                return False
            try:
                self._templates.add_response_schema(self._tokenizer)
            except ValueError as error:
                raise InputError(
                    f"Expected a tokenizer whose tool calls TRL can parse: set its response_template. ({error})"
                ) from error
        return True


def _check_stop(request: Request) -> None:
    if request.sampling.stop:
        raise InputError(
            f"Expected an environment without stop sequences, got {list(request.sampling.stop)}: TRL samples all "
            "completions with the same settings."
        )


def _tool_dicts(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters.to_dict()},
        }
        for tool in tools
    ]


def _chat_dict(message: Message) -> dict[str, Any]:
    """A chat dict as templates want it: arguments of calls as an object."""
    chat = to_openai(message)
    for call in chat.get("tool_calls", ()):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        if isinstance(arguments, dict):
            call["function"]["arguments"] = arguments
    return chat
