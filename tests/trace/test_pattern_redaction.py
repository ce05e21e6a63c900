"""Redaction by pattern."""

import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace import Message, Part, Recording, ToolCall, create_run, open_run, redact_pattern
from rolltrace.errors import InputError
from rolltrace.trace.frozen import FrozenMap

HIDE = redact_pattern(r"\S+@\S+")
SECRET = "ann@example.org"


def test_a_message_by_hand():
    """Every text of a message is redacted; the role, the number of parts and other text stay."""
    message = Message(
        "user", f"To {SECRET} now", name=SECRET, reasoning=f"it is {SECRET}", other=FrozenMap.of({"a": [SECRET]}),
        parts=(Part("thinking", offset=3, text=SECRET), Part("image", url=SECRET)),
        tool_calls=(ToolCall("send", f"to {SECRET}", id="1", error=f"not JSON: {SECRET}"),),
    )  # fmt: skip
    assert HIDE(message) == Message(
        "user", "To [redacted] now", name="[redacted]", reasoning="it is [redacted]",
        other=FrozenMap.of({"a": ["[redacted]"]}),
        parts=(Part("thinking", offset=3, text="[redacted]"), Part("image", url="[redacted]")),
        tool_calls=(ToolCall("send", "to [redacted]", id="1", error="not JSON: [redacted]"),),
    )  # fmt: skip


def test_tool_arguments_stay_json():
    """A greedy pattern removes neither quotes nor braces, and arguments without a match stay as written."""
    assert HIDE(Message("a", "", tool_calls=(call('{"to":"ann@example.org"}'),))).tool_calls[0] == call(
        '{"to": "[redacted]"}'
    )
    assert HIDE(Message("a", "", tool_calls=(call('{ "x" :1.50}'),))).tool_calls[0] == call('{ "x" :1.50}')


def call(arguments):
    return ToolCall("send", arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"to": "ann\u0040example.org"}',
        r'{"to": "ann\u0040example.org", "to": "x"}',
        r'{"to": "ann\u0040example.org"',
        r'{"ann\u0040example.org": 1}',
        '{"deep": [{"to": "ann@example.org"}]}',
    ],
    ids=["escaped", "repeated_key", "incomplete", "key", "deep"],
)
def test_json_cannot_hide_a_match(arguments):
    """An escaped character, a repeated key or truncated JSON does not prevent redaction."""
    [redacted] = HIDE(Message("assistant", "", tool_calls=(call(arguments),))).tool_calls
    assert "example" not in redacted.arguments
    assert "redacted" in redacted.arguments


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_in_place_of_text_are_redacted(tmp_path, kind):
    """Content, a response and arguments given as bytes are recorded as text, with a note, so a pattern finds them."""
    secret = kind(f"to {SECRET} \N{SNOWMAN} ".encode() + b"\xff")
    calls = [{"id": "1", "type": "function", "function": {"name": "send", "arguments": secret}}]
    prompt = [
        {"role": "user", "content": secret},
        {"role": "user", "content": [{"type": "text", "text": secret}]},
        {"role": "assistant", "content": "", "tool_calls": calls},
        Message("user", secret),
    ]
    with (
        create_run(tmp_path / "run", trace=Recording(redact=HIDE)) as run,
        run.rollout(env="e", task="t", group="g", index=0) as rollout,
    ):
        rollout.step(prompt=prompt, response=secret, reward=1.0)
    [recorded] = open_run(tmp_path / "run").rollouts()
    shown = "to [redacted] \N{SNOWMAN} \ufffd"
    assert [message.content for message in recorded.messages] == [shown, shown, "", shown, shown]
    assert recorded.messages[2].tool_calls[0].arguments == shown
    assert sum("decoded as UTF-8" in note.message for note in recorded.notes) == 5


def test_a_map_by_hand():
    """Texts at any depth are redacted, with keys and bytes; numbers stay, and keys that become equal are numbered."""
    given = {"a": [SECRET, {"b": SECRET}, 1.5, True, None], "c": SECRET.encode(), SECRET: 1, "bob@example.org": 2}
    assert HIDE(given) == {
        "a": ["[redacted]", {"b": "[redacted]"}, 1.5, True, None], "c": b"[redacted]", "[redacted]": 1,
        "[redacted] 2": 2,
    }  # fmt: skip


def test_several_patterns_and_a_replacement():
    """Patterns may be compiled, with flags; the replacement is literal."""
    hide = redact_pattern(r"sk-\w+", re.compile("ann", re.IGNORECASE), replacement=r"\1")
    assert hide({"a": "Ann has sk-12"}) == {"a": r"\1 has \1"}
    assert pickle.loads(pickle.dumps(hide))({"a": "ANN"}) == {"a": r"\1"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.lists(st.text(max_size=5), max_size=3))
def test_nothing_matches_afterwards(value, around):
    """Whatever the value, no text of it matches afterwards, and arguments that were JSON still are."""
    planted = {"value": value, "around": [f"{text} KEY-123{text}" for text in around]}
    hide = redact_pattern(r"KEY-\d+")
    assert "KEY-" not in repr(hide(planted))
    [redacted] = hide(Message("assistant", "", tool_calls=(call(json.dumps(planted)),))).tool_calls
    assert json.loads(redacted.arguments) == hide(planted)


@pytest.mark.parametrize("patterns", [(), (b"x",), ("(",), (5,), (re.compile(b"x"),)])
def test_patterns_that_make_no_sense(patterns):
    """Invalid patterns are refused when the function is made, not when a rollout is recorded."""
    with pytest.raises(InputError, match=r"pattern|regular expression"):
        redact_pattern(*patterns)
