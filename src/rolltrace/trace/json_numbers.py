"""Numbers on their way to JSON and back: exact, and finite or not."""

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

NON_FINITE: dict[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How JSON, which has no such numbers, spells them in a number's place."""

MAX_BITS = 8192
"""Integers of more bits are not taken for numbers: past some thousand digits Python itself refuses to write them."""

FAST_INT_LIMIT = 1 << 62
"""Integers below this, of either sign, are written as they are without another look."""

INT64_LIMIT = 2**63
"""Integers from minus this up to, not including, this fit the 64 bits of a database's column."""

if TYPE_CHECKING:
    Number = bool | int | float
    Float = float
else:
    # What the decoder accepts; `parse_number` turns the spellings back into numbers.
    Number = bool | int | float | Literal["NaN", "Infinity", "-Infinity"]
    Float = float | Literal["NaN", "Infinity", "-Infinity"]


def nonfinite_text(value: float) -> str:
    """The spelling of a number that is not finite."""
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def json_number(value: Any) -> Any:
    """A number as the encoder must be given it: unchanged, or as text if JSON has no such number."""
    if type(value) is float and not math.isfinite(value):
        return nonfinite_text(value)
    return value


def json_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """A flat map of numbers as the encoder must be given it."""
    return {name: json_number(value) for name, value in values.items()}


def json_floats(values: Iterable[float]) -> list[Any]:
    """A row of numbers as the encoder must be given it."""
    return [json_number(value) for value in values]


def parse_number(value: Any) -> Any:
    """The inverse of `json_number`."""
    return NON_FINITE[value] if type(value) is str else value


def parse_float(value: Any) -> float:
    """The same as a float; an integer that is larger than every finite one is infinite."""
    try:
        return float(parse_number(value))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parse_numbers(values: dict[str, Any]) -> None:
    """Turn the text of non-finite numbers in a decoded map back into numbers, in place."""
    for name, value in values.items():
        if type(value) is str:
            values[name] = NON_FINITE[value]


def as_number(value: Any) -> bool | int | float | None:
    """A Python number equal to `value`, or None where it is not one number.

    Numpy, torch and similar scalars have `item()`; they come back as Python numbers.
    """
    kind = type(value)
    if kind is float or kind is bool:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return value if value.bit_length() <= MAX_BITS else None
    try:
        return _scalar(value)
    except Exception:  # noqa: BLE001 - a foreign object may do anything when asked
        return None


def as_float(value: Any) -> float | None:
    """The float nearest to `value`, or None where it is not one number, or too large for any."""
    number = as_number(value)
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None


def _scalar(value: Any) -> bool | int | float | None:
    """The Python number in an object of a subclass or of another library."""
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return None
    if isinstance(value, int):  # such as an IntEnum; its own `__int__` is not asked, because it may be anything
        return as_number(int.__int__(value))
    if isinstance(value, float):
        return float.__float__(value)
    plain = value.item() if hasattr(value, "item") else value
    if type(plain) in (float, int, bool):
        return as_number(plain)
    looks_like_one = plain is value and hasattr(value, "__float__") and hasattr(value, "__add__")
    if not looks_like_one and not isinstance(plain, numbers.Real):
        return None
    number = float(plain)  # Fraction, Decimal, long double
    return None if math.isinf(number) and number != plain else number


def mean_of(values: Sequence[float]) -> float:
    """The mean of finite numbers, also of those whose sum is too large for a float."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)
