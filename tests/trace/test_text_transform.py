"""The same rollout with hashed or redacted text: what stays, and what replaces the rest."""

import math
from inspect import signature

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from rollout_builders import HOSTILE_TEXT, STARTED, TEXT, finished, json_like, one_step
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.freeform import Placeholder
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.outcome_row import OutcomeRow
from rolltrace.trace.pattern_redaction import redact_pattern
from rolltrace.trace.rollout import EndedBeforeFirstTurn, Header, Rollout
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import Score
from rolltrace.trace.step_table import TrailingRow
from rolltrace.trace.text_transform import HashText, RedactText, hash_text, transform_record


@given(TEXT)
def test_hashed_text_is_length_and_hash(text):
    """A hashed text has its length and tells it from others; empty text stays empty."""
    assert hash_text(text) == (f"hashed:{len(text)}:{xxhash.xxh3_64(text.encode()).hexdigest()}" if text else "")


@given(HOSTILE_TEXT, HOSTILE_TEXT)
def test_equal_texts_stay_equal(one, other):
    """Hashes are equal exactly if the texts are; no text raises."""
    stand_ins = hash_text(one), hash_text(other)
    if one == other:
        assert stand_ins[0] == stand_ins[1]
    elif not any("\ud800" <= letter <= "\udfff" for letter in one + other):
        assert stand_ins[0] != stand_ins[1]


def leaves(value):
    """The leaves of a nested value, in order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def shape(value):
    """A nested value without its texts and bytes: keys, numbers and lengths."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "text" if isinstance(value, str | bytes) else repr(value)


@given(st.dictionaries(TEXT, json_like(), max_size=4))
def test_hashed_map_keeps_keys_and_numbers(values):
    """In a free-form map, keys, numbers and structure stay; every text and all bytes are hashed."""
    kept = HashText().mapping(values)
    assert shape(kept) == shape(values)
    texts = [leaf for leaf in leaves(kept) if isinstance(leaf, str)]
    assert all(not text or text.startswith("hashed:") for text in texts)
    assert not [leaf for leaf in leaves(kept) if isinstance(leaf, bytes)]


def test_hashed_message_keeps_its_structure():
    """Role, names, ids, kinds and counts stay; content, reasoning, parts and arguments are hashed."""
    said = Message(
        "assistant", "hello", parts=(Part("image", offset=3, url="http://x", media_type="image/png"),),
        tool_calls=(ToolCall("add", '{"a": 1}', id="c1", error="cut"),), tool_call_id="c0", name="bob", reasoning="hm",
    )  # fmt: skip
    assert HashText().message(said) == Message(
        "assistant", hash_text("hello"),
        parts=(Part("image", text=hash_text("http://x"), media_type="image/png"),),
        tool_calls=(ToolCall("add", hash_text('{"a": 1}'), id="c1", error=hash_text("cut")),),
        tool_call_id="c0", name="bob", reasoning=hash_text("hm"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "media_type", "kept"),
    [
        *[(kind, None, (kind, None)) for kind in ("image", "audio", "video", "file", "thinking", "refusal", "text")],
        ("image", "image/png", ("image", "image/png")),
        ("file", "application/pdf", ("file", "application/pdf")),
        ("the password is 7", "image/my-secret", (hash_text("the password is 7"), hash_text("image/my-secret"))),
        ("Image", "image/png; name=ann", (hash_text("Image"), hash_text("image/png; name=ann"))),
        ("", "", ("", "")),
    ],
)
def test_known_kinds_of_parts_stay(kind, media_type, kept):
    """An unknown kind may be any text, so it is hashed; those of the format stay."""
    [part] = HashText().message(Message("user", "", parts=(Part(kind, media_type=media_type),))).parts
    assert (part.type, part.media_type) == kept


def test_placeholder_stays_a_placeholder():
    """A placeholder stays one, with its description hashed."""
    rollout = finished(one_step(env_state={"lock": object(), "nan": math.nan}))
    kept = decode_rollout(encode_rollout(transform_record(rollout, HashText()))).steps[0].env_state
    assert isinstance(kept["lock"], Placeholder)
    assert kept["lock"]["$unrepresentable"].startswith("hashed:")
    assert math.isnan(kept["nan"])


def test_a_hashed_rollout_can_be_read_back():
    """A hashed rollout can be encoded and decoded, and its steps find their messages."""
    rollout = transform_record(finished(one_step(extra={"why": "because"})), HashText())
    assert decode_rollout(encode_rollout(rollout)) == rollout
    assert rollout.steps[0].trace.prompt == (Message("user", hash_text("2 + 2?")),)
    assert rollout.steps[0].extra == {"why": hash_text("because")}


