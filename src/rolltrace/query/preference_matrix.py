"""Who was preferred to whom within a group."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.text_transform import hash_text

_MOST = 512
"""A larger matrix is nothing that anybody reads."""


class PreferenceMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a tournament; rows and columns are in the order of `ids`."""

    ids: tuple[str | None, ...]
    """The members that took part, in the order of the comparison; one that is no member is None, and last."""
    indexes: tuple[int | None, ...]
    """Their places in the group."""
    cells: tuple[tuple[Float | None, ...], ...]
    """How far the member of the row, shown first, was preferred to that of the column, shown second: from −1 to 1.

    None where two did not meet so, or nobody could tell.
    """
    numbers: dict[str, Float]
    """What the grader says of the whole, such as how often both orders agree."""


class MatrixMember(msgspec.Struct, frozen=True):
    """A member of the group, as far as a matrix names it."""

    id: str
    index: int | None


class _MemberIndex:
    """The members by what may name them."""

    def __init__(self, members: Sequence[MatrixMember]) -> None:
        self._by_id = {name: member for member in members for name in (member.id, hash_text(member.id))}
        self._by_index = {member.index: member for member in members}

    def member(self, id_: Any, index: Any) -> MatrixMember | None:
        """By id, also where a run keeps no text; by index only where there is no id."""
        if isinstance(id_, str):
            return self._by_id.get(id_)
        return self._by_index.get(index) if type(index) is int else None


def read_preference_matrix(data: Mapping[str, Any], members: Sequence[MatrixMember]) -> PreferenceMatrix | None:
    """The matrix in the data of a score about the group, in the order of the members; None where it has none."""
    extra = data.get("extra")
    if not isinstance(extra, Mapping):
        return None
    rows, ids, indexes = extra.get("matrix"), extra.get("ids"), extra.get("indexes")
    if not isinstance(rows, list) or not 0 < len(rows) <= _MOST or not _are_rows(rows):
        return None
    count = len(rows)
    known = _MemberIndex(members)
    named = zip(_listed(ids, count), _listed(indexes, count), strict=True)
    found = [known.member(one, index) for one, index in named]
    if not any(found):
        return None
    rank = {member.id: place for place, member in enumerate(members)}
    order = sorted(range(count), key=lambda place: _rank(found[place], rank))
    chosen = [found[place] for place in order]
    return PreferenceMatrix(
        ids=tuple(None if member is None else member.id for member in chosen),
        indexes=tuple(None if member is None else member.index for member in chosen),
        cells=tuple(tuple(as_float(rows[row][column]) for column in order) for row in order),
        numbers=_numbers(data.get("reward_data")),
    )


def _are_rows(rows: list[Any]) -> bool:
    return all(isinstance(row, list) and len(row) == len(rows) for row in rows)


def _listed(values: Any, count: int) -> Iterable[Any]:
    return values if isinstance(values, list) and len(values) == count else [None] * count


def _rank(member: MatrixMember | None, rank: Mapping[str, int]) -> int:
    return len(rank) if member is None else rank[member.id]


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    numbers = {str(name): as_float(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}
