"""Reading a server's reply."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.misbehaving import call, completion
from rolltrace.errors import PolicyError
from rolltrace.policies.endpoint.api_key import EnvironmentApiKey
from rolltrace.policies.endpoint.chat_reply import read_completion, read_reply
from rolltrace.trace.blob import Blob
from rolltrace.trace.convert import as_message, to_openai
from rolltrace.trace.message import ToolCall


def read(reply):
    body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return read_completion(read_reply(body, where="m at h", key=EnvironmentApiKey("KEY")), position=3, version=7)


@pytest.mark.parametrize(
    ("reason", "fields", "termination"),
    [
        ("stop", {}, "eos"),
        ("eos_token", {}, "eos"),
        ("stop", {"choice": {"stop_reason": "END"}}, "stop_sequence"),
        ("stop", {"choice": {"stop_reason": 151645}}, "eos"),
        ("stop", {"choice": {"matched_stop": "END"}}, "stop_sequence"),
        ("stop", {"tool_calls": [call()]}, "tool_calls"),
        ("tool_calls", {"tool_calls": [call()]}, "tool_calls"),
        ("tool_calls", {}, "malformed"),
        ("length", {}, "length"),
        ("length", {"tool_calls": [call()]}, "length"),
        ("content_filter", {}, "malformed"),
        (None, {}, "malformed"),
        ("novelty", {}, "malformed"),
        (["stop"], {}, "malformed"),
    ],
)
def test_how_an_answer_ended(reason, fields, termination):
    """Each known finish reason maps to a termination; any other is malformed, with a parse error and the raw reply."""
    found = read(completion("x", finish_reason=reason, **fields))
    assert found.termination == termination
    assert (found.parse_error is not None) == (termination == "malformed")
    assert (found.raw is not None) == (termination == "malformed")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart(name):
    """Reasoning is read into the message's reasoning under either of its field names."""
    message = read(completion("4", **{name: "2 + 2"})).message
    assert (message.content, message.reasoning) == ("4", "2 + 2")


def test_content_in_parts():
    """Text in a list of parts is text."""
    assert read(completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])).message.content == "ab"


def test_an_empty_answer_is_an_answer():
    """An empty answer is an answer."""
    for nothing in (None, ""):
        found = read(completion(nothing))
        assert (found.message.content, found.termination, found.raw) == ("", "eos", None)


def test_tool_calls_as_they_were_written():
    """Arguments are the model's own text; a server that parsed them gives JSON; fields of a provider are kept."""
    given = [call(arguments=' {"at" : 1}'), call(arguments={"at": 1}, id="c2", extra_content={"signature": "s"})]
    found = read(completion(None, finish_reason="tool_calls", tool_calls=given))
    first, second = found.message.tool_calls
    assert first == ToolCall("look", ' {"at" : 1}', "c1")
    assert (json.loads(second.arguments), second.other.to_dict()) == ({"at": 1}, {"extra_content": {"signature": "s"}})
    assert found.raw is None


def test_generated_ids_are_unique():
    """A generated call id differs from those of the same answer and of the conversation so far."""
    given = [call(id=None), call(id="call_3_0"), call(id="call_3_0")]
    body = json.dumps(completion(None, finish_reason="tool_calls", tool_calls=given)).encode()
    reply = read_reply(body, where="m at h", key=EnvironmentApiKey("KEY"))
    found = read_completion(reply, position=3, version=7, used_ids={"call_3_2", "call_3_0_0"})
    assert [call.id for call in found.message.tool_calls] == ["call_3_0_0_0", "call_3_0", "call_3_2_0"]


@pytest.mark.parametrize("url", [f"blob:image/png;{Blob.of(b'x').name}", f"blob:{Blob.of(b'x').name}", "blob:x"])
def test_a_server_cannot_reference_a_blob_of_the_run(url):
    """An image address that looks like a blob reference becomes `unknown-blob:`; raw keeps what the server sent."""
    for image in (url, {"url": url}):
        found = read(completion([{"type": "image_url", "image_url": image}]))
        again = as_message(to_openai(found.message), "again", [])
        for message in (found.message, again):
            [part] = message.parts
            assert (part.type, part.blob, part.url[:13]) == ("image", None, "unknown-blob:")
        assert url in found.raw


def test_a_server_marks_no_call_as_unreadable():
    """A server's own `error` field does not mark a call as unreadable; it is only kept in raw."""
    found = read(completion(None, finish_reason="tool_calls", tool_calls=[call(error="mine"), call(id="c2", error=1)]))
    assert found.message.tool_calls == (
        ToolCall("look", '{"at": "wall"}', "c1"),
        ToolCall("look", '{"at": "wall"}', "c2"),
    )
    assert '"mine"' in found.raw


def test_an_old_function_call():
    """The call of older servers is a tool call."""
    old = {"name": "look", "arguments": "{}"}
    found = read(completion(None, finish_reason="function_call", function_call=old))
    assert found.message.tool_calls == (ToolCall("look", "{}", "call_3_0"),)
    assert '"function_call"' in found.raw


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3}, (7, 3)),
        ({"prompt_tokens": 7}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0)),
        ({"completion_tokens": 3, "prompt_tokens": True}, None),
        ({"prompt_tokens": "7", "completion_tokens": None}, None),
        ({"prompt_tokens": -1, "completion_tokens": 3}, None),
        ({"prompt_tokens": 7, "completion_tokens": -3}, None),
        ({"prompt_tokens": 2**53, "completion_tokens": 0}, (2**53, 0)),
        ({"prompt_tokens": 7, "completion_tokens": 2**53 + 1}, None),
        ("many", None),
        (None, None),
    ],
)
def test_usage(usage, counts):
    """If one of the counts is unknown or out of range, usage is None: a 0 would be a false claim."""
    found = read({**completion(), "usage": usage}).usage
    assert (found and (found.prompt_tokens, found.completion_tokens)) == counts


def test_lone_surrogates_and_nan():
    """Replies that Python servers produce are read: a lone surrogate becomes U+FFFD, and NaN is left out."""
    body = b'{"choices": [{"message": {"content": "a\\ud83d"}, "finish_reason": "stop", "logprobs": NaN}]}'
    assert read(body).message.content == "a\ufffd"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["content", "tool_calls", "refusal", "reasoning", "function", "name", "arguments", "id", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, JSON)
def test_any_reply_is_read_or_refused(message, reason, usage):
    """Any JSON is either read or raises a PolicyError with the raw reply."""
    body = json.dumps({"choices": [{"message": message, "finish_reason": reason}], "usage": usage}).encode()
    found, error = None, None
    try:
        found = read(body)
    except PolicyError as raised:
        error = raised
    if found is None:
        assert error.raw == body.decode()
        return
    assert found.message.role == "assistant"
    assert all(call.id for call in found.message.tool_calls)
    assert len({call.id for call in found.message.tool_calls}) == len(found.message.tool_calls)
    assert found.policy_version == 7
