"""Strict JSON of everything that is not a record."""

import datetime
import decimal
import json
import math
import uuid
from enum import StrEnum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message
from rolltrace.trace.strict_json import encode_json

CET = datetime.timezone(datetime.timedelta(hours=1))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.datetimes()
    | st.dates() | st.timedeltas() | st.uuids() | st.decimals(allow_nan=False, allow_infinity=False, places=2),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)  # fmt: skip


class Color(StrEnum):
    RED = "red"


class Summary(msgspec.Struct):
    mean: float
    color: Color = Color.RED


def decode_strictly(data):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(data, parse_constant=refuse)


@given(VALUES, st.booleans())
def test_every_value_is_strict_json(value, for_browser):
    """A strict parser reads whatever is encoded, and the structure is kept."""
    decoded = decode_strictly(encode_json({"value": value}, for_browser=for_browser))["value"]
    if isinstance(value, list | dict):
        assert len(decoded) == len({str(key) for key in value} if isinstance(value, dict) else value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (1 << 100, 1 << 100),
        (decimal.Decimal("1.25"), 1.25),
        ({1: (math.inf,)}, {"1": ["Infinity"]}),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05Z"),  # noqa: DTZ001 - as times of the tables
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=CET), "2026-01-02T02:04:05Z"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.timedelta(days=1, hours=3), "1 day 03:00:00"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"a\x00", "a\\x00"),
        ("file\udc80", "file\\udc80"),
        (Summary(math.nan), {"mean": "NaN", "color": "red"}),
        (FrozenMap.of({"nan": math.nan}), {"nan": {"$float": "NaN"}}),
        (Message("user", "hi"), {"role": "user", "content": "hi"}),
        (msgspec.Raw(b"[1]"), [1]),
    ],
)
def test_each_type(value, expected):
    """Types that JSON lacks become text, as in records and in SQL."""
    assert decode_strictly(encode_json(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2**53, 2**53), (-(2**53), -(2**53)), (2**53 + 1, str(2**53 + 1)), (decimal.Decimal("1.25"), "1.25")],
)
def test_numbers_that_a_browser_would_round(value, expected):
    """For a browser, integers beyond 2**53 and decimals are text."""
    assert decode_strictly(encode_json([value], for_browser=True)) == [expected]
