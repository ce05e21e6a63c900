"""The types of the page, from the server's responses: `python docs/typescript_types.py > FILE`.

`make docs` writes `web/src/source/schema.ts` with it. The source is `msgspec.inspect` and not a JSON schema: in a JSON
schema a field with a default is optional, whether it is always written or not. A field whose Python type does not
describe its JSON, such as `msgspec.Raw`, names the type that does: `Annotated[Raw, Meta(extra={"json_of": Score})]`.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as types

from rolltrace.trace.blob import Blob
from rolltrace.trace.field_docs import field_docs
from rolltrace.trace.field_types import omits_default
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.json_numbers import NON_FINITE
from rolltrace.trace.rollout import Header
from rolltrace.trace.stop_reasons import StopReason
from rolltrace.viewer import rollout_schemas, schemas

_WIDTH = 120
_HEAD = """\
// The responses of the server and the records in them. Made by docs/typescript_types.py: do not edit.
// An integer that a browser would round comes as text. Only types of fields where that is usual say so.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** A number; one that is not finite comes as text. */
export type Float = number | "NaN" | "Infinity" | "-Infinity";
"""
_SIMPLE = {
    types.StrType: "string",
    types.IntType: "number",
    types.FloatType: "number",
    types.BoolType: "boolean",
    types.NoneType: "null",
    types.DateTimeType: "string",
    types.AnyType: "Json",
}
_CUSTOM = {FrozenMap: "Record<string, Json>", Blob: "string"}
_LONG_INTEGERS = {(Header, "seed")}
"""Fields whose integers are usually too long for a browser."""


def typescript_types() -> str:
    """The source of `schema.ts`: every response, and every type that one of them refers to."""
    declarations = Declarations()
    for cls in [*response_types(), StopReason]:
        declarations.name_of(cls)
    return "\n".join([_HEAD, *declarations.sources()])


def response_types() -> list[type]:
    """The responses, and the structs that are defined beside them."""
    named = [(module.__name__, cls) for module in (schemas, rollout_schemas) for cls in vars(module).values()]
    structs = [(module, cls) for module, cls in named if isinstance(cls, type) and issubclass(cls, msgspec.Struct)]
    return [cls for module, cls in structs if cls.__module__ == module]


class Declarations:
    """Declarations of classes, in the order in which they are first referred to."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}

    def name_of(self, cls: type) -> str:
        """The name of a class, which is declared."""
        if self._classes.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"Expected one class of the name {cls.__name__}, got two: rename one of them.")
        return cls.__name__

    def sources(self) -> Iterator[str]:
        """The declarations; those that one of them refers to come after it."""
        done = 0
        while done < len(self._classes):
            cls = list(self._classes.values())[done]
            yield _comment(inspect.getdoc(cls) or "") + "".join(self._declaration(cls))
            done += 1

    def _declaration(self, cls: type) -> Iterator[str]:
        if issubclass(cls, Enum):
            yield f"export type {cls.__name__} ={_one_of([_quoted(member.value) for member in cls], _WIDTH - 40)};\n"
            return
        bases = [base for base in cls.__bases__ if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
        extends = f" extends {', '.join(map(self.name_of, bases))}" if bases else ""
        docs = field_docs(cls)
        yield f"export interface {cls.__name__}{extends} {{\n"
        for field in types.type_info(cls).fields:  # type: ignore[attr-defined]
            if field.name in cls.__annotations__:
                yield _comment(docs.get(field.name, ""), "  ") + self._field(cls, field)
        if not issubclass(cls, msgspec.Struct):  # a TypedDict may have other keys
            yield "  [key: string]: Json;\n"
        yield "}\n"

    def _field(self, cls: type, field: types.Field) -> str:
        kinds, mark = _alternatives(field.type), ""
        if (cls, field.name) in _LONG_INTEGERS:
            kinds = (*kinds, types.StrType())
        if _is_optional(cls, field):
            mark = "?"
            if field.default is None:  # null is the default, which is omitted
                kinds = tuple(kind for kind in kinds if not isinstance(kind, types.NoneType))
        return f"  {field.encode_name}{mark}: {self._union(kinds)};\n"

    def _type(self, kind: types.Type) -> str:
        if type(kind) in _SIMPLE:
            return _SIMPLE[type(kind)]
        match kind:
            case types.Metadata(type=inner, extra=extra):
                return self.name_of(extra["json_of"]) if extra and "json_of" in extra else self._type(inner)
            case types.StructType(cls=cls) | types.EnumType(cls=cls):
                return self.name_of(cls)
            case types.CustomType(cls=cls):
                return _CUSTOM[cls]
            case types.DictType(value_type=value):
                return f"Record<string, {self._type(value)}>"
            case types.VarTupleType(item_type=item):
                name = self._type(item)
                return f"({name})[]" if isinstance(item, types.UnionType) and " | " in name else f"{name}[]"
            case types.TupleType(item_types=items):
                return f"[{', '.join(map(self._type, items))}]"
            case types.UnionType() | types.LiteralType():
                return self._union(_alternatives(kind))
        raise TypeError(f"Expected a type that has a form in TypeScript, got {kind}.")

    def _union(self, kinds: Iterable[types.Type]) -> str:
        names: dict[str, None] = {}
        for kind in kinds:
            if isinstance(kind, types.LiteralType):
                is_float = set(kind.values) == set(NON_FINITE)
                names |= dict.fromkeys(["Float"] if is_float else map(_quoted, kind.values))
            else:
                names[self._type(kind)] = None
        if "Float" in names:
            names.pop("number", None)
        return " | ".join(sorted(names, key="null".__eq__))


def _alternatives(kind: types.Type) -> tuple[types.Type, ...]:
    """The members of a union, also of one in a union or with metadata."""
    if isinstance(kind, types.Metadata) and not (kind.extra and "json_of" in kind.extra):
        return _alternatives(kind.type)
    if isinstance(kind, types.UnionType):
        return tuple(inner for member in kind.types for inner in _alternatives(member))
    return (kind,)


def _is_optional(cls: type, field: types.Field) -> bool:
    """Whether the field is not written while it has its default."""
    return issubclass(cls, msgspec.Struct) and omits_default(cls, field)


def _quoted(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _one_of(names: list[str], width: int) -> str:
    line = " " + " | ".join(names)
    return line if len(line) <= width else "".join(f"\n  | {name}" for name in names)


def _comment(text: str, indent: str = "") -> str:
    """A docstring as a comment; its Python values are written as those of JavaScript."""
    if not text:
        return ""
    text = re.sub(r"\bNone\b", "null", " ".join(text.split())).replace("*/", "* /")
    line = f"{indent}/** {text} */\n"
    if len(line) <= _WIDTH + 1:
        return line
    prefix = f"{indent} * "
    lines = textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)
    return "\n".join([f"{indent}/**", *lines, f"{indent} */\n"])


if __name__ == "__main__":
    sys.stdout.write(typescript_types())
