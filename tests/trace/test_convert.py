"""Converting other libraries' messages to ours and back."""

import base64
import dataclasses
import io
from collections import UserDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_builders import HOSTILE_TEXT, TEXT, finished, header, json_like, outcome, read
from rolltrace.trace.blob import Blob
from rolltrace.trace.convert import as_message, as_tool, to_openai
from rolltrace.trace.freeform import Note
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall, ToolSpec
from rolltrace.trace.rollout_builder import RolloutBuilder

pytestmark = pytest.mark.core

PNG = b"\x89PNG\r\n\x1a\n and more"
WAV = b"RIFF1234WAVEfmt "


def in_base64(data):
    return base64.b64encode(data).decode()


def message_of(value):
    """The message of a value, asserted to have no notes."""
    notes: list[Note] = []
    message = as_message(value, "m", notes)
    assert notes == []
    return message


def user(*content):
    return {"role": "user", "content": list(content)}


def text(value, **fields):
    return {"type": "text", "text": value, **fields}


def image(url="https://example.org/a.png", **fields):
    return {"type": "image_url", "image_url": {"url": url, **fields}}


FAITHFUL = {
    "plain": {"role": "user", "content": "hi"},
    "empty": {"role": "assistant", "content": ""},
    "empty role": {"role": "", "content": "x"},
    "named": {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "add"},
    "refused": {"role": "assistant", "content": "", "refusal": "I will not."},
    "reasoned": {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"},
    "two reasonings": {"role": "assistant", "content": "5", "reasoning_content": "2 + 3", "reasoning": "short"},
    "calls": {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1,'}},
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
            {"id": "c2", "type": "function", "index": 1, "extra_content": {"signature": "s"},
             "function": {"name": "f", "arguments": "{}", "strict": True}},
        ],
    },
    "unknown keys": {"role": "user", "content": "x", "cache_control": {"$ref": 1}, "parts": [1], "other": {"a": 2}},
    "text parts": user(text("a"), text("b"), text("")),
    "marked text": user(text("a", cache_control={"type": "ephemeral"}), text("b")),
    "interleaved": user(text("one"), image(), image(detail="low"), text("two"), image(), text("three")),
    "cached image": user({**image(), "cache_control": {"type": "ephemeral"}}),
    "carried image": user(image(f"data:image/png;base64,{in_base64(PNG)}", detail="high")),
    "audio": user({"type": "input_audio", "input_audio": {"data": in_base64(WAV), "format": "wav"}}),
    "file": user({"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}}),
    "file by id": user({"type": "file", "file": {"file_id": "f-1"}}),
    "refusal part": {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, text("but")]},
    "unknown part": user({"type": "hologram", "hologram": {"size": 3}, "beside": [None, {"$x": 1}]}),
    "late thought": {"role": "assistant", "content": [text("a"), {"type": "thinking", "thinking": "b"}, text("c")]},
    "signed thought": {
        "role": "assistant", "content": [{"type": "thinking", "thinking": "b", "signature": "s"}, text("c")],
    },
    "video": user({"type": "video_url", "video_url": {"url": "https://example.org/v.mp4", "fps": 2}}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAITHFUL)
def test_chat_dicts_come_back_as_they_were(name):
    """A chat dict that is converted and converted back is unchanged."""
    message = message_of(FAITHFUL[name])
    assert to_openai(message) == FAITHFUL[name]
    assert message_of(to_openai(message)) == message


def test_content_null_is_empty_text():
    """A message without content has empty text, and empty fields of API objects are ignored."""
    message = message_of({"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "audio": None})
    assert message == Message("assistant", "")


@pytest.mark.parametrize("content", [[text(""), text("ab")], [image(), text(""), text("ab")], [text(""), text("")]])
def test_empty_text_before_text_leaves_no_mark(content):
    """Empty pieces of text are dropped, so that conversion is stable."""
    message = message_of(user(*content))
    assert [part.type for part in message.parts if part.type == "text"] == []
    assert message_of(to_openai(message)) == message


def test_offsets_say_where_parts_stand():
    """A part's `at` is the number of characters of text before it."""
    message = message_of(user(image(), text("ab"), image(), image(), text("cde"), text("f"), image()))
    assert message.content == "abcdef"
    assert [(part.type, part.offset) for part in message.parts] == [
        ("image", 0), ("image", 2), ("image", 2), ("text", 5), ("image", 6),
    ]  # fmt: skip


def carries(kind, data, media_type):
    return Part(kind, blob=Blob.of(data), media_type=media_type)


def points(kind, url, **other):
    return Part(kind, url=url, other=FrozenMap.of(other) if other else None)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (image(f"data:image/png;base64,{in_base64(PNG)}"), carries("image", PNG, "image/png")),
        (image("http://example.org/x"), points("image", "http://example.org/x")),
        (image("data:text/plain,hello"), points("image", "data:text/plain,hello")),
        ({"type": "image", "image": "https://example.org/x"}, points("image", "https://example.org/x")),
        ({"type": "image", "image": PNG}, carries("image", PNG, "image/png")),
        ({"type": "image", "data": in_base64(PNG)}, carries("image", PNG, "image/png")),
        ({"type": "image", "image": bytearray(b"?")}, carries("image", b"?", "application/octet-stream")),
        (
            {"type": "input_image", "image_url": "https://e", "detail": "low"},
            points("image", "https://e", detail="low"),
        ),
        ({"type": "image", "detail": 1, "url": "https://e", "mine": 2}, points("image", "https://e", mine=2, detail=1)),
        (
            {"type": "input_audio", "input_audio": {"data": in_base64(b"abc"), "format": "mp3"}},
            carries("audio", b"abc", "audio/mp3"),
        ),
        ({"type": "audio_url", "audio_url": {"url": "https://e/a"}}, points("audio", "https://e/a")),
        ({"type": "audio", "audio": memoryview(WAV)}, carries("audio", WAV, "audio/wav")),
        ({"type": "file", "file": {"file_data": in_base64(b"%PDF-1")}}, carries("file", b"%PDF-1", "application/pdf")),
    ],
)
def test_bytes_are_blobs_and_urls_are_urls(part, expected):
    """A part with bytes becomes a blob; one with a URL keeps it."""
    [read_back] = message_of(user(part)).parts
    assert read_back == expected
    if expected.blob is not None:
        assert read_back.blob.data == expected.blob.data
    message = message_of(user(part))
    assert message_of(to_openai(message)) == message


class Picture:
    """Like an image of PIL."""

    size = (1, 1)

    def save(self, file: io.BytesIO, format: str) -> None:  # noqa: A002 - PIL's name
        assert format == "PNG"
        file.write(PNG)


class Broken(Picture):
    def save(self, file, format):  # noqa: A002
        raise OSError("no")


def test_images_in_memory_are_saved():
    """An image object is stored as PNG; one that cannot be saved is a part without bytes, with a note."""
    message = message_of({"role": "user", "content": [{"type": "image", "image": Picture()}]})
    assert message.parts == (Part("image", blob=Blob.of(PNG), media_type="image/png"),)
    notes: list[Note] = []
    broken = as_message(user({"type": "image", "image": Broken()}), "m", notes)
    assert broken.parts == (Part("image"),)
    assert "OSError while saving" in notes[0].message


@pytest.mark.parametrize("part", [image("data:image/png;base64,!!"), {"type": "image"}, {"type": "image", "image": 5}])
def test_parts_that_carry_nothing_readable_are_noted(part):
    """A part whose bytes cannot be read stays a part, and a note says what was expected."""
    notes: list[Note] = []
    message = as_message(user(part), "m", notes)
    assert [part.type for part in message.parts] == ["image"]
    assert notes[0].message.startswith("expected")
    assert as_message(to_openai(message), "m", []) == message


def tinker_calls():
    """Tool calls as tinker-cookbook has them."""
    pydantic = pytest.importorskip("pydantic")

    class FunctionBody(pydantic.BaseModel):
        name: str
        arguments: str

    class Call(pydantic.BaseModel):
        type: str = "function"
        id: str | None = None
        function: FunctionBody

    class Unparsed(pydantic.BaseModel):
        raw_text: str
        error: str

    return Call(id="c1", function=FunctionBody(name="f", arguments="{ }")), Unparsed(raw_text="<f", error="cut")


def test_tinker_cookbook_messages():
    """Content lists of thoughts, text, images and calls, with pydantic calls beside them, are converted."""
    call, unparsed = tinker_calls()
    expected = (ToolCall("f", "{ }", "c1"), ToolCall("", "<f", error="cut"))
    listed = message_of({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Look: "},
        {"type": "image", "image": Picture()}, {"type": "tool_call", "tool_call": call},
        {"type": "unparsed_tool_call", "raw_text": "<f", "error": "cut"},
    ]})  # fmt: skip
    assert listed.reasoning == "hm"
    assert listed.content == "Look: "
    assert [part.offset for part in listed.parts] == [6]
    assert listed.tool_calls == expected
    beside = message_of({"role": "assistant", "content": "", "tool_calls": [call], "unparsed_tool_calls": [unparsed]})
    assert beside.tool_calls == expected
    assert message_of(to_openai(listed)) == listed


def test_arguments_that_were_parsed_are_json_again():
    """Arguments given as a map are written as JSON, with a user's own `$` keys unchanged."""
    call = {"id": "1", "function": {"name": "f", "arguments": {"$ref": "é", "n": [1.5]}}}
    message = message_of({"role": "assistant", "content": "", "tool_calls": [call]})
    assert message.tool_calls[0].arguments == '{"$ref":"é","n":[1.5]}'


@dataclasses.dataclass
class DataMessage:
    role: str
    content: str


def test_objects_with_fields_are_messages():
    """Pydantic models and dataclasses with a message's fields are messages."""
    assert message_of(DataMessage("user", "hi")) == Message("user", "hi")
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        role: str
        content: str | None
        tool_calls: list[dict] | None = None

    assert message_of(Model(role="user", content="hi")) == Message("user", "hi")


class Hostile(UserDict):
    def get(self, key, default=None):
        raise RuntimeError("no")

    __getitem__ = get


class HostileDump:
    def model_dump(self):
        raise RuntimeError("no")


class HostileKeys(dict):
    def items(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        None, 5, "hello", b"x", [], object(), Hostile(), HostileDump(), HostileKeys(role="user"), {},
        {"role": 5, "content": 6, "name": [], "tool_call_id": {}, "reasoning": 7, "tool_calls": "ab"},
        {"role": "user", "content": [None, 5, b"x", [], {"type": 5}, {"type": None, "a": 1}, Hostile(), HostileDump()]},
        {"role": "user", "content": {"a": 1}},
        {"role": "a", "content": "", "tool_calls": [None, 5, "x", {}, Hostile(), {"function": 5}, {"function": {}}]},
        Message(5, None, parts=[Part("image", offset="x", blob=b"bytes", other={"a": 1})], tool_calls=[{"name": "f"}]),
        Message("user", "x", parts=(5,)),
        Message("user", "x", parts=None),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_anything_is_a_message_of_some_kind(value):
    """Nothing raises; a value that is no message is noted, and its line can be read."""
    notes: list[Note] = []
    message = as_message(value, "m", notes)
    assert notes
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([message])
    assert finished(rollout_builder).messages == (message,)


CONTENT_PARTS = st.one_of(
    TEXT,
    st.builds(text, TEXT),
    st.builds(lambda value: text(value, mark=1), TEXT),
    st.builds(image, st.sampled_from(["https://e/x", f"data:image/png;base64,{in_base64(PNG)}", "data:;base64,aGk="])),
    st.builds(lambda value: {"type": "thinking", "thinking": value}, TEXT),
    st.builds(lambda value: {"type": "refusal", "refusal": value}, TEXT),
    st.builds(lambda data: {"type": "audio", "audio": data}, st.binary(max_size=20)),
    st.builds(
        lambda data: {"type": "input_audio", "input_audio": {"data": in_base64(data), "format": "wav"}}, st.binary()
    ),
    st.builds(lambda data: {"type": "file", "file": {"file_data": in_base64(data), "filename": "f"}}, st.binary()),
    st.fixed_dictionaries({"type": TEXT, "payload": json_like()}),
    st.builds(lambda value: {"type": "unparsed_tool_call", "raw_text": value, "error": "bad"}, TEXT),
)
FUNCTIONS = st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}, optional={"strict": st.just(True)})
CALLS = st.fixed_dictionaries(
    {"id": st.none() | TEXT, "function": FUNCTIONS},
    optional={"type": st.sampled_from(["function", "custom"]), "index": st.integers(0, 9), "error": TEXT},
)
CHATS = st.fixed_dictionaries(
    {"role": TEXT, "content": st.one_of(st.none(), TEXT, st.lists(CONTENT_PARTS, max_size=6))},
    optional={
        "name": TEXT, "tool_call_id": TEXT, "reasoning_content": TEXT, "reasoning": TEXT,
        "tool_calls": st.lists(CALLS, max_size=3), "custom": json_like(), "other": json_like(),
    },
)  # fmt: skip