def test_identity_changes_nothing():
    """A function that returns its argument leaves the rollout unchanged, except for its tokens."""
    rollout = finished(one_step(extra={"why": "because"}, raw="4!", parse_error="odd", logs={"a": [1]}))
    assert transform_record(rollout, RedactText(lambda value: value)) == rollout


def test_a_text_field_is_shown_as_a_map():
    """A text field is passed to the function as a map under its name; if the entry is removed, the field is empty."""
    shown = []

    def redact(value):
        shown.append(value)
        return {} if isinstance(value, dict) else value

    rollout = transform_record(finished(one_step(raw="4!", parse_error="odd")), RedactText(redact))
    assert {"raw": "4!"} in shown
    assert {"parse_error": "odd"} in shown
    assert (rollout.steps[0].raw, rollout.steps[0].parse_error) == ("", "")


@pytest.mark.parametrize(
    "redact",
    [
        lambda value: None,
        lambda value: "text",
        lambda value: 5,
        lambda value: {"raw": 5} if isinstance(value, dict) else value,
        lambda value: Message("user", 5) if isinstance(value, Message) else value,
        lambda value: {"role": "user", "content": object()} if isinstance(value, Message) else value,
    ],
)
def test_wrong_answers_are_refused(redact):
    """A function that returns neither message nor map is an error, so that the text can be hashed instead."""
    with pytest.raises(TypeError, match="Expected redact to"):
        transform_record(finished(one_step(raw="4!")), RedactText(redact))


@pytest.mark.parametrize("redact", [lambda value: f"{value} secret", lambda value: ["secret"], lambda value: b"secret"])
@pytest.mark.parametrize("place", ["message", "mapping", "text"])
def test_the_error_does_not_contain_the_wrong_answer(redact, place):
    """The error names only the type of the returned value, because it is logged."""
    redaction = RedactText(lambda value: {"raw": [redact(value)]} if place == "text" else redact(value))
    given = {"message": (Message("user", "secret"),), "mapping": ({"a": "secret"},), "text": ("raw", "secret")}[place]
    with pytest.raises(TypeError, match="a value of type") as raised:
        getattr(redaction, place)(*given)
    assert "secret" not in str(raised.value)


# Every field that can hold text


IDENTITY = {"id", "run", "session", "split", "env", "task", "group", "policy", "policy_version", "tags[]"}
SAID_BY = {"role", "name", "tool_call_id", "tool_calls[].name", "tool_calls[].id"}
IN_PLACE_OF_TEXT = {"tools[][].name", "error.type", "notes[].path", "stop_reason"}

MESSAGES = ("messages[]", "steps[].response", "calls[].prompt[]", "calls[].reply")

STAYS = {
    Rollout: IDENTITY
    | IN_PLACE_OF_TEXT
    | {f"{place}.{field}" for place in MESSAGES for field in SAID_BY}
    | {"steps[].policy_version", "calls[].role", "calls[].policy", "calls[].policy_version", "calls[].error.type",
       "calls[].about"},
    Score: {"id", "run", "session", "rollout", "name", "producer", "error.type"}
    | {f"calls[].{place}.{field}" for place in ("prompt[]", "reply") for field in SAID_BY}
    | {"calls[].role", "calls[].policy", "calls[].policy_version", "calls[].error.type", "calls[].about"}
    | {f"group.{field}" for field in ("split", "env", "group")},
}  # fmt: skip
"""By record, the fields whose text stays as it is where text is hashed: which rollout it is, who, and what kind."""


def specimen(kind, path, fill):
    """A value of a type, with a unique text from `fill` in each place that can hold text."""
    if isinstance(kind, inspect.Metadata):
        return specimen(kind.type, path, fill)
    if isinstance(kind, inspect.StructType):
        fields = {each.name: specimen(each.type, f"{path}.{each.name}".lstrip("."), fill) for each in kind.fields}
        return kind.cls(**fields)
    if isinstance(kind, inspect.UnionType):
        kinds = [each.type if isinstance(each, inspect.Metadata) else each for each in kind.types]
        kinds = [each for each in kinds if not isinstance(each, inspect.NoneType | inspect.LiteralType)]
        held = [each for each in kinds if isinstance(each, inspect.StructType | inspect.StrType | inspect.CustomType)]
        return specimen((held or kinds)[0], path, fill)
    if isinstance(kind, inspect.VarTupleType):
        return (specimen(kind.item_type, f"{path}[]", fill),)
    if isinstance(kind, inspect.TupleType):
        return (0, 1)
    if isinstance(kind, inspect.DictType):
        return {"key": fill(path)} if isinstance(kind.value_type, inspect.AnyType) else {"key": 1.0}
    if isinstance(kind, inspect.CustomType):
        return FrozenMap.of({"key": fill(path)}) if kind.cls is FrozenMap else Blob.of(fill(path).encode())
    if isinstance(kind, inspect.EnumType):
        return next(iter(kind.cls))
    return {
        inspect.StrType: lambda: fill(path), inspect.IntType: lambda: 1, inspect.FloatType: lambda: 1.5,
        inspect.BoolType: lambda: True, inspect.DateTimeType: lambda: STARTED,
    }[type(kind)]()  # fmt: skip


