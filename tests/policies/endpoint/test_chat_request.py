"""The body of a chat request."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import InputError, PolicyError
from rolltrace.policies.endpoint.chat_request import chat_messages, request_body, validate_extra
from rolltrace.policies.policy import Request
from rolltrace.trace.blob import Blob
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import join_surrogates
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, Sampling, ToolCall, ToolSpec


def body_of(request, **settings):
    given = {"max_tokens_field": "max_tokens", "send_reasoning": True, "extra": {}, **settings}
    return json.loads(request_body(request, "m", **given))


def test_settings_are_sent_as_they_are_named():
    """Only settings that are set are sent, and the seed fits the range that all servers take."""
    sampling = Sampling(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, max_tokens=8, stop=("a", "b"), other=FrozenMap.of({"best": 1})
    )
    request = Request(messages=(Message("user", "Hi."),), sampling=sampling, seed=2**62 + 5)
    assert body_of(request) == {
        "model": "m", "messages": [{"role": "user", "content": "Hi."}], "temperature": 0.5, "top_p": 0.9, "top_k": 40,
        "min_p": 0.1, "max_tokens": 8, "stop": ["a", "b"], "seed": 5, "best": 1,
    }  # fmt: skip
    assert body_of(Request(messages=())) == {"model": "m", "messages": []}


def test_extra_fields_add_replace_and_take_away():
    """`extra` can add, replace and remove fields, for servers that differ."""
    request = Request(messages=(), sampling=Sampling(max_tokens=8, temperature=1.0), seed=3)
    sent = body_of(
        request, max_tokens_field="max_completion_tokens", extra={"seed": None, "tools": [], "think": {"on": 1}}
    )
    assert sent == {
        "model": "m", "messages": [], "max_completion_tokens": 8, "temperature": 1.0, "tools": [], "think": {"on": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "stop",
        "seed",
        "own",
    ],
)
def test_extra_fields_are_no_sampling(name):
    """`extra` may remove a sampling setting but not set it, so that the record has it in one place."""
    with pytest.raises(InputError, match=rf"no sampling settings in `extra`, got {name}: .*--sampling"):
        validate_extra({name: 0, "think": 1}, "own")
    assert validate_extra({name: None, "think": 1}, "own") == {name: None, "think": 1}
    assert validate_extra(None) == {}


def test_tools_are_sent_with_their_schemas():
    """A tool's schema is sent with its own `$` keys unchanged."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    request = Request(messages=(), tools=(ToolSpec("add", "Adds.", FrozenMap.of(schema)),))
    assert body_of(request)["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": schema}}
    ]


def test_images_are_sent_as_data():
    """An image is sent with its bytes; an image of which only the name is known is refused."""
    image = Part("image", offset=4, blob=Blob.of(b"pixels"), media_type="image/png")
    [sent] = chat_messages([Message("user", "See.", parts=(image,))])
    url = f"data:image/png;base64,{base64.b64encode(b'pixels').decode()}"
    assert sent["content"] == [{"type": "text", "text": "See."}, {"type": "image_url", "image_url": {"url": url}}]
    unknown = Part("image", blob=Blob(Blob.of(b"pixels").name), media_type="image/png")
    with pytest.raises(PolicyError, match="bytes of the image in message 1"):
        chat_messages([Message("user", "x"), Message("user", "", parts=(unknown,))])


def test_marks_of_ours_are_not_sent():
    """A call's parse error and the mark of a refusal are not sent to servers."""
    broken = ToolCall("", "gibberish", error="not a tool call")
    [sent] = chat_messages([Message("assistant", "No.", tool_calls=(broken,), other=FrozenMap.of({"refusal": True}))])
    assert sent == {
        "role": "assistant", "content": "No.",
        "tool_calls": [
            {
                "id": "call_0_0", "type": "function",
                "function": {"name": "unreadable", "arguments": '{"unreadable":"gibberish"}'},
            }
        ],
    }  # fmt: skip


def test_answers_without_an_id_are_tied_to_their_calls():
    """Where neither call nor answer has an id, they are matched in order."""
    calls = (ToolCall("a"), ToolCall("b", id="given"), ToolCall("c"))
    tools = [Message("tool", "1"), Message("tool", "2", tool_call_id="given"), Message("tool", "3")]
    sent = chat_messages([Message("user", "x"), Message("assistant", "", tool_calls=calls), *tools])
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_1_0", "given", "call_1_2"]
    assert [tool["tool_call_id"] for tool in sent[2:]] == ["call_1_0", "given", "call_1_2"]


def test_an_invented_id_is_no_other_call_s():
    """The id of a call without one is not that of another call of the conversation."""
    first = Message("assistant", "", tool_calls=(ToolCall("look", "{}"),))
    second = Message("assistant", "", tool_calls=(ToolCall("look", "{}", "call_0_0"),))
    ids = [message["tool_calls"][0]["id"] for message in chat_messages([first, second])]
    assert ids == ["call_0_0_0", "call_0_0"]


def test_reasoning_is_sent_unless_told_otherwise():
    """Some servers refuse a conversation with earlier reasoning, some need it."""
    message = Message("assistant", "4", reasoning="2 + 2")
    assert chat_messages([message])[0]["reasoning_content"] == "2 + 2"
    assert chat_messages([message], send_reasoning=False) == [{"role": "assistant", "content": "4"}]


TEXT = st.lists(st.characters() | st.sampled_from(["\ud83d", "\udc00"]), max_size=8).map("".join)


@given(st.lists(st.tuples(TEXT, TEXT, st.none() | TEXT), max_size=4), TEXT)
def test_any_conversation_becomes_a_body(calls, text):
    """Whatever a model wrote, half characters included, the next request is JSON that servers take."""
    message = Message("assistant", text, tool_calls=tuple(ToolCall(*call) for call in calls), reasoning=text)
    sent = body_of(Request(messages=(Message("user", text), message)))
    assert sent["messages"][0]["content"] == join_surrogates(text)
    for call in sent["messages"][1].get("tool_calls", ()):
        assert call["id"]
        assert call["function"]["name"]
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert as_message(sent["messages"][0], "", []).role == "user"
