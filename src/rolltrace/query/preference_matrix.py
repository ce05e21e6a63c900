"""The preference matrix of a group: which member a grader preferred to which."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.trace.json_numbers import Float, as_float
from rolltrace.trace.text_transform import hash_text

_MAX_SIZE = 512
"""A larger matrix is not shown."""


class PreferenceMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tournament; rows and columns are in the order of `ids`."""

    ids: tuple[str | None, ...]
    """The members that took part, in the order of the comparison; others are None, and last."""
    indexes: tuple[int | None, ...]
    """Their indexes in the group."""
    cells: tuple[tuple[Float | None, ...], ...]
    """How far the member of the row, shown first, was preferred to that of the column, shown second: from −1 to 1.

    None if the two were not compared in this order, or the grader gave no preference.
    """
    numbers: dict[str, Float]
    """Numbers of the grader about the whole tournament, such as how often both orders agree."""


class MatrixMember(msgspec.Struct, frozen=True):
    """A member of the group, as a matrix refers to it."""

    id: str
    index: int | None


class _MemberIndex:
    """Looks up members by id, hashed id or index."""

    def __init__(self, members: Sequence[MatrixMember]) -> None:
        self._by_id = {name: member for member in members for name in (member.id, hash_text(member.id))}
        self._by_index = {member.index: member for member in members}

    def member(self, id_: Any, index: Any) -> MatrixMember | None:
        """The member with this id, plain or hashed (in a run without texts); by index only without an id."""
        if isinstance(id_, str):
            return self._by_id.get(id_)
        return self._by_index.get(index) if type(index) is int else None


def read_preference_matrix(data: Mapping[str, Any], members: Sequence[MatrixMember]) -> PreferenceMatrix | None:
    """The matrix in the data of a group's score, in the order of the members; None without a valid one."""
    extra = data.get("extra")
    if not isinstance(extra, Mapping):
        return None
    rows, ids, indexes = extra.get("matrix"), extra.get("ids"), extra.get("indexes")
    if not isinstance(rows, list) or not 0 < len(rows) <= _MAX_SIZE or not _are_rows(rows):
        return None
    count = len(rows)
    member_index = _MemberIndex(members)
    names = zip(_list_of(ids, count), _list_of(indexes, count), strict=True)
    compared = [member_index.member(one, index) for one, index in names]
    if not any(compared):
        return None
    rank = {member.id: position for position, member in enumerate(members)}
    order = sorted(range(count), key=lambda row: _rank(compared[row], rank))
    ordered = [compared[row] for row in order]
    return PreferenceMatrix(
        ids=tuple(None if member is None else member.id for member in ordered),
        indexes=tuple(None if member is None else member.index for member in ordered),
        cells=tuple(tuple(as_float(rows[row][column]) for column in order) for row in order),
        numbers=_numbers(data.get("reward_data")),
    )


def _are_rows(rows: list[Any]) -> bool:
    return all(isinstance(row, list) and len(row) == len(rows) for row in rows)


def _list_of(values: Any, count: int) -> Iterable[Any]:
    return values if isinstance(values, list) and len(values) == count else [None] * count


def _rank(member: MatrixMember | None, rank: Mapping[str, int]) -> int:
    return len(rank) if member is None else rank[member.id]


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, Mapping):
        return {}
    numbers = {str(name): as_float(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}
