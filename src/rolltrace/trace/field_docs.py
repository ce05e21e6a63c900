"""Reads the docstrings under the fields of a record, or under the members of an enum, from its source."""

import ast
import inspect
import itertools
import textwrap


def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field, inherited fields included, on one line; empty if the source is not available."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_field_docs(base)
    return docs


def _own_field_docs(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # no source file, or a class that is written in C
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, below in itertools.pairwise(body):
        if (name := _assigned_name(field)) is None or not isinstance(below, ast.Expr):
            continue
        if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            docs[name] = " ".join(below.value.value.split())
    return docs


def _assigned_name(statement: ast.stmt) -> str | None:
    """The name that a statement of a class body declares or assigns."""
    if isinstance(statement, ast.AnnAssign):
        target: ast.expr = statement.target
    elif isinstance(statement, ast.Assign):
        target = statement.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None