@given(CHATS)
def test_a_frozen_message_is_stable(chat):
    """Converting a message to a dict and back gives the same message, so an env that returns it changed nothing."""
    message = as_message(chat, "m", [])
    assert as_message(to_openai(message), "m", []) == message


@given(CHATS)
def test_a_message_comes_back_from_a_line(chat):
    """A message read from a record equals the recorded one, and converts to the same dict except for its bytes."""
    message = as_message(chat, "m", [])
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([message])
    line = rollout_builder.encode(outcome())
    [back] = read(line).messages
    assert back == message
    assert as_message(to_openai(back), "m", []) == message
    assert {blob.name for blob in line.blobs} == {part.blob.name for part in message.parts if part.blob is not None}


def tuples(items):
    return st.lists(items, max_size=3).map(tuple)


OPTIONAL_TEXT = st.none() | st.text(min_size=1, max_size=5, alphabet="ab")
FROZEN = st.none() | st.builds(lambda value: FrozenMap.of({"custom": [value]}), json_like())


@given(
    st.builds(
        Message,
        role=TEXT,
        content=TEXT,
        parts=st.just(()),
        tool_calls=tuples(st.builds(ToolCall, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, FROZEN)),
        tool_call_id=st.none() | TEXT,
        name=st.none() | TEXT,
        reasoning=OPTIONAL_TEXT,
        other=FROZEN,
    ),
    tuples(st.tuples(st.sampled_from(["image", "audio", "video", "file", "odd"]), st.integers(0, 12), FROZEN)),
)  # fmt: skip
def test_messages_made_by_hand_come_back(message, parts):
    """`as_message` inverts `to_openai`, also for messages that never were dicts."""
    made = []
    for kind, at, other in sorted(parts, key=lambda part: part[1]):
        at = min(at, len(message.content))
        if kind == "odd":
            made.append(Part(kind, offset=at, other=other))
        else:
            made.append(Part(kind, offset=at, blob=Blob.of(b"x"), media_type=f"{kind}/x", other=other))
    fields = {name: getattr(message, name) for name in Message.__struct_fields__}
    whole = Message(**{**fields, "parts": tuple(made)})
    assert as_message(to_openai(whole), "m", []) == whole


