"""Tools: the schema from a function, and every way a call can end."""

import asyncio
import contextvars
import dataclasses
import enum
import functools
import json
import pickle
import threading
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.tools import Tool, ToolFailure, ToolResult, parse_error_of
from rolltrace.errors import InputError, ToolError
from rolltrace.trace.message import ToolCall, ToolSpec


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


class Options(TypedDict):
    deep: bool


def search(  # noqa: D417 - a tool need not describe each parameter
    query: str,
    limit: int = 10,
    tags: list[str] = ["a"],  # noqa: B006 - a tool may have such a default, and it must survive
    color: Color | None = None,
    mode: Literal["fast", "exact"] = "fast",
    point: Point = Point(1),  # a default that JSON does not have
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1, description="Own words.")] = 0.5,
    options: Options | None = None,
) -> str:
    """Search the archive.

    It is slow.

    Args:
        query: What to look for.
        limit: How many at most.
        ratio: Not shown.

    """
    return repr((query, limit, tags, color, mode, point, ratio, options))


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def _schema(tool):
    return tool.spec.parameters.to_dict()


def test_schema_from_signature_and_docstring():
    """The spec is what a server is sent: an object schema, with descriptions, defaults and definitions."""
    tool = Tool(search)
    schema = _schema(tool)
    assert isinstance(tool.spec, ToolSpec)
    assert tool.spec.name == "search"
    assert tool.spec.description == "Search the archive.\n\nIt is slow."
    assert schema["type"] == "object"
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert "$ref" not in schema
    assert "title" not in schema
    properties = schema["properties"]
    assert properties["query"] == {"type": "string", "description": "What to look for."}
    assert properties["limit"] == {"type": "integer", "description": "How many at most.", "default": 10}
    assert properties["tags"]["default"] == ["a"]
    assert properties["mode"]["enum"] == ["exact", "fast"]
    assert properties["ratio"]["description"] == "Own words."
    assert properties["ratio"]["maximum"] == 1
    assert "default" not in properties["point"]
    assert properties["point"]["$ref"] == "#/$defs/Point"
    assert schema["$defs"]["Point"]["properties"]["x"] == {"type": "integer"}


def test_a_tool_without_parameters_has_an_empty_object():
    """A tool without parameters has an empty object schema."""

    def now() -> str:
        """Tell the time."""
        return "noon"

    assert _schema(Tool(now)) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


@pytest.mark.parametrize(
    "style",
    [
        "Add.\n\nArgs:\n    first: The one.\n",
        "Add.\n\n:param first: The one.\n",
        "Add.\n\nParameters\n----------\nfirst\n    The one.\n",
    ],
)
def test_docstring_styles(style):
    """Google, Sphinx and numpy docstrings are all read."""

    def function(first: int) -> int:
        return first

    function.__doc__ = style
    tool = Tool(function)
    assert tool.spec.description == "Add."
    assert _schema(tool)["properties"]["first"]["description"] == "The one."


def unannotated(value):
    """Do."""


def star(*values: int):
    """Do."""


def double_star(**values: int):
    """Do."""


def positional(value: int, /):
    """Do."""


def silent(value: int): ...


def only_arguments(value: int):
    """:param value: A value."""


def unsupported(value: complex):
    """Do."""


def two_lists(value: list[int] | tuple[int, ...]):
    """Do."""


def unresolved(value: "Missing"):  # noqa: F821 - the point of the test
    """Do."""


class Callee:
    """Do."""

    def __call__(self, value: int): ...


BAD_FUNCTIONS = [
    (unannotated, "Expected a type for each parameter of the tool unannotated, got none for 'value'"),
    (star, r"got `\*values: int` in the tool star as variadic positional"),
    (double_star, r"got `\*\*values: int` in the tool double_star as variadic keyword"),
    (positional, "got `value: int` in the tool positional as positional-only"),
    (silent, "Expected a docstring that tells the policy what the tool silent does"),
    (only_arguments, "Expected a docstring that tells the policy what the tool only_arguments does"),
    (unsupported, "for 'value' of the tool unsupported, got `<class 'complex'>`"),
    (two_lists, "for 'value' of the tool two_lists"),
    (unresolved, "Expected a signature of the tool unresolved that can be read: name 'Missing'"),
    (lambda value: value, "Expected a function with a name"),
    (functools.partial(add, 1), "Expected a function with a name"),
    (Callee(), "Expected a function with a name"),
    (3, "Expected a function with a name"),
    (len, "got `obj` in the tool len as positional-only"),
]


@pytest.mark.parametrize(("function", "message"), BAD_FUNCTIONS)
def test_functions_that_are_no_tool(function, message):
    """A function that cannot be a tool is refused when the tool is made, not when a policy calls it."""
    with pytest.raises(InputError, match=message):
        Tool(function)