def filled(record):
    """A record with a text in each place that can hold one, and the texts by place."""
    texts = {}

    def fill(path):
        return texts.setdefault(path, f"<{path}>")

    return specimen(inspect.type_info(record), "", fill), texts


def surviving(record, texts):
    """The places whose text is still in a record."""
    shown = repr(record)
    blobs = {f"<{path}>": Blob.of(f"<{path}>".encode()).name for path in texts}
    return {path for path, text in texts.items() if text in shown or f"Blob('{blobs[text]}'" in shown}


@pytest.mark.parametrize("record", STAYS)
def test_every_text_field_is_hashed_or_stays_on_purpose(record):
    """A field that is added to any record must be hashed, or be listed as staying."""
    whole, texts = filled(record)
    assert surviving(whole, texts) == texts.keys()
    assert surviving(transform_record(whole, HashText()), texts) == STAYS[record]


def recorded(rollout, transform):
    """The line of a rollout with these fields, as a builder with the transform records it."""
    headers = {name: getattr(rollout, name) for name in Header.__struct_fields__ if name != "v"}
    builder = RolloutBuilder(Header(**headers), transform=transform)
    builder.extend(rollout.messages)
    builder.mark_prompt_sent()
    [step] = rollout.steps
    given = {name: getattr(step, name) for name in step.__struct_fields__}
    for name in ("step", "prompt", "response"):
        del given[name]
    given |= {"tools": rollout.tools[0], "sampling": rollout.sampling[0]}
    named = {name: given.pop(name) for name in signature(builder.step).parameters if name in given}
    builder.step(step.response, **named, fields=given)
    builder.replace([Message("user", "")])  # so that the step has its response inline
    builder.set_raw_response(rollout.pending_raw)
    builder.grade = rollout.grade
    builder.calls.extend(rollout.calls)
    builder.notes.extend(rollout.notes)
    ended = {name: getattr(rollout.ended_before_first_turn, name) for name in EndedBeforeFirstTurn.__struct_fields__}
    builder.end_before_first_turn(**ended)
    names = (*OutcomeRow.__struct_fields__, *TrailingRow.__struct_fields__)
    outcome = {name: getattr(rollout, name) for name in names if name not in ("calls", "notes", "grade")}
    del outcome["ended_before_first_turn"]
    return decode_rollout(builder.encode(outcome).data)


def test_no_text_that_must_be_hashed_is_recorded():
    """Under `numbers`, a builder writes no text but that of the fields which stay on purpose."""
    whole, texts = filled(Rollout)
    written = surviving(recorded(whole, None), texts)
    stays = STAYS[Rollout] | {"calls[].quotes[].rollout"}
    assert len(written) > len(stays)
    assert surviving(recorded(whole, HashText()), texts) <= stays & texts.keys()
    hidden = {path for path in texts if path not in stays and "quotes" not in path}
    assert hidden - written == {"env_args"}  # its key looks like that of a secret


@pytest.mark.parametrize("record", STAYS)
def test_every_text_field_is_passed_to_the_function(record):
    """A user's function gets every text but those that stay on purpose, and what it removes is gone."""

    def redact(value):
        return Message("user", "") if isinstance(value, Message) else {}

    whole, texts = filled(record)
    assert surviving(transform_record(whole, RedactText(redact)), texts) <= STAYS[record]


@pytest.mark.parametrize("record", STAYS)
def test_a_pattern_is_redacted_in_every_field_that_holds_text(record):
    """Nothing that `redact_pattern` matches is left, except in the fields that identify the rollout."""
    whole, texts = filled(record)
    left = surviving(transform_record(whole, RedactText(redact_pattern(r"<[^>]*>"))), texts)
    names = {f"{place}.{field}" for place in MESSAGES for field in SAID_BY - {"role"}}
    kinds_and_bytes = {f"{place}.parts[].{field}" for place in MESSAGES for field in ("type", "blob")}
    labels = {"calls[].about", "notes[].path"}
    assert left == STAYS[record] - names - labels | kinds_and_bytes & texts.keys()
