"""Whole API responses, unpacked into a message and the facts about the turn."""

import pytest

from rolltrace.errors import InputError
from rolltrace.trace.api_response import unpack_response
from rolltrace.trace.convert import as_message
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import Termination

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def chat(finish_reason="stop", choices=1, **message):
    """A chat completion as the API sends it."""
    message = {"role": "assistant", "content": "4", "refusal": None, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "qwen",
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}
            for index in range(choices)
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }


def responses(*output, status="completed", **fields):
    """A response of the Responses API as it is sent."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "model": "qwen",
        "output": list(output),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 12,
        },
        **fields,
    }


def said(text, identity="msg_1"):
    """An item of the Responses API with the model's text."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": identity, "role": "assistant", "status": "completed", "content": [part]}


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "two and two"}, {"type": "summary_text", "text": "so four"}],
}
FUNCTION = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "add",
    "arguments": '{"a": 1}',
    "status": "completed",
}


def as_sent(response):
    return response


def as_openai(response):
    """The same as an object of the `openai` package."""
    openai = pytest.importorskip("openai")
    kind = openai.types.chat.ChatCompletion if "choices" in response else openai.types.responses.Response
    return kind.construct(**response)  # as the client does with a server's reply


FORMS = pytest.mark.parametrize("form", [as_sent, as_openai])


def message_of(unpacked):
    """The message as it is recorded, asserted to have no notes."""
    notes = []
    message = as_message(unpacked.message, "response", notes)
    assert notes == []
    return message


@FORMS
@pytest.mark.parametrize(
    ("finish_reason", "fields", "termination"),
    [
        ("stop", {}, Termination.EOS),
        ("length", {}, Termination.LENGTH),
        ("tool_calls", {"content": None, "tool_calls": [CALL]}, Termination.TOOL_CALLS),
        ("stop", {"tool_calls": [CALL]}, Termination.TOOL_CALLS),
    ],
)
def test_chat_completion(form, finish_reason, fields, termination):
    """A chat completion gives its message, termination, token counts and model."""
    unpacked = unpack_response(form(chat(finish_reason, **fields)))
    message = message_of(unpacked)
    assert message.content == ("4" if fields.get("content", "4") else "")
    assert message.tool_calls == ((ToolCall("add", '{"a": 1}', "c1"),) if "tool_calls" in fields else ())
    assert (unpacked.termination, unpacked.parse_error) == (termination, None)
    assert unpacked.facts["model"] == "qwen"
    assert unpacked.facts["finish_reason"] == finish_reason
    assert unpacked.usage is not None


@FORMS
def test_reasoning_of_a_chat_completion(form):
    """Fields that servers add to the message, such as its reasoning, are kept."""
    assert message_of(unpack_response(form(chat(reasoning_content="2 and 2")))).reasoning == "2 and 2"


@FORMS
def test_unusual_end(form):
    """An unknown finish reason is a malformed completion, with the reason."""
    unpacked = unpack_response(form(chat("content_filter")))
    assert unpacked.termination is Termination.MALFORMED
    assert "content_filter" in unpacked.parse_error


@FORMS
def test_several_choices_are_refused(form):
    """Several choices are several answers: the error says to record each."""
    with pytest.raises(InputError, match=r"one choice, got 2: record each"):
        unpack_response(form(chat(choices=2)))


@FORMS
def test_no_choices_are_a_malformed_completion(form):
    """A response without choices is recorded as malformed, with its other fields."""
    unpacked = unpack_response(form(chat(choices=0)))
    assert message_of(unpacked) == Message("assistant", "")
    assert unpacked.termination is Termination.MALFORMED
    assert unpacked.parse_error == "the response has no choices"
    assert unpacked.facts["model"] == "qwen"
    assert unpacked.usage is not None


def test_one_choice_and_a_text_completion():
    """A single choice, and a text completion, are unpacked too."""
    assert message_of(unpack_response(chat("length")["choices"][0])).content == "4"
    text = {"id": "1", "model": "qwen", "choices": [{"index": 0, "text": " 4", "finish_reason": "stop"}]}
    assert message_of(unpack_response(text)) == Message("assistant", " 4")


def test_chunk_of_a_stream_is_refused():
    """A chunk of a stream is not recorded as the answer."""
    with pytest.raises(InputError, match="stream"):
        unpack_response({"choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": None}]})


@FORMS
def test_responses_api(form):
    """Text, reasoning and calls of the Responses API are one message."""
    unpacked = unpack_response(form(responses(REASONING, said("Adding."), FUNCTION)))
    assert message_of(unpacked) == Message(
        "assistant",
        "Adding.",
        tool_calls=(ToolCall("add", '{"a": 1}', "c1"),),
        reasoning="two and two\n\nso four",
    )
    assert (unpacked.termination, unpacked.parse_error) == (Termination.TOOL_CALLS, None)
    assert unpacked.facts["model"] == "qwen"


@FORMS
def test_texts_and_other_items_of_the_responses_api(form):
    """Several texts stay apart, and an item that is not text is a part of the message."""
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "2 + 2"},
    }
    message = message_of(unpack_response(form(responses(said("Let me see."), search, said(" 4", "msg_2")))))
    assert message.content == "Let me see. 4"
    assert [(part.type, part.offset) for part in message.parts] == [("web_search_call", 11)]


@FORMS
@pytest.mark.parametrize(
    ("fields", "termination", "reason"),
    [
        ({}, Termination.EOS, None),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, Termination.LENGTH, None),
        (
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
            Termination.MALFORMED,
            "content_filter",
        ),
        ({"status": "failed", "error": {"code": "server_error", "message": "boom"}}, Termination.MALFORMED, "boom"),
    ],
)
def test_ends_of_the_responses_api(form, fields, termination, reason):
    """The status of a response says how it ended."""
    unpacked = unpack_response(form(responses(said("4"), **fields)))
    assert message_of(unpacked) == Message("assistant", "4")
    assert unpacked.termination is termination
    assert (unpacked.parse_error is None) == (reason is None)
    assert reason is None or reason in unpacked.parse_error


@pytest.mark.parametrize(
    "value",
    [
        "4",
        Message("assistant", "4"),
        {"role": "assistant", "content": "4"},
        {"role": "assistant", "content": "4", "output": [], "choices": []},
        {"choices": "many"},
        {},
        None,
        5,
        object(),
        chat()["choices"],
    ],
)
def test_other_values_are_not_unpacked(value):
    """A message, or any other value, is not unpacked."""
    assert unpack_response(value) is None
