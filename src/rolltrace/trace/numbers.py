"""Numbers on their way to JSON and back: exact, and finite or not."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

NON_FINITE: dict[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How JSON, which has no such numbers, spells them in a number's place."""

if TYPE_CHECKING:
    Number = bool | int | float
    Float = float
else:
    # What the decoder accepts; `restore_number` turns the spellings back into numbers.
    Number = bool | int | float | Literal["NaN", "Infinity", "-Infinity"]
    Float = float | Literal["NaN", "Infinity", "-Infinity"]


def spell_float(value: float) -> str:
    """The spelling of a number that is not finite."""
    if value != value:
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def wire_number(value: Any) -> Any:
    """A number as the encoder must be given it: unchanged, or spelt out where JSON has no such number."""
    if type(value) is float and not math.isfinite(value):
        return spell_float(value)
    return value


def restore_number(value: Any) -> Any:
    """The inverse of `wire_number`."""
    return NON_FINITE[value] if type(value) is str else value


def restore_numbers(values: dict[str, Any]) -> None:
    """Turn spelt-out numbers of a decoded map back into numbers, in place."""
    for name, value in values.items():
        if type(value) is str:
            values[name] = NON_FINITE[value]


def as_number(value: Any) -> bool | int | float | None:
    """A Python number equal to `value`, or None where it is not one number.

    Numpy, torch and similar scalars have `item()`; they come back as Python numbers.
    """
    if type(value) in (float, int, bool):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return None
    if isinstance(value, bool | int | float):  # subclasses, such as an IntEnum
        return int(value) if isinstance(value, int) else float(value)
    return _scalar(value)


def _scalar(value: Any) -> bool | int | float | None:
    """The Python number in a scalar object of another library."""
    try:
        plain = value.item() if hasattr(value, "item") else None
        if plain is None and hasattr(value, "__float__") and hasattr(value, "__add__"):  # Decimal, Fraction
            plain = float(value)
    except Exception:  # noqa: BLE001 - a foreign object may do anything when asked
        return None
    return plain if type(plain) in (float, int, bool) else None
