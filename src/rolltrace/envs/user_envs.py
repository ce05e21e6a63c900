"""Environments of a user's own, whatever they are written as, as tasks that a run can walk."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolltrace.arguments import bind_arguments, call_with_arguments, list_arguments
from rolltrace.envs.env import Env, EnvGroupBuilder
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError, InputError
from rolltrace.seeds import derive_seed

_SEED_ARGUMENTS = ("seed", "episode")
"""Arguments that an env's constructor may have, and that it is then given for each episode."""
_EXPECTED = (
    "a Tasks, EnvGroupBuilder, Env or MessageEnv class, a Tasks or EnvGroupBuilder, or a function that returns one"
)


def as_tasks(found: Any, name: str, args: Mapping[str, Any]) -> Tasks:
    """What a name stands for, as tasks; `args` go to whatever is constructed or called first."""
    if isinstance(found, type):
        return _from_class(found, name, args)
    if not isinstance(found, Tasks | EnvGroupBuilder | Env | MessageEnv) and callable(found):
        return _from_function(found, name, args)
    if args:
        raise InputError(f"Expected no arguments for environment {name}, which is already made, got {', '.join(args)}.")
    if isinstance(found, Tasks):
        return found
    if isinstance(found, EnvGroupBuilder):
        return BuilderTasks(name, found)
    if isinstance(found, Env | MessageEnv):
        raise InputError(
            f"Expected {_EXPECTED} at {name}, got one {type(found).__name__}: an env plays one rollout only. "
            f"Name its class, or a function whose annotation says that it returns a {type(found).__name__}."
        )
    raise InputError(f"Expected {_EXPECTED} at {name}, got {type(found).__name__}.")


def _from_class(found: type, name: str, args: Mapping[str, Any]) -> Tasks:
    kind = next((kind for kind in (Tasks, EnvGroupBuilder, Env, MessageEnv) if issubclass(found, kind)), None)
    if kind is None:
        raise InputError(f"Expected {_EXPECTED} at {name}, got the class {found.__name__}: let it inherit from Env.")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise InputError(f"{name} lacks {', '.join(missing)}, which every {kind.__name__} must define.")
    if kind in (Env, MessageEnv):
        return EnvTasks(name, found, args)
    made = call_with_arguments(found, args, name)
    return made if isinstance(made, Tasks) else BuilderTasks(name, made)


def _from_function(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> Tasks:
    if inspect.iscoroutinefunction(function):
        raise InputError(f"Expected {_EXPECTED} at {name}, got an async function: make it a plain one.")
    try:
        returns = inspect.signature(function, eval_str=True).return_annotation
    except (NameError, AttributeError, SyntaxError, TypeError):
        returns = None
    if isinstance(returns, type) and issubclass(returns, Env | MessageEnv):
        return EnvTasks(name, function, args)
    made = call_with_arguments(function, args, name)
    if callable(made) and not isinstance(made, type):
        raise InputError(f"Expected {_EXPECTED} at {name}, got a function that returns {type(made).__name__}.")
    return as_tasks(made, name, {})


class BuilderTasks(Tasks):
    """One group builder, as the only task."""

    count = 1

    def __init__(self, name: str, group: EnvGroupBuilder) -> None:
        self.env = name
        self.group = group

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """A copy of the builder that plays so many episodes."""
        group = copy.copy(self.group)
        try:
            group.episodes = episodes
            for field, value in (("env", self.env), ("task", type(group).__name__)):
                if not getattr(group, field, None):
                    setattr(group, field, value)
        except (AttributeError, TypeError) as error:
            raise InputError(
                f"Expected a group builder at {self.env} whose `episodes`, `env` and `task` can be set, "
                f"got {type(group).__name__}: {error}. Let it be neither frozen nor a property."
            ) from error
        return group


class EnvTasks(Tasks):
    """An env's class, or a function that makes one: one task, or one for each seed where it takes a `seed`."""

    def __init__(self, name: str, make: Callable[..., Any], args: Mapping[str, Any]) -> None:
        self.env = name
        self.make = make
        self.args = bind_arguments(make, args, name, supplied=_SEED_ARGUMENTS)
        self.seed_arguments = {argument.name for argument in list_arguments(make)} & set(_SEED_ARGUMENTS) - set(args)
        self.count = None if "seed" in self.seed_arguments else 1

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays it with the seed of this number."""
        task_seed = derive_seed("env", self.env, seed, number)
        return SingleEnvGroup(
            self, f"seed{seed}-{number}" if self.count is None else self.make.__name__, episodes, task_seed
        )


class SingleEnvGroup(EnvGroupBuilder):
    """Makes the env inside `make_episode`, so that what its constructor raises is a recorded failure of the rollout."""

    def __init__(self, tasks: EnvTasks, task: str, episodes: int, seed: int) -> None:
        self.env = tasks.env
        self.task = task
        self.episodes = episodes
        self.seed = seed
        self.env_args = tasks.args
        self.make = tasks.make
        self.supplied = tasks.seed_arguments

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One fresh env."""
        rng = {name: value for name, value in (("seed", self.seed), ("episode", number)) if name in self.supplied}
        env = self.make(**self.env_args, **rng)
        if isinstance(env, Env):
            return (env,)
        if isinstance(env, MessageEnv):
            return (MessageEnvAdapter(env),)
        raise EnvError(f"Expected {self.env} to make an Env or a MessageEnv, got {type(env).__name__}.")