@given(
    st.builds(
        Message,
        role=HOSTILE_TEXT,
        content=HOSTILE_TEXT,
        parts=tuples(st.builds(Part, HOSTILE_TEXT, st.integers(0, 12), HOSTILE_TEXT, HOSTILE_TEXT)),
        tool_calls=tuples(st.builds(ToolCall, HOSTILE_TEXT, HOSTILE_TEXT, HOSTILE_TEXT, HOSTILE_TEXT)),
        tool_call_id=HOSTILE_TEXT,
        name=HOSTILE_TEXT,
        reasoning=HOSTILE_TEXT,
    )
)  # fmt: skip
def test_lone_surrogates_anywhere_in_a_message(message):
    """Text that UTF-8 cannot hold is replaced and noted when its line is written."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([message])
    rollout_builder.mark_prompt_sent()
    rollout_builder.set_raw_response(message.content)
    rollout_builder.step(message, reward=1.0, raw=message.content, parse_error=message.role)
    rollout = finished(rollout_builder)
    assert rollout.messages[0] == rollout.messages[1]
    try:
        repr(message).encode()
        for part in [message, *message.parts, *message.tool_calls]:
            for name in part.__struct_fields__:
                str(getattr(part, name)).encode()
    except UnicodeEncodeError:
        assert rollout.notes
    else:
        assert rollout.messages[0] == message
        assert rollout.notes == ()


def test_joining_surrogates_moves_later_parts():
    """If a surrogate pair becomes one character, a part after it keeps its place in the text."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "\ud83d\ude00ab", parts=(Part("image", offset=3, url="u"),))])
    [message] = finished(rollout_builder).messages
    assert message.content == "😀ab"
    assert message.content[: message.parts[0].offset] == "😀a"


