"""Converts named arguments, such as text from a command line, to the types of a function's signature."""

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from rolltrace.errors import InputError, RolltraceError, UnknownNameError

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_GUESSED_FROM_DEFAULT = (bool, int, float, str)


class Argument(msgspec.Struct, frozen=True):
    """One argument that a function or class takes by name."""

    name: str
    type: str
    """Its type in the signature; empty if there is no annotation."""
    default: str | None
    """The repr of its default; None if the argument is required."""


def call_with_arguments(function: Callable[..., Any], args: Mapping[str, Any], what: str) -> Any:
    """Call the function with these arguments. Raises `InputError`, which names `what`, if they are wrong."""
    bound = bind_arguments(function, args, what)
    try:
        return function(**bound)
    except RolltraceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{what} could not be made: {type(error).__name__}: {error}") from error


def bind_arguments(
    function: Callable[..., Any], args: Mapping[str, Any], what: str, *, supplied: Collection[str] = ()
) -> dict[str, Any]:
    """The arguments, converted to the types of the signature. Raises `InputError` if one is unknown or missing.

    Text is converted to a number, a bool, a path or, from JSON, a list or an object. The type is that of the
    annotation, otherwise that of the default. `supplied` are the arguments that the caller adds itself.
    """
    parameters = _parameters(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    by_name = {parameter.name: parameter for parameter in parameters if parameter.kind in _BY_NAME}
    bound = {}
    for name, value in args.items():
        if name not in by_name and not takes_any:
            raise UnknownNameError.for_name(f"argument of {what}", name, by_name)
        bound[name] = _convert(value, by_name[name], what) if name in by_name else value
    for name, parameter in by_name.items():
        if parameter.default is parameter.empty and name not in bound and name not in supplied:
            raise InputError(f"Expected argument {name!r} of {what}, got none: pass {name}=VALUE.")
    return bound


def list_arguments(function: Callable[..., Any]) -> tuple[Argument, ...]:
    """The arguments that the function or class takes by name."""
    return tuple(
        Argument(
            parameter.name,
            "" if parameter.annotation is parameter.empty else _type_name(parameter.annotation),
            None if parameter.default is parameter.empty else repr(parameter.default),
        )
        for parameter in _parameters(function)
        if parameter.kind in _BY_NAME
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, AttributeError, SyntaxError, TypeError):  # annotations that only a type checker can resolve
        return list(inspect.signature(function).parameters.values())


def _convert(value: Any, parameter: inspect.Parameter, what: str) -> Any:
    kind = parameter.annotation
    if kind is parameter.empty and type(parameter.default) in _GUESSED_FROM_DEFAULT:
        kind = type(parameter.default)
    if kind is parameter.empty or isinstance(kind, str):
        return value
    try:
        return _as_kind(value, kind)
    except (msgspec.MsgspecError, ValueError):
        expected = f"`{_type_name(kind)}`"
        hint = _json_hint(parameter.name, kind) if isinstance(value, str) else ""
        got = f"Expected {expected} for argument {parameter.name!r} of {what}, got {value!r}."
        raise InputError(f"{got}{hint}") from None


def _json_hint(name: str, kind: Any) -> str:
    """An example of a list or an object on a command line."""
    kinds = [get_origin(each) or each for each in (kind, *get_args(kind))]
    if dict in kinds:
        example = '{"KEY": "VALUE", "N": 2}'
    elif list in kinds:
        example = '["VALUE", 2]'
    else:
        return ""
    return f" Write it as JSON, in quotes for the shell: '{name}={example}'."


def _as_kind(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_from_text)
    except msgspec.ValidationError:
        if not isinstance(value, str):
            raise
        return msgspec.json.decode(value, type=kind, strict=False, dec_hook=_from_text)
    except TypeError:  # a type that msgspec does not support: the function must check it
        return value


def _from_text(kind: Any, value: Any) -> Any:
    try:
        is_instance = isinstance(value, kind)
    except TypeError:  # such as Callable[[int], str]
        return value
    if is_instance:
        return value
    if isinstance(value, str) and issubclass(kind, Path):
        return kind(value)
    raise ValueError(f"expected {kind.__name__}")


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)
