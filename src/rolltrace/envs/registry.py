"""Environments by name: built in, added by packages, or a user's own."""

import functools
import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import msgspec

from rolltrace.arguments import Argument, list_arguments
from rolltrace.envs.own import as_tasks
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object

BUILT_IN = {
    "arithmetic": "rolltrace.envs.arithmetic:ArithmeticTasks",
    "calculator": "rolltrace.envs.calculator:CalculatorTasks",
    "problems": "rolltrace.envs.problems:ProblemsTasks",
}
"""Where each is; its module is imported only when it is asked for."""

FAMILIES = {
    "reasoning_gym": "rolltrace.envs.reasoning_gym:ReasoningGymTasks",
    "textarena": "rolltrace.envs.textarena:TextArenaTasks",
}
"""Many environments under one name, as `FAMILY:NAME`: a class of tasks that takes the member's name as `name`."""

ENTRY_POINTS = "rolltrace.envs"
"""The entry-point group through which packages add names."""


class EnvInfo(msgspec.Struct, frozen=True):
    """One environment, for a listing."""

    name: str
    summary: str
    """The first line of its documentation."""
    arguments: tuple[Argument, ...] = ()
    source: str = ""
    """The module and name that it stands for."""
    error: str | None = None
    """Why it cannot be used."""


def load_env(spec: str, args: Mapping[str, Any] | None = None) -> Tasks:
    """The tasks of an environment: a built-in or added name, or `package.module:name` of a user's own.

    Arguments may be text, as from a command line, or Python values. Modules are found as Python finds them; whoever
    wants the current directory searched puts it on `sys.path` first.
    """
    family, colon, member = spec.partition(":")
    if colon and family in FAMILIES:
        found = import_object(FAMILIES[family], "environment")
        return as_tasks(functools.partial(found, member), spec, args or {})
    return as_tasks(import_object(_source(spec), "environment"), spec, args or {})


def list_envs() -> list[EnvInfo]:
    """All environments that have a name, sorted; one that cannot be imported is listed with its error."""
    infos = [_info(name, source) for name, source in BUILT_IN.items()]
    for name, point in _added().items():
        if name in BUILT_IN:
            infos.append(EnvInfo(name, "", source=point.value, error="The name is taken by a built-in environment."))
        else:
            infos.append(_info(name, _target(point)))
    return sorted(infos, key=lambda info: (info.name, info.source))


def _source(spec: str) -> str:
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    if ":" in spec:
        return spec
    added = _added()
    if spec not in added:
        raise UnknownNameError.among("environment", spec, [*BUILT_IN, *added])
    return _target(added[spec])


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _target(point: EntryPoint) -> str:
    # Not `point.load()`: its errors do not say which environment they are about.
    return point.value.partition("[")[0].strip().replace(" ", "")


def _info(name: str, source: str) -> EnvInfo:
    try:
        found = import_object(source, "environment")
        documentation = inspect.getdoc(found) or ""
        arguments = list_arguments(found) if callable(found) else ()
    except (InputError, ValueError, TypeError) as error:
        return EnvInfo(name, "", source=source, error=str(error))
    return EnvInfo(name, documentation.partition("\n")[0], arguments, source)