def test_sound_messages_are_not_copied():
    """A message of ours is used as it is, without a copy."""
    message = Message("user", "hi", tool_calls=(ToolCall("f"),), parts=(Part("image"),))
    assert as_message(message, "m", []) is message


SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}},
        {"name": "f", "description": "d", "parameters": SCHEMA},
        ToolSpec("f", "d", FrozenMap.of(SCHEMA)),
        ToolSpec("f", "d", SCHEMA),
    ],
    ids=["nested", "flat", "ours", "by hand"],
)
def test_tools_keep_their_schema(tool):
    """A tool's schema is read back exactly, with its references, also from a line."""
    notes: list[Note] = []
    frozen = as_tool(tool, "t", notes)
    assert (frozen.name, frozen.description, frozen.parameters.to_dict()) == ("f", "d", SCHEMA)
    rollout_builder = RolloutBuilder(header())
    rollout_builder.step(Message("assistant", ""), reward=0, tools=[tool])
    [[back]] = finished(rollout_builder).tools
    assert back == frozen
    assert back.parameters.to_dict() == SCHEMA


@pytest.mark.parametrize("tool", [None, 5, Hostile(), HostileDump(), {"function": {"name": 5, "strict": True}}])
def test_anything_is_a_tool_of_some_kind(tool):
    """A value that is no tool is noted and does not raise."""
    notes: list[Note] = []
    assert type(as_tool(tool, "t", notes)) is ToolSpec
    assert notes
