"""Finds between which iterations a statement selects rows, so that files without such rows need not be read."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rolltrace.store.parts import Bounds

_TABLES = frozenset({"rollouts", "every_rollout", "steps", "groups"})
"""Tables with a column `iteration`, none of whose rows depends on a line of another iteration."""
_ALL: Bounds = (-math.inf, math.inf)
_MIRRORED = {
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
}

Values = Sequence[Any] | Mapping[str, Any] | None
"""The parameters of a statement."""


def iteration_bounds(parts: Iterable[dict[str, Any]], parameters: Values) -> Bounds | None:
    """The first and the last iteration of the rows that a statement reads; None if it may need those of any.

    `parts` are the objects of its syntax tree. Only a statement that names one table once, with conditions that are all
    to hold and compare `iteration` with numbers, has bounds.
    """
    parts = list(parts)
    tables = [part for part in parts if part.get("type") == "BASE_TABLE"]
    selects = [part for part in parts if tables and part.get("from_table") is tables[0]]
    if len(tables) != 1 or len(selects) != 1 or tables[0].get("column_name_alias"):
        return None
    [table], [select] = tables, selects
    name = str(table.get("table_name", "")).lower()
    if name not in _TABLES:
        return None
    known = str(table.get("alias") or name).lower()
    bounds = _ALL
    for condition in _conjuncts(select.get("where_clause")):
        low, high = _condition_bounds(condition, known, parameters)
        bounds = max(bounds[0], low), min(bounds[1], high)
    return None if bounds == _ALL else bounds


def _conjuncts(condition: Any) -> Iterable[dict[str, Any]]:
    if not isinstance(condition, dict):
        return
    if condition.get("type") == "CONJUNCTION_AND":
        for child in condition.get("children", ()):
            yield from _conjuncts(child)
    else:
        yield condition


def _condition_bounds(condition: Mapping[str, Any], table: str, parameters: Values) -> Bounds:
    """The bounds that one condition gives; all iterations if it is about something else."""
    kind = condition.get("type", "")
    if kind == "COMPARE_BETWEEN":
        operands = [condition.get(side) for side in ("input", "lower", "upper")]
    elif kind == "COMPARE_IN":
        operands = list(condition.get("children", ()))
    else:
        operands = [condition.get("left"), condition.get("right")]
        if _is_iteration(operands[1], table):
            operands, kind = operands[::-1], _MIRRORED.get(kind, kind)
    if not operands or not _is_iteration(operands[0], table):
        return _ALL
    numbers = [_integer(operand, parameters) for operand in operands[1:]]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return _ALL
    if kind in ("COMPARE_EQUAL", "COMPARE_IN", "COMPARE_BETWEEN"):
        return (known[0], known[1]) if kind == "COMPARE_BETWEEN" else (min(known), max(known))
    if kind in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
        return known[0], math.inf
    return (-math.inf, known[0]) if kind in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO") else _ALL


def _is_iteration(operand: Any, table: str) -> bool:
    if not isinstance(operand, dict) or operand.get("type") != "COLUMN_REF":
        return False
    names = [str(name).lower() for name in operand.get("column_names", ())]
    return names in (["iteration"], [table, "iteration"])


def _integer(operand: Any, parameters: Values) -> int | None:
    if not isinstance(operand, dict):
        return None
    if operand.get("type") == "VALUE_PARAMETER":
        name, value = str(operand.get("identifier", "")), None
        if isinstance(parameters, Mapping):
            value = parameters.get(name)
        elif parameters is not None and name.isdecimal() and 0 < int(name) <= len(parameters):
            value = parameters[int(name) - 1]
        return value if type(value) is int else None
    literal = operand.get("literal")
    if operand.get("type") != "VALUE_CONSTANT" or not isinstance(literal, dict) or literal.get("kind") != "INTEGER":
        return None
    return int(literal["text"])
