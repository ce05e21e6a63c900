"""Restricts the `eval` of scorers to literals and formulas, because the evaluated text is a model's answer."""

import ast
import functools
import importlib
import sys
from collections.abc import Mapping
from types import CodeType
from typing import Any

_LITERAL = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load,
    ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator,
)  # fmt: skip

_FORMULA_NAMES = {
    "Add", "And", "E", "Eq", "Float", "Function", "Ge", "GoldenRatio", "Gt", "I", "Integer", "Le", "Lt", "Max", "Min",
    "Mul", "Ne", "Not", "Or", "Pow", "Rational", "Symbol", "Xor", "abs", "false", "max", "min", "nan", "oo", "pi",
    "pow", "true", "zoo",
}  # fmt: skip
"""The names that formulas may use besides sympy's functions."""


def evaluate_literal(text: str, *_scope: Any) -> Any:
    """`eval` of literals, lists of them, and arithmetic; ValueError for anything else."""
    tree = ast.parse(text.strip(), mode="eval")
    forbidden = [type(node).__name__ for node in ast.walk(tree) if not isinstance(node, _LITERAL)]
    if forbidden:
        raise ValueError(f"Expected a literal or arithmetic, got {forbidden[0]}.")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})  # noqa: S307 - has no names and no calls


def restrict_eval(package: str) -> None:
    """Replace `eval` in every imported module of a package by `evaluate_literal`."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            vars(module)["eval"] = evaluate_literal


@functools.cache
def restrict_sympy_eval() -> None:
    """Make sympy's parser, which calls `eval`, accept only formulas."""
    parser = importlib.import_module("sympy.parsing.sympy_parser")
    names = {*importlib.import_module("sympy.functions").__all__, *_FORMULA_NAMES}

    def evaluate(code: str | CodeType, local_dict: Mapping[str, Any], global_dict: dict[str, Any]) -> Any:
        compiled = compile(code.strip(), "<formula>", "eval") if isinstance(code, str) else code
        foreign = set(compiled.co_names) - names - set(local_dict)
        if foreign or any(isinstance(constant, CodeType) for constant in compiled.co_consts):
            raise ValueError(f"Expected a formula, got a program that uses {sorted(foreign)}.")
        return eval(compiled, global_dict, local_dict)  # noqa: S307 - only names of mathematics

    vars(parser)["eval_expr"] = evaluate
