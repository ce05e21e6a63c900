"""Validates what env group builders, envs and graders return to the runner."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from rolltrace.envs.env import STEP_MAP_FIELDS, Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.errors import EnvError, GraderError, InputError
from rolltrace.graders.grader import GroupGrade
from rolltrace.policies.validation import is_message
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.trace.freeform import describe
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message
from rolltrace.trace.score import Grade

MISSING = object()
"""The value of an attribute that is not set, or whose property raises."""


def attribute_of(builder: Any, name: str) -> Any:
    """An attribute of a builder, or `MISSING`."""
    try:
        return getattr(builder, name, MISSING)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return MISSING


def is_name(value: Any) -> bool:
    """Whether a value is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def is_count(value: Any) -> bool:
    """Whether a value is an int of at least 1."""
    return _is_whole(value) and value >= 1


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)


def _is_range(value: Any) -> bool:
    return value is None or (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in value)
        and value[0] <= value[1]
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(map(is_name, value))


_BUILDER_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "env": ("a text that is not empty", is_name),
    "task": ("a text that is not empty", is_name),
    "tags": ("a tuple of texts", _are_names),
    "episodes": ("a whole number of at least 1", is_count),
    "seats": ("a whole number of at least 1", is_count),
    "seed": ("a whole number or None", lambda value: value is None or _is_whole(value)),
    "env_args": ("a mapping", _is_mapping),
    "task_data": ("a mapping", _is_mapping),
    "reward_range": ("two numbers, the lowest first, or None", _is_range),
}


class InvalidField(NamedTuple):
    """A field of a builder with a value that the runner cannot use."""

    name: str
    expected: str
    value: Any
    """Or `MISSING`."""


def invalid_builder_fields(builder: Any) -> Iterator[InvalidField]:
    """The fields of a builder that have no valid value."""
    for name, (expected, is_valid) in _BUILDER_FIELDS.items():
        if not is_valid(value := attribute_of(builder, name)):
            yield InvalidField(name, expected, value)


def validate_builder(builder: Any) -> None:
    """Raise `EnvError` if the runner cannot name the group or count its members."""
    if not _is_of(EnvGroupBuilder, builder):
        raise EnvError(f"Expected an EnvGroupBuilder, got {describe(builder)}.")
    for name, expected, value in invalid_builder_fields(builder):
        got = "nothing" if value is MISSING else describe(value)
        raise EnvError(f"Expected {type(builder).__name__}.{name} to be {expected}, got {got}: set it in the class.")


def _is_of(kind: type, value: Any) -> bool:
    return kind in type(value).__mro__ or isinstance(value, kind)  # the first is much faster


def validate_envs(envs: Any, builder: EnvGroupBuilder) -> Sequence[Env]:
    """Raise `EnvError` unless a builder returned one env for each seat."""
    where = f"{type(builder).__name__}.make_episode"
    if not isinstance(envs, list | tuple):
        raise EnvError(f"Expected {where} to return a list of envs, got {describe(envs)}: return [env].")
    for env in envs:
        if not _is_of(Env, env):
            raise EnvError(
                f"Expected {where} to return instances of Env, got {describe(env)}: "
                "subclass rolltrace.Env, or wrap a message env in MessageEnvAdapter."
            )
    if len(envs) != builder.seats:
        raise EnvError(f"Expected {where} to return one env per seat, {builder.seats} in all, got {len(envs)}.")
    return envs


def require_observe(env: Env, limits: Limits) -> None:
    """Raise `InputError` if parse retries are set and the env does not implement `observe`."""
    if limits.max_parse_retries and not env.can_observe:
        name = type(getattr(env, "env", env)).__name__
        raise InputError(
            f"Expected an environment that accepts corrections, because max_parse_retries={limits.max_parse_retries}, "
            f"got {name} without `observe`: implement its `observe`, or set max_parse_retries=0."
        )


def validate_first_observation(value: Any, env: Env) -> Observation | StepResult:
    """Validate the first observation, or the result of an episode without turns."""
    if not isinstance(value, StepResult):
        return validate_observation(value, env, "initial_observation")
    result = validate_step_result(value, env, "initial_observation")
    if not result.done:
        raise EnvError(
            f"Expected {type(env).__name__}.initial_observation to return an Observation, or a StepResult with "
            "done=True, got done=False: there was no step yet."
        )
    return result


