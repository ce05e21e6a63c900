"""Makes tools of typed Python functions, and runs the calls of a policy."""

import asyncio
import contextlib
import contextvars
import inspect
import json
import re
import threading
import time
import traceback
import typing
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from rolltrace.cancellation import is_failure
from rolltrace.errors import InputError, ToolError
from rolltrace.trace.freeform import Note, to_json_value
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import ToolCall, ToolSpec
from rolltrace.trace.tool_calls import json_arguments

MAX_CONTENT = 20_000
"""Default limit on the characters of a tool's result that the policy sees."""

_MAX_LOG_CHARS = 4_000
_MAX_EXCERPT_CHARS = 200
_DEFINITIONS = "#/$defs/"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what inference servers accept


class ToolResult(msgspec.Struct, frozen=True):
    """A tool's result with further information."""

    content: Any
    """The result: text, or any JSON value."""
    stop: bool = False
    """Whether the episode ends here."""


class ToolFailure(StrEnum):
    """How a tool call can fail. No failure ends a rollout by itself: the policy gets the error."""

    UNPARSABLE = "unparsable"
    """The call could not be parsed."""
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments do not fit the tool's schema."""
    RAISED = "raised"
    TIMED_OUT = "timed_out"
    UNFINISHED = "unfinished"
    """The turn ended before the tool returned; only in records of steps that the env did not finish."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The outcome of one tool call."""

    content: str
    """The text for the policy: the tool's result, or the error."""
    error: ToolFailure | None = None
    seconds: float = 0.0
    """How long the tool took."""
    stop: bool = False
    """Whether the tool ended the episode."""
    log: str = ""
    """For debugging: the traceback, or the parts of the result that are not JSON."""


