"""A JSON object that cannot change: what a frozen record holds where a dict would be mutable."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rolltrace.trace.freeform import Note, from_json_mapping, to_json_mapping

_encoder = msgspec.json.Encoder()


class FrozenMap(Mapping[str, Any]):
    """A free-form map kept as its bytes; reading an entry decodes a fresh copy.

    Two are equal when their bytes are, so the order of keys counts.
    """

    __slots__ = ("json_bytes",)

    def __init__(self, json: bytes) -> None:
        self.json_bytes = json
        """The map as it stands in a record: strict JSON, with the markers of `freeform`."""

    @classmethod
    def of(cls, values: Mapping[str, Any], path: str = "", notes: list[Note] | None = None) -> "FrozenMap":
        """Freeze a map of any values; what JSON cannot hold becomes a placeholder, noted at the path."""
        return cls(_encoder.encode(to_json_mapping(values, path, [] if notes is None else notes)))

    def to_dict(self) -> dict[str, Any]:
        """A fresh dict, the caller's to change."""
        decoded: dict[str, Any] = msgspec.json.decode(self.json_bytes)
        return from_json_mapping(decoded) if b'"$' in self.json_bytes else decoded

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenMap) and self.json_bytes == other.json_bytes

    def __hash__(self) -> int:
        return hash(self.json_bytes)

    def __repr__(self) -> str:
        return f"FrozenMap({self.json_bytes.decode()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenMap, (self.json_bytes,)
