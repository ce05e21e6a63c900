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


class Family(msgspec.Struct, frozen=True):
    """Many environments under one name, as `FAMILY:NAME`."""

    source: str
    """A class of tasks that takes the member's name first. Its `names()` lists the members, if there is a list."""
    package: str | None = None
    """The package that it needs, if any."""
    install: str = ""
    """What installs that package."""
    member: str = "NAME"
    """What a member is called by."""


FAMILIES = {
    "gem": Family(
        "rolltrace.envs.gem:GemTasks", "gem", "pip install --no-deps gem-llm && pip install reasoning-gym nltk"
    ),
    "openenv": Family("rolltrace.envs.openenv:OpenEnvTasks", member="URL"),
    "reasoning_gym": Family(
        "rolltrace.envs.reasoning_gym:ReasoningGymTasks", "reasoning_gym", "pip install 'rolltrace[reasoning-gym]'"
    ),
    "textarena": Family("rolltrace.envs.textarena:TextArenaTasks", "textarena", "pip install 'rolltrace[textarena]'"),
    "verifiers": Family("rolltrace.envs.verifiers:VerifiersTasks", "verifiers", "pip install 'rolltrace[verifiers]'"),
}
"""By name."""

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


def load_env(spec: str, args: Mapping[str, Any] | None = None, name: str | None = None) -> Tasks:
    """The tasks of an environment: a built-in name, one that a package added, or `package.module:name`.

    `name` is the name of an environment that has none of its own; by default the `spec`.

    Arguments may be text, as from a command line, or Python values. Modules are imported from
    `sys.path`; add the current directory to it if it should be searched.
    """
    family, colon, member = spec.partition(":")
    if colon and family in FAMILIES:
        return as_tasks(functools.partial(_family(family), member), name or spec, args or {})
    return as_tasks(import_object(_source(spec), "environment"), name or spec, args or {})


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
    package = FAMILIES[family].package
    return package is None or find_spec(package) is not None


def _family(name: str) -> Any:
    if not is_installed(name):
        raise InputError(_how_to_install(name))
    return import_object(FAMILIES[name].source, "environment")


def _how_to_install(family: str) -> str:
    return f"Expected the package {FAMILIES[family].package}: install it with `{FAMILIES[family].install}`."


def _source(spec: str) -> str:
    if spec in BUILT_IN:
        return BUILT_IN[spec]
    if ":" in spec:
        return spec
    added = _entry_point_envs()
    if spec not in added:
        families = [f"{name}:{family.member}" for name, family in FAMILIES.items()]
        raise UnknownNameError.for_name("environment", spec, [*BUILT_IN, *families, *added])
    return _target(added[spec])


def _entry_point_envs() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _target(point: EntryPoint) -> str:
    # Not `point.load()`: its errors do not say which environment they are about.
    return point.value.partition("[")[0].strip().replace(" ", "")


def _family_info(family: str) -> EnvInfo:
    info = _info(f"{family}:{FAMILIES[family].member}", FAMILIES[family].source)
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