def test_max_content_must_be_positive():
    """A `max_content` below 1 is refused."""
    with pytest.raises(InputError, match="max_content"):
        Tool(add, max_content=0)


def test_tools_pickle():
    """A builder may hold a tool."""
    tool = pickle.loads(pickle.dumps(Tool(add, in_thread=False, max_content=7)))
    assert (tool.spec, tool.in_thread, tool.max_content) == (Tool(add).spec, False, 7)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_sync_functions(in_thread):
    """A sync function gets converted arguments; omitted ones take the function's default."""
    outcome = await Tool(search, in_thread=in_thread).call('{"query": "x", "color": "red", "point": {"x": 2}}')
    assert outcome.error is None
    assert outcome.content == repr(("x", 10, ["a"], Color.RED, "fast", Point(2), 0.5, None))
    assert not outcome.stop


@pytest.mark.parametrize("mode", ["returns", "raises"])
async def test_seconds_are_those_of_the_call(monkeypatch, mode):
    """An outcome has the time from the call to its end, whether the function returns or raises."""
    now = 100.0
    monkeypatch.setattr("rolltrace.envs.tools.time", SimpleNamespace(perf_counter=lambda: now))

    def work(fails: bool) -> str:
        """Take two and a half seconds."""
        nonlocal now
        now += 2.5
        if fails:
            raise ValueError("no")
        return "done"

    outcome = await Tool(work).call(json.dumps({"fails": mode == "raises"}))
    assert (outcome.seconds, outcome.error is None) == (2.5, mode == "returns")


async def test_async_functions():
    """An async function runs on the event loop."""

    async def whoami() -> str:
        """Say it."""
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert (await Tool(whoami).call("{}")).content == threading.current_thread().name


async def test_methods_and_wrapped_coroutines():
    """A bound method is a tool, and so is a sync wrapper of an async function."""

    class Shop:
        stock = 3

        def count(self, extra: int = 0) -> int:
            """Count the stock."""
            return self.stock + extra

    async def inner(value: int) -> int:
        """Echo."""
        return value

    @functools.wraps(inner)
    def wrapped(value: int):
        return inner(value)

    tool = Tool(Shop().count)
    assert list(_schema(tool)["properties"]) == ["extra"]
    assert (await tool.call('{"extra": 1}')).content == "4"
    assert (await Tool(wrapped).call('{"value": 5}')).content == "5"


async def test_threads_see_the_context():
    """A context variable set by the caller is seen in the thread."""
    variable = contextvars.ContextVar("variable")
    variable.set("set")

    def look() -> str:
        """Look."""
        return variable.get()

    assert (await Tool(look).call("{}")).content == "set"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ('{"first": 1}', "Object missing required field `second`"),
        ('{"first": 1, "second": "2"}', "Expected `int`, got `str` - at `$.second`"),
        ('{"first": 1, "second": 2, "third": 3}', "unknown field `third`"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("", "Object missing required field `first`"),
        ("null", "Object missing required field `first`"),
        ("{first: 1}", "malformed"),
        ("[" * 100_000, "Expected `object`"),
        ('{"first": "\ud800"}', "surrogates not allowed"),
        ('{"first": 1, "second": ' + "9" * 5000 + "}", "out of range"),
    ],
)
async def test_arguments_that_do_not_fit(arguments, part):
    """The error names the wrong argument, what was expected and what was given, briefly."""
    outcome = await Tool(add).call(arguments)
    assert outcome.error is ToolFailure.BAD_ARGUMENTS
    assert outcome.content.startswith("Error: the arguments do not fit add: ")
    assert part in outcome.content
    assert len(outcome.content) < 600
    outcome.content.encode()


async def test_a_type_that_raises_while_it_is_made():
    """An exception in a user's type counts as wrong arguments."""

    class Fussy(msgspec.Struct):
        value: int

        def __post_init__(self):
            raise KeyError("no")

    def take(fussy: Fussy) -> str:
        """Take."""
        return "taken"

    assert (await Tool(take).call('{"fussy": {"value": 1}}')).error is ToolFailure.BAD_ARGUMENTS


class HostileError(Exception):
    def __str__(self):
        raise RuntimeError("never")


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ZeroDivisionError("by zero"), "Error: ZeroDivisionError: by zero"),
        (ToolError("Expected a number."), "Error: Expected a number."),
        (TimeoutError("its own"), "Error: TimeoutError: its own"),
        (HostileError(), "Error: HostileError: its message cannot be read"),
        (ExceptionGroup("many", [ValueError("one")]), "Error: ExceptionGroup: many (1 sub-exception)"),
    ],
)
async def test_a_tool_that_raises(error, content, in_thread):
    """Any exception of a tool, its own time-outs included, becomes its answer; the traceback is logged."""

    def fail() -> str:
        """Fail."""
        raise error

    outcome = await Tool(fail, in_thread=in_thread).call("{}", 10)
    assert (outcome.error, outcome.content) == (ToolFailure.RAISED, content)
    assert "in fail" in outcome.log