class Tool:
    """A function that a policy may call; its signature and docstring describe it to the policy."""

    def __init__(self, function: Callable[..., Any], *, in_thread: bool = True, max_content: int = MAX_CONTENT) -> None:
        """Make a tool of a function.

        A sync function runs in its own thread, so that it does not block the event loop. After a time-out it goes on
        running there, because a thread cannot be stopped, and its result is dropped. `in_thread=False` is for sync
        functions that are always fast: they are called directly, without a time-out.
        """
        name = getattr(function, "__name__", type(function).__name__)
        if not inspect.isroutine(function) or not _NAME.fullmatch(name):
            raise InputError(f"Expected a function with a name of letters, digits, _ or -, got {function!r}: use def.")
        if max_content < 1:
            raise InputError(f"Expected max_content of at least 1 for the tool {name}, got {max_content}.")
        parameters = _parameters(function, name)
        description, documented = _documentation(function, name)
        arguments = _arguments_struct(name, parameters)
        schema = _schema(arguments, parameters, documented)
        self.function = function
        self.spec = ToolSpec(name, description, FrozenMap.of(schema))
        self.in_thread = in_thread
        self.max_content = max_content
        self._decoder = msgspec.json.Decoder(arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Tool, in_thread=self.in_thread, max_content=self.max_content), (self.function,)

    async def call(self, arguments: str, timeout: float | None = None) -> ToolOutcome:  # noqa: ASYNC109 - a time-out is an outcome here
        """Call the function with JSON arguments; its errors are part of the outcome.

        A requested cancellation and the end of the process are raised.
        """
        try:
            decoded = self._decoder.decode(json_arguments(arguments))
        except Exception as error:  # noqa: BLE001 - the constructor of a user's type may raise anything
            reason = _clip(_error_text(error), _MAX_EXCERPT_CHARS)
            content = f"Error: the arguments do not fit {self.spec.name}: {reason}. Got {_excerpt(arguments)}."
            return ToolOutcome(content, ToolFailure.BAD_ARGUMENTS)
        values = {field: getattr(decoded, field) for field in decoded.__struct_fields__}
        values = {field: value for field, value in values.items() if value is not msgspec.UNSET}
        started = time.perf_counter()
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                answer = await self._run(values)
            content, stop, log = self._render(answer)
        except BaseException as error:
            if not is_failure(error):
                raise
            if not scope.expired():
                return self._raised(error, time.perf_counter() - started)
        else:
            if not scope.expired():
                return ToolOutcome(content, None, time.perf_counter() - started, stop, log)
        content = f"Error: {self.spec.name} took longer than {timeout:g} seconds and was stopped."
        return ToolOutcome(content, ToolFailure.TIMED_OUT, time.perf_counter() - started)

    async def _run(self, values: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**values)
        if self.in_thread:
            answer = await call_in_thread(self.function, **values)
        else:
            answer = self.function(**values)
        return await answer if inspect.isawaitable(answer) else answer

    def _render(self, answer: Any) -> tuple[str, bool, str]:
        """The result as text, whether it ends the episode, and notes on parts that are not JSON."""
        result = answer if isinstance(answer, ToolResult) else ToolResult(answer)
        notes: list[Note] = []
        if isinstance(result.content, str):
            text = str(result.content)
        else:
            text = json.dumps(to_json_value(result.content, "answer", notes), ensure_ascii=False)
        if len(text) > self.max_content:
            text = f"{text[: self.max_content]}\n[cut here: {len(text) - self.max_content} more characters]"
        return text, result.stop, _clip("\n".join(f"{note.path}: {note.message}" for note in notes), _MAX_LOG_CHARS)

    def _raised(self, error: BaseException, seconds: float) -> ToolOutcome:
        # The message of a ToolError is for the model; other exceptions need their type to be understood.
        text = _error_text(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {_error_text(error)}"
        log = "".join(traceback.format_exception(error))[-_MAX_LOG_CHARS:]  # the end says where it was raised
        return ToolOutcome(f"Error: {_clip(text, self.max_content)}", ToolFailure.RAISED, seconds, log=log)


def parse_error_of(call: ToolCall) -> str | None:
    """Why a tool call cannot be parsed, or None. Its tool may still refuse its arguments."""
    if call.error is not None:
        return call.error
    if not call.name:
        return f"Expected a tool call with the name of a tool, got none in {_excerpt(call.arguments)}."
    try:
        msgspec.json.decode(json_arguments(call.arguments), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return f"Expected the arguments of {call.name!r} as a JSON object, got {_excerpt(call.arguments)}: {error}."
    return None


async def call_in_thread(function: Callable[..., Any], /, *args: Any, **values: Any) -> Any:
    """Run a function in a daemon thread.

    The loop's default thread pool is not used: functions that hang would fill it, and its shutdown waits for them.
    """
    outcome: Future[tuple[Any, BaseException | None]] = Future()
    outcome.set_running_or_notify_cancel()  # so that a time-out does not cancel it
    context = contextvars.copy_context()

    def work() -> None:
        answer, failure = None, None
        try:
            answer = context.run(function, *args, **values)
        except BaseException as error:  # noqa: BLE001 - raised again in the task that awaits this
            failure = error
        outcome.set_result((answer, failure))  # not `set_exception`, which refuses a StopIteration

    threading.Thread(target=work, name=f"call-{getattr(function, '__name__', '')}", daemon=True).start()
    answer, failure = await asyncio.wrap_future(outcome)
    if failure is not None:
        raise failure
    return answer


def _parameters(function: Callable[..., Any], name: str) -> dict[str, tuple[Any, Any]]:
    """Type and default (or `inspect.Parameter.empty`) of each parameter, each known to fit a JSON schema."""
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InputError(f"Expected a signature of the tool {name} that can be read: {error}.") from error
    parameters = {}
    for field, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InputError(
                f"Expected parameters that can be passed by name, got `{parameter}` in the tool {name} as "
                f"{parameter.kind.description}: a policy passes every argument by name, so name each parameter."
            )
        if field not in hints:
            raise InputError(
                f"Expected a type for each parameter of the tool {name}, got none for {field!r}: "
                f"annotate it, such as `{field}: str`."
            )
        _check_type(name, field, hints[field])
        parameters[field] = (hints[field], parameter.default)
    return parameters


def _check_type(name: str, field: str, annotation: Any) -> None:
    try:
        msgspec.json.schema(annotation)
        msgspec.json.Decoder(annotation)
    except Exception as error:
        raise InputError(
            f"Expected a type that JSON has for {field!r} of the tool {name}, got `{annotation}`: use str, int, float, "
            f"bool, None, list, dict, Literal, an enum, a dataclass, a TypedDict or a msgspec.Struct. ({error})"
        ) from error


def _documentation(function: Callable[..., Any], name: str) -> tuple[str, dict[str, str]]:
    """The descriptions of the tool and of each parameter, from the docstring."""
    from docstring_parser import ParseError, parse  # imported only if tools are made, because it is slow

    try:
        docstring = parse(inspect.getdoc(function) or "")
    except ParseError as error:
        raise InputError(f"Expected a docstring of the tool {name} that can be read: {error}.") from error
    description = (docstring.description or "").strip()
    if not description:
        raise InputError(
            f"Expected a docstring that tells the policy what the tool {name} does, got none: add a sentence, and an "
            "`Args:` section with a line for each parameter."
        )
    described = {entry.arg_name: (entry.description or "").strip() for entry in docstring.params}
    return description, described


def _arguments_struct(name: str, parameters: Mapping[str, tuple[Any, Any]]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for field, (annotation, default) in parameters.items():
        if default is inspect.Parameter.empty:
            fields.append((field, annotation))
        else:  # an argument that the policy leaves out is not passed, so the function's own default applies
            fields.append((field, typing.Union[annotation, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - a value, not an annotation
    try:
        return msgspec.defstruct(name.replace("-", "_"), fields, kw_only=True, forbid_unknown_fields=True)
    except Exception as error:
        raise InputError(f"Expected parameters of the tool {name} that JSON can name: {error}.") from error


def _schema(
    arguments: type[msgspec.Struct], parameters: Mapping[str, tuple[Any, Any]], documented: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON schema of the arguments, as an object rather than a reference to one."""
    (reference,), components = msgspec.json.schema_components([arguments], ref_template=f"{_DEFINITIONS}{{name}}")
    schema: dict[str, Any] = components.pop(reference["$ref"].removeprefix(_DEFINITIONS))
    del schema["title"]
    for field, (_, default) in parameters.items():
        described = schema["properties"][field]
        if documented.get(field):
            described.setdefault("description", documented[field])
        if default is not inspect.Parameter.empty:
            with contextlib.suppress(TypeError, ValueError):  # a default that JSON lacks is not shown
                described["default"] = json.loads(json.dumps(default, allow_nan=False))
    if components:
        schema["$defs"] = components
    return schema


def _error_text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `str` of a user's exception may raise
        return "its message cannot be read"


def _excerpt(text: str) -> str:
    return _clip(repr(text[: _MAX_EXCERPT_CHARS + 1]), _MAX_EXCERPT_CHARS)


def _clip(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"
