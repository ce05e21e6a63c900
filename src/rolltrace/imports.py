"""Imports objects by `package.module:name`, with errors that suggest a fix."""

import importlib
from types import FunctionType, ModuleType
from typing import Any

from rolltrace.errors import InputError, UnknownNameError


def import_object(spec: str, kind: str) -> Any:
    """Import the object `package.module:name`. Errors call it a `kind`."""
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise InputError(f"Expected {kind} as `package.module:name`, got {spec!r}.")
    value: Any = _import_module(module_name, f"{kind} {spec!r}")
    for name in path.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            known = _own_names(value) if isinstance(value, ModuleType) else ()
            raise UnknownNameError.for_name(f"{kind} in module {module_name} named", name, known) from None
    return value


def _import_module(name: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"There is no module {error.name!r} for {what}: install it, or add its folder to PYTHONPATH."
            ) from error
        raise InputError(f"Module {name!r} of {what} cannot be imported: {error}.") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"Module {name!r} of {what} cannot be imported: {type(error).__name__}: {error}") from error


def _own_names(module: ModuleType) -> list[str]:
    """The public names that a module defines, without those that it imports."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and not (isinstance(value, type | FunctionType) and value.__module__ != module.__name__)
    ]
