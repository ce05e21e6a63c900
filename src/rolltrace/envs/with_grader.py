"""Adds a grader to the tasks of another environment."""

from collections.abc import Mapping
from typing import Any

from rolltrace.envs.env import EnvGroupBuilder, copy_builder
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError

EnvArgs = dict[str, Any]
"""The arguments of another environment, by name."""
_DATA_ARGUMENTS = ("prompt", "messages", "criteria_column", "id", "split")
"""Arguments that say how `data` is read."""


def load_inner_tasks(own: str, args: Mapping[str, Any]) -> Tasks | None:
    """The tasks that the arguments `env` and `env_args` name; None if `env` is not set."""
    data, env, env_args = args["data"], args["env"], args["env_args"]
    if env is None:
        if env_args is not None:
            raise InputError(f"Expected env=NAME beside env_args for {own}, got env_args alone.")
        return None
    if data is not None:
        raise InputError(
            f"Expected either data=FILE or env=NAME for {own}, got both: data of {env} goes into "
            'env_args={"data": "FILE"}.'
        )
    if unread := [name for name in _DATA_ARGUMENTS if name in args]:
        raise InputError(
            f"Expected {unread[0]}=… beside data=FILE for {own}, got it beside env={env}: "
            f'arguments of {env} go into env_args, a JSON object such as env_args={{"NAME": "VALUE"}}.'
        )
    return load_env(env, env_args)


def with_grader(
    builder: EnvGroupBuilder, own: str, args: Mapping[str, Any], task_data: Mapping[str, Any] = {}, **graders: Any
) -> EnvGroupBuilder:
    """A copy of another environment's builder with this `grader` or `group_grader`, recorded as the environment `own`.

    The recorded arguments contain the name and the arguments of the other environment, so that it can be made again.
    """
    _refuse_second_grader(builder, own, graders)
    inner_args = {} if args["env"] is None else {**(args["env_args"] or {}), **builder.env_args}
    fields = {
        "env": own,
        "env_args": {**args, "env_args": inner_args or None},
        "task_data": {**builder.task_data, **task_data},
        "reward_range": None,  # the grade is added to the env's rewards
        **graders,
    }
    return copy_builder(builder, f"as env of {own}", fields)


def _refuse_second_grader(builder: EnvGroupBuilder, own: str, graders: Mapping[str, Any]) -> None:
    if "grader" in graders and builder.grader is not None:
        raise InputError(
            f"Expected an environment without a grader as env of {own}, got {builder.env}, "
            f"which has a {type(builder.grader).__name__}: a rollout is graded once."
        )
    if "group_grader" in graders and builder.grades_groups:
        raise InputError(
            f"Expected an environment that does not grade groups as env of {own}, got {builder.env}, "
            f"whose {type(builder).__name__} does: a group is graded once."
        )
