import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.testing.conformance.reply_styles import example_of, styles_of
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, ToolSpec
from rolltrace.trace.stop_reasons import Termination

PROMPT = (Message("user", "Begin."),)
TOOLS = tuple(ToolSpec(name, "", FrozenMap.of({"properties": {"text": {}}})) for name in ("one", "two"))


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"const": 4}, 4),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"type": "string", "default": "d"}, "d"),
        ({"type": "string", "minLength": 3}, "111"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5}, 6),
        ({"type": "number", "maximum": -2}, -2),
        ({"type": "number", "exclusiveMaximum": 1}, 0),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["integer", "null"]}, 1),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "boolean"}}}, {"a": True}),
        ({"type": "object"}, {}),
        ({}, "1"),
    ],
)
def test_examples_fit_their_schema(schema, example):
    """Tools are called with arguments that their schema allows."""
    assert example_of(schema) == example


def test_a_schema_that_refers_to_itself_ends():
    """A recursive schema does not make the check loop."""
    schema = {"properties": {"child": {"$ref": "#"}}, "required": ["child"]}
    assert json.dumps(example_of(schema)).count("child") < 20


def test_tools_are_called_in_turn_and_text_comes_between():
    """A tool environment is played with calls of each tool, and with turns without calls."""
    style = styles_of(None)["tool calls"]
    turns = [style(PROMPT, TOOLS, turn) for turn in range(6)]
    assert [[call.name for call in turn.message.tool_calls] for turn in turns] == [
        ["one"], ["two"], [], ["two"], ["one"], [],
    ]  # fmt: skip
    assert turns[0].termination is Termination.TOOL_CALLS
    assert turns[2].termination is Termination.EOS
    assert not style(PROMPT, (), 0).message.tool_calls


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(0, 100))
def test_given_answers_are_cycled(answers, turn):
    """The given answers are repeated in their order."""
    [style] = styles_of(answers).values()
    assert style(PROMPT, (), turn).message == Message("assistant", answers[turn % len(answers)])
