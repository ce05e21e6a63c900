"""JSON for the browser has no integer that a browser would round."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.viewer.json_response import long_integers_as_text, to_browser_types

LONG = st.integers(-(2**70), 2**70) | st.sampled_from([2**53, 2**53 + 1, -(2**53), -(2**53) - 1, 10**15])
TEXTS = st.text() | LONG.map(lambda number: f'\\"{number},"')
NUMBERS = (
    LONG | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.12345678901234567, 1e300, 1e-300])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)


@given(VALUES, st.sampled_from([None, 1]))
def test_long_integers_become_text_and_nothing_else_changes(value: object, indent: int | None):
    """Replacing integers in the JSON equals converting the values, also if texts look like numbers."""
    sent = json.dumps(value, ensure_ascii=False, indent=indent).encode()
    assert json.loads(long_integers_as_text(sent)) == to_browser_types(value)


def test_integers_of_any_length_are_replaced():
    """Integers too long for Python's conversion limit, which a file may contain, are replaced."""
    digits = b"1" * 10_000
    assert long_integers_as_text(b"[%b, -%b]" % (digits, digits)) == b'["%b", "-%b"]' % (digits, digits)


def test_json_without_long_integers_is_the_same_object():
    """JSON without long integers is not copied."""
    sent = msgspec.json.encode({"text": "1" * 15, "number": 2**49, "float": 0.12345678901234567})
    assert long_integers_as_text(sent) is sent