@pytest.mark.parametrize("in_thread", [True, False])
async def test_stop_iteration_does_not_hang(in_thread):
    """StopIteration, which no future can carry, is a failure like any other."""

    def fail() -> str:
        """Fail."""
        raise StopIteration

    assert (await Tool(fail, in_thread=in_thread).call("{}", 10)).error is ToolFailure.RAISED


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_stray_cancellation_or_exit_is_the_tools_failure(error, in_thread):
    """A tool that raises a stray CancelledError, or calls sys.exit(), has failed like any other."""

    def fail() -> str:
        """Fail."""
        raise error

    outcome = await Tool(fail, in_thread=in_thread).call("{}", 10)
    assert outcome.error is ToolFailure.RAISED
    assert error.__name__ in outcome.content


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("in_thread", [True, False])
async def test_other_base_exceptions_propagate(error, in_thread):
    """Interrupts are never a tool's answer."""

    def fail() -> str:
        """Fail."""
        raise error

    tool = Tool(fail, in_thread=in_thread)
    with pytest.raises(error):
        await tool.call("{}", 10)


async def test_an_async_tool_times_out():
    """A tool that exceeds its time is cancelled, and its answer says so."""
    ended = []

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    outcome = await Tool(wait).call("{}", 0.01)
    assert outcome.error is ToolFailure.TIMED_OUT
    assert outcome.content == "Error: wait took longer than 0.01 seconds and was stopped."
    assert ended == [True]


@pytest.mark.parametrize("late", ["answer", "raise"])
async def test_a_late_answer_counts_as_timed_out(late):
    """A tool that answers its cancellation with a result or an error has still timed out."""

    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if late == "raise":
                raise ValueError("late") from None
        return "late"

    assert (await Tool(wait).call("{}", 0.01)).error is ToolFailure.TIMED_OUT


async def test_a_sync_tool_times_out_without_blocking_the_loop():
    """A thread that hangs costs only its own time-out: more threads may hang at once than any pool has workers."""
    release = threading.Event()

    def wait() -> str:
        """Wait."""
        release.wait(60)
        return "late"

    tool = Tool(wait)
    outcomes = await asyncio.gather(*(tool.call("{}", 0.01) for _ in range(40)), Tool(add).call(ONE_AND_TWO, 30))
    release.set()
    assert {outcome.error for outcome in outcomes[:-1]} == {ToolFailure.TIMED_OUT}
    assert outcomes[-1].content == "3"


ONE_AND_TWO = '{"first": 1, "second": 2}'


def test_a_thread_may_outlive_its_loop():
    """A tool that ends after its event loop was closed raises nothing, and its thread is a daemon."""
    release = threading.Event()
    threads = []

    def wait() -> str:
        """Wait."""
        threads.append(threading.current_thread())
        release.wait(60)
        return "late"

    asyncio.run(Tool(wait).call("{}", 0.01))
    release.set()
    threads[0].join(60)
    assert not threads[0].is_alive()
    assert threads[0].daemon


async def test_cancellation_reaches_the_tool_and_the_caller():
    """A cancelled call raises, and the async tool is cancelled too."""
    started, ended = asyncio.Event(), []

    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(Tool(wait).call("{}", 60))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("text", "text"),
        (3, "3"),
        (None, "null"),
        (2**70, str(2**70)),
        ({"a": [1, 2.5, True], "é": None}, '{"a": [1, 2.5, true], "é": null}'),
        (Point(1), '{"x": 1, "y": 0.0}'),
        (ToolResult({"a": 1}), '{"a": 1}'),
        (ToolResult("text"), "text"),
    ],
)
async def test_answers_are_text(answer, content):
    """Text stays text, other values become JSON."""

    def give() -> Any:
        """Give."""
        return answer

    outcome = await Tool(give, in_thread=False).call("{}")
    assert (outcome.content, outcome.error, outcome.log) == (content, None, "")


async def test_answers_that_json_cannot_hold_are_logged():
    """The policy gets a placeholder, and the log says why."""

    def give() -> Any:
        """Give."""
        return {"thing": object()}

    outcome = await Tool(give, in_thread=False).call("{}")
    assert outcome.error is None
    assert "$unrepresentable" in json.loads(outcome.content)["thing"]
    assert "answer.thing: replaced by a placeholder" in outcome.log


