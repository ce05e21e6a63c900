"""A JSON object that cannot change: what a frozen record holds where a dict would be mutable."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.trace.freeform import Note, plain_mapping, restore_mapping

_encoder = msgspec.json.Encoder()


class FrozenMap(Mapping[str, Any]):
    """A free-form map kept as its bytes; reading an entry decodes a fresh copy.

    Two are equal when their bytes are, so the order of keys counts.
    """

    __slots__ = ("json",)

    def __init__(self, json: bytes) -> None:
        self.json = json
        """The map as it stands in a record: strict JSON, with the markers of `freeform`."""

    @classmethod
    def of(cls, values: Mapping[str, Any], path: str = "", notes: list[Note] | None = None) -> "FrozenMap":
        """Freeze a map of any values; what JSON cannot hold becomes a placeholder, noted at the path."""
        return cls(_encoder.encode(plain_mapping(values, path, [] if notes is None else notes)))

    def thaw(self) -> dict[str, Any]:
        """A fresh dict, the caller's to change."""
        decoded: dict[str, Any] = msgspec.json.decode(self.json)
        return restore_mapping(decoded) if b'"$' in self.json else decoded

    def __getitem__(self, key: str) -> Any:
        return self.thaw()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.thaw())

    def __len__(self) -> int:
        return len(self.thaw())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenMap) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        return f"FrozenMap({self.json.decode()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (self.json,)
