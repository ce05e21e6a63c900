"""The same rollout with other text: what stays, what stands for what went, and who decides."""

import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafts import HOSTILE_TEXT, TEXT, finished, json_like, one_step
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.freeform import Placeholder
from rolltrace.trace.message import Message, Part, ToolCall
from rolltrace.trace.rewrite import Redaction, Withholding, rewrite_rollout, withheld


@given(TEXT)
def test_withheld_text_is_length_and_hash(text):
    """What stands for a text says how long it was and tells it from others; empty text stays empty."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert withheld(text) == (f"withheld:{len(text)}:{digest}" if text else "")


@given(HOSTILE_TEXT, HOSTILE_TEXT)
def test_equal_texts_stay_equal(one, other):
    """Texts that UTF-8 can hold are equal afterwards just where they were; no text raises."""
    stand_ins = withheld(one), withheld(other)
    if one == other:
        assert stand_ins[0] == stand_ins[1]
    elif not any("\ud800" <= letter <= "\udfff" for letter in one + other):
        assert stand_ins[0] != stand_ins[1]


def leaves(value):
    """What a nested value holds, in order."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def shape(value):
    """A nested value with its texts and bytes left out: keys, numbers and how many of each there are."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "text" if isinstance(value, str | bytes) else repr(value)


@given(st.dictionaries(TEXT, json_like(), max_size=4))
def test_withheld_map_keeps_keys_and_numbers(values):
    """In a free-form map keys, numbers and its shape stay; every text and all bytes go."""
    kept = Withholding().mapping(values)
    assert shape(kept) == shape(values)
    texts = [leaf for leaf in leaves(kept) if isinstance(leaf, str)]
    assert all(not text or text.startswith("withheld:") for text in texts)
    assert not [leaf for leaf in leaves(kept) if isinstance(leaf, bytes)]


def test_withheld_message_keeps_who_and_what_for():
    """Role, names, ids, kinds and counts stay; what was said, thought, shown and asked for goes."""
    said = Message(
        "assistant", "hello", parts=(Part("image", at=3, url="http://x", media_type="image/png"),),
        tool_calls=(ToolCall("add", '{"a": 1}', id="c1", error="cut"),), tool_call_id="c0", name="bob", reasoning="hm",
    )  # fmt: skip
    assert Withholding().message(said) == Message(
        "assistant", withheld("hello"),
        parts=(Part("image", text=withheld("http://x"), media_type="image/png"),),
        tool_calls=(ToolCall("add", withheld('{"a": 1}'), id="c1", error=withheld("cut")),),
        tool_call_id="c0", name="bob", reasoning=withheld("hm"),
    )  # fmt: skip


def test_placeholder_stays_a_placeholder():
    """What stood for a value that could not be kept still does, without the words that described it."""
    rollout = finished(one_step(env_state={"lock": object(), "nan": math.nan}))
    kept = decode_rollout(encode_rollout(rewrite_rollout(rollout, Withholding()))).steps[0].env_state
    assert isinstance(kept["lock"], Placeholder)
    assert kept["lock"]["$unrepresentable"].startswith("withheld:")
    assert math.isnan(kept["nan"])


def test_withholding_can_be_read_back():
    """A rewritten rollout is a rollout: it can be written and read, and its steps find their messages."""
    rollout = rewrite_rollout(finished(one_step(extra={"why": "because"})), Withholding())
    assert decode_rollout(encode_rollout(rollout)) == rollout
    assert rollout.steps[0].trace.prompt == (Message("user", withheld("2 + 2?")),)
    assert rollout.steps[0].extra == {"why": withheld("because")}


def test_identity_changes_nothing():
    """A function that returns what it is shown leaves the rollout as it is, but for its tokens."""
    rollout = finished(one_step(extra={"why": "because"}, raw="4!", parse_error="odd", logs={"a": [1]}))
    assert rewrite_rollout(rollout, Redaction(lambda value: value)) == rollout


def test_text_alone_is_shown_as_a_map():
    """A text that stands alone is shown under its name; where it is taken out, nothing is left of it."""
    shown = []

    def redact(value):
        shown.append(value)
        return {} if isinstance(value, dict) else value

    rollout = rewrite_rollout(finished(one_step(raw="4!", parse_error="odd")), Redaction(redact))
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
    ],
)
def test_wrong_answers_are_refused(redact):
    """A function that returns what is neither message nor map is told, so that the text can be withheld instead."""
    with pytest.raises(TypeError, match="Expected redact to"):
        rewrite_rollout(finished(one_step(raw="4!")), Redaction(redact))
