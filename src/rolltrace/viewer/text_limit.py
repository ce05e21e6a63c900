"""Cuts the texts of a record, wherever they are in it, for a report, or for a page that loads the rest in pieces."""

from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from rolltrace.errors import UnknownNameError
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.tokens import Tokens
from rolltrace.viewer.rollout_schemas import CutText

_SHORTEST = 200
"""Texts up to this length are never shortened: names, ids and hashes are as they were recorded."""
_TOKEN_BYTES = 16
"""About how long a token id and its log-probability are as JSON."""

Record = TypeVar("Record", bound=msgspec.Struct)
Path = tuple[str | int, ...]


def shorten_texts(record: Record, most: int) -> Record:
    """The record with about `most` characters of text: the longest texts are cut, and say how much is left out.

    Token ids and log-probabilities are dropped.
    """
    shortened: Record = _TextCutter(fair_limit(_lengths(record), most), mark=True).cut(record, ())
    return shortened


def cut_texts(record: Record, most: int, beginnings: int) -> tuple[Record, tuple[CutText, ...]]:
    """The record if it has up to `most` characters; else with `beginnings` of its texts, without tokens, and a list.

    Tokens are in the list with a length of 0.
    """
    lengths = list(_lengths(record))
    if sum(lengths) + _TOKEN_BYTES * _count_tokens(record) <= most:
        return record, ()
    cutter = _TextCutter(fair_limit(lengths, beginnings), mark=False)
    return cutter.cut(record, ()), tuple(cutter.cuts)


def text_at(record: msgspec.Struct, path: Path) -> str:
    """The text at a path of field names, keys and indexes."""
    value: Any = record
    for name in path:
        value = value.to_dict() if isinstance(value, FrozenMap) else value
        if isinstance(value, msgspec.Struct) and name in value.__struct_fields__:
            value = getattr(value, str(name))
        elif name in (
            value if isinstance(value, dict) else range(len(value)) if isinstance(value, tuple | list) else ()
        ):
            value = value[name]
        else:
            break
    else:
        if isinstance(value, str):
            return value
    raise UnknownNameError(f"There is no text at {list(path)!r} of the record.")


def fair_limit(lengths: Iterable[int], most: int) -> int:
    """How long each may be, so that all of them, with longer ones cut to this, are `most` together."""
    ordered = sorted(lengths)
    for place, length in enumerate(ordered):
        rest = len(ordered) - place
        if length * rest > most:
            return max(_SHORTEST, most // rest)
        most -= length
    return max([_SHORTEST, *ordered[-1:]])


def _lengths(value: Any) -> Iterator[int]:
    """The lengths of all texts in a record."""
    if isinstance(value, str):
        yield len(value)
    elif isinstance(value, FrozenMap):
        yield from _lengths(value.to_dict())
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _lengths(getattr(value, name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _lengths(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _lengths(one)


def _count_tokens(record: msgspec.Struct) -> int:
    tokens = (step.tokens for step in getattr(record, "steps", ()))
    return sum(len(one.prompt) + len(one.response) for one in tokens if one is not None)


class _TextCutter:
    """Cuts each text of a record to `most` characters."""

    def __init__(self, most: int, *, mark: bool) -> None:
        self._most = most
        self._mark = mark
        """Whether a text ends with how much is left out."""
        self.cuts: list[CutText] = []

    def cut(self, value: Any, path: Path) -> Any:
        """The value with its texts cut; the same object if none is long."""
        if isinstance(value, str):
            return value if len(value) <= self._most else self._beginning(value, path)
        if isinstance(value, FrozenMap):
            values = value.to_dict()
            cut = self.cut(values, path)
            return value if cut is values else FrozenMap.of(cut)
        if isinstance(value, Tokens):
            self.cuts.append(CutText(path, 0, 0))
            return None
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: new for name, old in fields.items() if (new := self.cut(old, (*path, name))) is not old}
            return replace(value, **changed) if changed else value
        if isinstance(value, tuple | list):
            parts = [self.cut(one, (*path, place)) for place, one in enumerate(value)]
            return value if all(map(is_, parts, value)) else type(value)(parts)
        if isinstance(value, dict):
            values = {key: self.cut(one, (*path, key)) for key, one in value.items()}
            return value if all(map(is_, values.values(), value.values())) else values
        return value

    def _beginning(self, text: str, path: Path) -> str:
        self.cuts.append(CutText(path, len(text), self._most))
        left_out = f"\n… {len(text) - self._most:,} characters left out here" if self._mark else ""
        return f"{text[: self._most]}{left_out}"