def validate_observation(value: Any, env: Env, method: str) -> Observation:
    """Raise `EnvError` unless a value is an observation with valid messages, tools and stop sequences."""
    if _is_plain(value):
        return value  # type: ignore[no-any-return]
    where = f"{type(env).__name__}.{method}"
    if not isinstance(value, Observation):
        raise EnvError(f"Expected {where} to return an Observation, got {describe(value)}: return Observation([…]).")
    messages = value.messages
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise EnvError(f"Expected {where} to return a list of messages, got {describe(messages)}.")
    for position, message in enumerate(messages):
        if not is_message(message):
            raise EnvError(f"Expected {where} to return messages, got {describe(message)} at messages[{position}].")
    for name in ("tools", "stop"):
        items = getattr(value, name)
        if not isinstance(items, list | tuple):
            raise EnvError(f"Expected {where} to return a list as {name}, got {describe(items)}.")
    return value


_LISTS = frozenset({list, tuple})
_MESSAGES = frozenset({Message, dict})


def _is_plain(value: Any) -> bool:
    """Fast path: whether the observation has exact types, because checks of abstract classes are slow."""
    return (
        type(value) is Observation
        and type(value.messages) in _LISTS
        and type(value.tools) in _LISTS
        and type(value.stop) in _LISTS
        and _MESSAGES.issuperset(map(type, value.messages))
    )


def validate_step_result(value: Any, env: Env, method: str = "step") -> StepResult:
    """Raise `EnvError` unless a step result has a number as reward, and an observation or `done`."""
    if _is_plain_step(value):
        return value  # type: ignore[no-any-return]
    where = f"{type(env).__name__}.{method}"
    if not isinstance(value, StepResult):
        raise EnvError(
            f"Expected {where} to return a StepResult, got {describe(value)}: return StepResult(reward=…, done=…)."
        )
    reward = as_number(value.reward)
    if reward is None:
        raise EnvError(f"Expected {where} to return a number as reward, got {describe(value.reward)}.")
    for name in STEP_MAP_FIELDS:
        mapping = getattr(value, name)
        if not _is_mapping(mapping):
            raise EnvError(f"Expected {where} to return a mapping as {name}, got {describe(mapping)}.")
    if value.observation is not None:
        validate_observation(value.observation, env, method)
    elif not value.done and method != "unfinished_step":
        raise EnvError(f"Expected {where} to return an observation or done=True, got neither: the next turn needs one.")
    return value if type(value.reward) is float else replace(value, reward=float(reward))


_maps_of_step = attrgetter(*STEP_MAP_FIELDS)
_DICT = frozenset({dict})


def _is_plain_step(value: Any) -> bool:
    """Fast path, as in `_is_plain`."""
    return (
        type(value) is StepResult
        and type(value.reward) is float
        and _DICT.issuperset(map(type, _maps_of_step(value)))
        and (bool(value.done) if value.observation is None else _is_plain(value.observation))
    )


def validate_group_grade(value: Any, grader: str) -> GroupGrade:
    """Raise `GraderError` unless a value is a mapping of grades by rollout id, or a `GroupGrade`."""
    result = value if isinstance(value, GroupGrade) else GroupGrade(value)
    if not isinstance(result.grades, Mapping):
        raise GraderError(f"Expected {grader} to return grades by rollout id, got {describe(result.grades)}.")
    grades = dict(result.grades)  # copied here, so that a mapping that raises is the grader's failure
    _validate_grade_maps(result, grader)
    return replace(result, grades=grades)


def validate_grade(value: Any, grader: str) -> Grade:
    """Raise `GraderError` unless a value is a grade with a finite reward. An exception instead of a grade is raised."""
    if isinstance(value, Exception):
        raise value
    if not isinstance(value, Grade):
        raise GraderError(f"Expected {grader} to return a Grade, got {describe(value)}: return Grade(reward=…).")
    reward = as_number(value.reward)
    if reward is None or not math.isfinite(reward):
        raise GraderError(f"Expected {grader} to return a finite number as reward, got {describe(value.reward)}.")
    _validate_grade_maps(value, grader)
    return value if type(value.reward) is float else replace(value, reward=float(reward))


def _validate_grade_maps(grade: Grade | GroupGrade, grader: str) -> None:
    if not all(isinstance(getattr(grade, name), Mapping) for name in ("reward_data", "extra")):
        raise GraderError(f"Expected {grader} to return mappings as reward_data and extra, got {describe(grade)}.")
