"""Converting a history that the caller may change: right under every change, and cheap without changes."""

import copy

import pytest

from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.message import Message


class Unrepresentable:
    """An object whose repr raises."""

    def __repr__(self):
        raise RuntimeError("detached instance")


class NoTruth:
    """Compares like an array: the result has no truth value."""

    def __eq__(self, other):
        return self

    __hash__ = None

    def __bool__(self):
        raise ValueError("ambiguous")


@pytest.mark.parametrize(
    "odd", [Unrepresentable(), NoTruth(), 10**5000, {1: 2}, ("a",), b"x", [[[]]]], ids=lambda odd: type(odd).__name__
)
def test_nothing_in_a_message_raises(odd):
    """Whatever a message holds, before and after an edit, converting it never raises into the rollout."""
    notes = []
    freezer = ConversionCache(notes)
    history = [{"role": "user", "content": "hi", "number": 1, "meta": odd}]
    assert freezer.convert(history)[0].content == "hi"
    assert freezer.convert(history)[0].content == "hi"
    history[0]["meta"] = [1, 2]
    freezer.convert(history)
    history[0]["meta"] = odd
    assert freezer.convert(history)[0].content == "hi"


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), (0.0, -0.0), (None, 0), ("1", 1)])
def test_equal_values_of_other_types_are_edits(before, after):
    """An edit from 1 to True is noticed."""
    freezer = ConversionCache([])
    history = [{"role": "user", "content": "hi", "meta": {"flag": before}}]
    first = freezer.convert(history)
    history[0]["meta"]["flag"] = after
    second = freezer.convert(history)
    assert repr(first[0].other) != repr(second[0].other)


def test_an_edit_in_place_is_seen():
    """A message that its owner has changed is converted again, and the earlier conversion is unchanged."""
    freezer = ConversionCache([])
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    first = freezer.convert(history)
    history[0]["content"] = "new"
    call["function"]["arguments"] = "[]"
    second = freezer.convert(history)
    assert [(both[0].content, both[1].tool_calls[0].arguments) for both in (first, second)] == [
        ("old", "{}"),
        ("new", "[]"),
    ]


@pytest.mark.parametrize("again", [lambda history: history, copy.deepcopy, lambda history: history[1:]])
def test_unchanged_messages_are_converted_once(again):
    """Kept objects, copies at the same place and shorter histories give the same converted messages."""
    freezer = ConversionCache([])
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [{"role": "user", "content": str(number), "tool_calls": [call]} for number in range(4)]
    first = freezer.convert(history)
    second = freezer.convert(again(history))
    assert all(any(now is then for then in first) for now in second)


def test_a_new_object_at_an_old_address_is_converted():
    """An object with the id of a deleted one is not mistaken for it."""
    freezer = ConversionCache([])
    for number in range(50):
        [message] = freezer.convert([{"role": "user", "content": str(number)}])
        assert message.content == str(number)


def test_frozen_messages_pass():
    """Immutable messages are used as they are."""
    message = Message("user", "hi")
    assert ConversionCache([]).convert([message])[0] is message
