"""Finds environments by name: built-in ones, those of other packages, and a user's own."""

import functools
import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

import msgspec

from rolltrace.arguments import Argument, list_arguments
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.user_envs import as_tasks
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.imports import import_object

BUILT_IN = {
    "arithmetic": "rolltrace.envs.arithmetic:ArithmeticTasks",
    "calculator": "rolltrace.envs.calculator:CalculatorTasks",
    "guess_number": "rolltrace.envs.guess_number:GuessNumberTasks",
    "preference": "rolltrace.envs.preference:PreferenceTasks",
    "problems": "rolltrace.envs.problems:ProblemsTasks",
    "prompts": "rolltrace.envs.prompts:PromptsTasks",
    "rubric": "rolltrace.envs.rubric:RubricTasks",
    "twenty_questions": "rolltrace.envs.twenty_questions:TwentyQuestionsTasks",
}
"""The class of each name; its module is imported when the name is loaded."""


FAMILIES = {
    "reasoning_gym": "rolltrace.envs.reasoning_gym:ReasoningGymTasks",
    "textarena": "rolltrace.envs.textarena:TextArenaTasks",
}
"""Many environments under one name, as `FAMILY:NAME`: a class of tasks that takes the member's name first.

Its `names()` lists all members. A family has the name of the package that it needs, and so does the extra.
"""

ENTRY_POINTS = "rolltrace.envs"
"""The entry-point group through which packages add names."""


class EnvInfo(msgspec.Struct, frozen=True):
    """One environment, for a listing."""

    name: str
    summary: str
    """The first line of its documentation."""
    arguments: tuple[Argument, ...] = ()
    source: str = ""
    """Its `package.module:name`."""
    error: str | None = None
    """Why it cannot be used."""


def load_env(spec: str, args: Mapping[str, Any] | None = None) -> Tasks:
    """The tasks of an environment: a built-in name, one that a package added, or `package.module:name`.

    Arguments may be text, as from a command line, or Python values. Modules are imported from
    `sys.path`; add the current directory to it if it should be searched.
    """
    family, colon, member = spec.partition(":")
    if colon and family in FAMILIES:
        return as_tasks(functools.partial(_family(family), member), spec, args or {})
    return as_tasks(import_object(_source(spec), "environment"), spec, args or {})


def list_envs() -> list[EnvInfo]:
    """All environments that have a name, sorted; one that cannot be imported is listed with its error."""
    infos = [_info(name, source) for name, source in BUILT_IN.items()]
    infos += [_family_info(name) for name in FAMILIES]
    for name, point in _entry_point_envs().items():
        if name in BUILT_IN:
            infos.append(EnvInfo(name, "", source=point.value, error="The name is taken by a built-in environment."))
        else:
            infos.append(_info(name, _target(point)))
    return sorted(infos, key=lambda info: (info.name, info.source))


def list_members(family: str) -> list[str]:
    """The names of a family's environments, as `FAMILY:NAME`."""
    if family not in FAMILIES:
        raise UnknownNameError.for_name("family of environments", family, FAMILIES)
    return [f"{family}:{name}" for name in _family(family).names()]


def is_installed(family: str) -> bool:
    """Whether the package that a family needs is installed."""
    return find_spec(family) is not None


def _family(name: str) -> Any:
    if not is_installed(name):
        raise InputError(_how_to_install(name))
    return import_object(FAMILIES[name], "environment")


def _how_to_install(family: str) -> str:
    extra = family.replace("_", "-")
    return f"Expected the package {family}: install it with `pip install 'rolltrace[{extra}]'`."


def _source(spec: str) -> str:
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    if ":" in spec:
        return spec
    added = _entry_point_envs()
    if spec not in added:
        families = [f"{name}:NAME" for name in FAMILIES]
        raise UnknownNameError.for_name("environment", spec, [*BUILT_IN, *families, *added])
    return _target(added[spec])


def _entry_point_envs() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _target(point: EntryPoint) -> str:
    # Not `point.load()`: its errors do not say which environment they are about.
    return point.value.partition("[")[0].strip().replace(" ", "")


def _family_info(family: str) -> EnvInfo:
    info = _info(f"{family}:NAME", FAMILIES[family])
    arguments = tuple(argument for argument in info.arguments if argument.name != "name")
    error = info.error or (None if is_installed(family) else _how_to_install(family))
    return msgspec.structs.replace(info, arguments=arguments, error=error)


def _info(name: str, source: str) -> EnvInfo:
    try:
        value = import_object(source, "environment")
        documentation = inspect.getdoc(value) or ""
        arguments = list_arguments(value) if callable(value) else ()
    except (InputError, ValueError, TypeError) as error:
        return EnvInfo(name, "", source=source, error=str(error))
    return EnvInfo(name, documentation.partition("\n")[0], arguments, source)