async def test_a_tool_may_stop_the_episode():
    """Only a result that says so stops the episode."""

    def submit(value: int) -> ToolResult:
        """Submit."""
        return ToolResult(value, stop=True)

    outcome = await Tool(submit).call('{"value": 1}')
    assert (outcome.content, outcome.stop) == ("1", True)


async def test_long_answers_are_cut():
    """A truncated answer ends with a note on how much is missing."""

    def talk(length: int) -> str:
        """Talk."""
        return "x" * length

    tool = Tool(talk, in_thread=False, max_content=10)
    assert (await tool.call('{"length": 10}')).content == "x" * 10
    assert (await tool.call('{"length": 15}')).content == "x" * 10 + "\n[cut here: 5 more characters]"


async def test_long_errors_are_cut():
    """The message of an exception is truncated like an answer."""

    def fail() -> str:
        """Fail."""
        raise ToolError("x" * 10_000)

    outcome = await Tool(fail, in_thread=False, max_content=10).call("{}")
    assert outcome.content == "Error: " + "x" * 10 + "…"
    assert len(outcome.log) <= 4_000


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (ToolCall("add", "{}", error="no closing tag"), "no closing tag"),
        (ToolCall("add", "", error="no closing tag"), "no closing tag"),
        (ToolCall(""), "the name of a tool, got none in '{}'"),
        (ToolCall("add", '""'), "Expected the arguments of 'add' as a JSON object, got '\"\"'"),
        (ToolCall("add", "[1]"), "got '[1]': Expected `object`, got `array`"),
        (ToolCall("add", "nul"), "got 'nul'"),
        (ToolCall("add", '{"a": 1'), "truncated"),
        (ToolCall("add", '{"a": NaN}'), "invalid character"),
        (ToolCall("add", '{"a": ' + "[" * 100_000), "recursion"),
        (ToolCall("add", '{"a": "\ud800"}'), "surrogates"),
    ],
)
def test_calls_that_cannot_be_read(call, part):
    """A call is unreadable if its parser said so, it names no tool, or its arguments are no JSON object."""
    error = parse_error_of(call)
    assert part in error
    assert len(error) < 600
    error.encode()


@pytest.mark.parametrize("arguments", ["{}", ' {"a": [1]} ', '{"unknown": 1}'])
def test_calls_that_can_be_read(arguments):
    """A call is readable even if the tool does not exist or does not take the arguments."""
    assert parse_error_of(ToolCall("anything", arguments)) is None


TYPES = {
    "boolean": (bool, st.booleans()),
    "integer": (int, st.integers(-(2**60), 2**60)),
    "number": (float, st.floats(allow_nan=False, allow_infinity=False)),
    "string": (str, st.text(max_size=5)),
    "array": (list[int], st.lists(st.integers(0, 9), max_size=3)),
    "object": (dict[str, str], st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)),
}
JSON_TYPES = {"boolean": bool, "integer": int, "number": (int, float), "string": str, "array": list, "object": dict}


def _accepts(schema, values):
    """Whether a JSON schema of these plain types accepts the value."""
    properties = schema["properties"]
    if not set(schema["required"]) <= set(values) or not set(values) <= set(properties):
        return False
    return all(_is_a(values[name], properties[name]["type"]) for name in values)


def _is_a(value, kind):
    return isinstance(value, JSON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


@given(st.data())
def test_the_schema_accepts_what_the_signature_accepts(data):
    """For any signature of plain types and any arguments, schema and call agree on what is valid."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4))
    required = [data.draw(st.booleans()) for _ in kinds]
    seen = []

    def function(**values):
        seen.append(values)
        return "ok"

    names = [f"p{place}" for place in range(len(kinds))]
    header = ", ".join(name if needed else f"{name}=None" for name, needed in zip(names, required, strict=True))
    space = {"function": function}
    exec(f"def tool(*, {header}):\n    'Do.'\n    return function({', '.join(f'{n}={n}' for n in names)})", space)
    space["tool"].__annotations__ = {name: TYPES[kind][0] for name, kind in zip(names, kinds, strict=True)}
    tool = Tool(space["tool"], in_thread=False)

    given_names = data.draw(st.lists(st.sampled_from([*names, "stranger"]), unique=True))
    values = {name: data.draw(TYPES[data.draw(st.sampled_from(sorted(TYPES)))][1]) for name in given_names}
    for name, kind in zip(names, kinds, strict=True):
        if data.draw(st.booleans()):
            values[name] = data.draw(TYPES[kind][1])
    outcome = asyncio.run(tool.call(json.dumps(values)))
    assert (outcome.error is None) == _accepts(_schema(tool), values)
    if outcome.error is None:
        assert seen == [{name: values.get(name) for name in names}]
