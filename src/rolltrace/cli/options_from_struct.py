"""Derives command-line options from the fields of a struct: their names, types, defaults and docstrings."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

import click
import msgspec

from rolltrace.trace.field_docs import field_docs

Function = TypeVar("Function", bound=Callable[..., Any])
NONE = "none"


class GroupedCommand(click.Command):
    """A command whose help lists options that have a `group` under that title."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the other options first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(option, "group", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def struct_options(struct: type[msgspec.Struct], title: str) -> Callable[[Function], Function]:
    """Add one option per field of the struct; the value of an option that is not set is None."""

    def add(function: Function) -> Function:
        docs, types = field_docs(struct), get_type_hints(struct)
        for field in reversed(msgspec.structs.fields(struct)):
            flag = field.name.replace("_", "-")
            kind, *others = get_args(types[field.name]) or (types[field.name],)
            is_flag = kind is bool
            option: Any = click.option(
                f"--{flag}/--no-{flag}" if is_flag else f"--{flag}",
                field.name,
                default=None,
                type=None if is_flag else _Value(field.type, kind, optional=bool(others)),
                help=" ".join((docs.get(field.name, ""), f" [default: {_default(field.default)}]")).strip(),
            )
            function = option(function)
            function.__click_params__[-1].group = title  # type: ignore[attr-defined]
        return function

    return add


def struct_from_options(struct: type[msgspec.Struct], options: dict[str, Any]) -> Any:
    """Make the struct from the options, and remove its fields from `options`."""
    values = {name: options.pop(name) for name in struct.__struct_fields__}
    return struct(**{name: None if value is NONE else value for name, value in values.items() if value is not None})


class _Value(click.ParamType[Any]):
    """A value of a field's type, or `none` if the field may be None."""

    def __init__(self, annotation: Any, kind: type, *, optional: bool) -> None:
        self.name = "integer" if kind is int else kind.__name__
        self._annotation = annotation
        self._optional = optional

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the value, or fail as a usage error."""
        if self._optional and str(value).lower() == NONE:
            return NONE
        try:
            return msgspec.convert(value, self._annotation, strict=False)
        except msgspec.ValidationError as error:
            self.fail(f"{error}, got {value!r}.", param, ctx)


def _default(value: Any) -> str:
    return NONE if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
