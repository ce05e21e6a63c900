"""What envs and graders gave, checked against what they promise to give."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from rolltrace.envs.env import STEP_MAP_FIELDS, Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.errors import EnvError, GraderError, InputError
from rolltrace.graders.grader import GroupGrade
from rolltrace.policies.validation import is_message
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.trace.freeform import describe
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Grade


def validate_builder(builder: Any) -> None:
    """A group that can be named and counted."""
    if not _is_of(EnvGroupBuilder, builder):
        raise EnvError(f"Expected an EnvGroupBuilder, got {describe(builder)}.")
    where = type(builder).__name__
    for name in ("env", "task"):
        if not isinstance(value := getattr(builder, name, None), str) or not value:
            raise EnvError(f"Expected {where}.{name} to be a name, got {describe(value)}: set it in the class.")
    for name in ("episodes", "seats"):
        if not isinstance(value := getattr(builder, name, None), int) or value < 1:
            raise EnvError(f"Expected {where}.{name} to be 1 or more, got {describe(value)}.")
    for name in ("env_args", "task_data"):
        if not _is_mapping(value := getattr(builder, name, None)):
            raise EnvError(f"Expected {where}.{name} to be a mapping, got {describe(value)}.")
    tags: Any = builder.tags
    if not isinstance(tags, tuple | list) or not all(isinstance(tag, str) for tag in tags):
        raise EnvError(f"Expected {where}.tags to be a tuple of names, got {describe(tags)}.")
    if (seed := builder.seed) is not None and not isinstance(seed, int):
        raise EnvError(f"Expected {where}.seed to be a whole number or None, got {describe(seed)}.")


def _is_of(kind: type, value: Any) -> bool:
    return kind in type(value).__mro__ or isinstance(value, kind)  # the first is quicker by far


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)


def validate_envs(envs: Any, builder: EnvGroupBuilder) -> Sequence[Env]:
    """One env per seat."""
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
    """Refuse parse retries for an env that cannot take a correction."""
    if limits.max_parse_retries and not env.can_observe:
        name = type(getattr(env, "env", env)).__name__
        raise InputError(
            f"Expected an environment that takes corrections with max_parse_retries={limits.max_parse_retries}, got "
            f"{name} without `observe`: implement its `observe`, or set max_parse_retries=0."
        )


def validate_first_observation(value: Any, env: Env) -> Observation | StepResult:
    """The first prompt, or the result of an episode in which there is nothing to play."""
    if not isinstance(value, StepResult):
        return validate_observation(value, env, "initial_observation")
    result = validate_step_result(value, env, "initial_observation")
    if not result.done:
        raise EnvError(
            f"Expected {type(env).__name__}.initial_observation to return an Observation, or a StepResult that is "
            "done, got one that is not: nobody has taken a step yet."
        )
    return result


def validate_observation(value: Any, env: Env, method: str) -> Observation:
    """An observation whose messages can be read."""
    if _is_plain(value):
        return value  # type: ignore[no-any-return]
    where = f"{type(env).__name__}.{method}"
    if not isinstance(value, Observation):
        raise EnvError(f"Expected {where} to return an Observation, got {describe(value)}: return Observation([…]).")
    messages = value.messages
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise EnvError(f"Expected {where} to show a list of messages, got {describe(messages)}.")
    shown: Sequence[Any] = messages
    for position, message in enumerate(shown):
        if not is_message(message):
            raise EnvError(f"Expected {where} to show messages, got {describe(message)} at messages[{position}].")
    for name in ("tools", "stop"):
        offered = getattr(value, name)
        if not isinstance(offered, list | tuple):
            raise EnvError(f"Expected {where} to give a list as {name}, got {describe(offered)}.")
    return value


_LISTS = frozenset({list, tuple})
_MESSAGES = frozenset({Message, dict})


def _is_plain(value: Any) -> bool:
    """Whether an observation is made of exact types: asking abstract classes costs more than all else together."""
    return (
        type(value) is Observation
        and type(value.messages) in _LISTS
        and type(value.tools) in _LISTS
        and type(value.stop) in _LISTS
        and _MESSAGES.issuperset(map(type, value.messages))
    )


def validate_step_result(value: Any, env: Env, method: str = "step") -> StepResult:
    """A step's result with a number for a reward and something to go on with."""
    where = f"{type(env).__name__}.{method}"
    if not isinstance(value, StepResult):
        raise EnvError(
            f"Expected {where} to return a StepResult, got {describe(value)}: return StepResult(reward=…, done=…)."
        )
    reward = as_number(value.reward)
    if reward is None:
        raise EnvError(f"Expected {where} to give a number as reward, got {describe(value.reward)}.")
    for name in STEP_MAP_FIELDS:
        given = getattr(value, name)
        if type(given) is not dict and not isinstance(given, Mapping):
            raise EnvError(f"Expected {where} to give a mapping as {name}, got {describe(given)}.")
    if value.observation is not None:
        validate_observation(value.observation, env, method)
    elif not value.done and method != "unfinished_step":
        raise EnvError(f"Expected {where} to return an observation or done=True, got neither: the policy sees nothing.")
    return value if type(value.reward) is float else replace(value, reward=float(reward))


def validate_group_grade(value: Any, grader: str) -> GroupGrade:
    """Grades by rollout id, and maps about the group."""
    given = value if isinstance(value, GroupGrade) else GroupGrade(value)
    if not isinstance(given.grades, Mapping):
        raise GraderError(f"Expected {grader} to return grades by rollout id, got {describe(given.grades)}.")
    grades = dict(given.grades)  # read once, here, where a mapping that breaks is the grader's failure
    if not all(isinstance(getattr(given, name), Mapping) for name in ("reward_data", "extra")):
        raise GraderError(f"Expected {grader} to give mappings as reward_data and extra, got {describe(given)}.")
    return replace(given, grades=grades)


def validate_grade(value: Any, grader: str) -> Grade:
    """A grade with a finite number for a reward; an exception in its place is raised."""
    if isinstance(value, Exception):
        raise value
    if not isinstance(value, Grade):
        raise GraderError(f"Expected {grader} to return a Grade, got {describe(value)}: return Grade(reward=…).")
    reward = as_number(value.reward)
    if reward is None or not math.isfinite(reward):
        raise GraderError(f"Expected {grader} to give a finite number as reward, got {describe(value.reward)}.")
    if not all(isinstance(getattr(value, name), Mapping) for name in ("reward_data", "extra")):
        raise GraderError(f"Expected {grader} to give mappings as reward_data and extra, got {describe(value)}.")
    return value if type(value.reward) is float else replace(value, reward=float(reward))
