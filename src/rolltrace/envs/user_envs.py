"""Turns an environment that a user wrote, as a class, function or builder, into `Tasks`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltrace.arguments import bind_arguments, call_with_arguments, list_arguments
from rolltrace.envs.env import Env, EnvGroupBuilder, SingleEnvGroup, copy_builder
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import EnvError, InputError
from rolltrace.seeds import derive_seed

_SEED_ARGUMENTS = ("seed", "episode")
"""Arguments that are passed to an env's constructor for each episode, if it has them."""
_EXPECTED = (
    "a Tasks, EnvGroupBuilder, Env or MessageEnv class, a Tasks or EnvGroupBuilder, or a function that returns one"
)


def as_tasks(value: Any, name: str, args: Mapping[str, Any]) -> Tasks:
    """Turn the object behind a name into tasks; `args` are passed to the class or function."""
    if isinstance(value, type):
        return _from_class(value, name, args)
    if not isinstance(value, Tasks | EnvGroupBuilder | Env | MessageEnv) and callable(value):
        return _from_function(value, name, args)
    if args:
        raise InputError(f"Expected no arguments for {name}, which is an object already, got {', '.join(args)}.")
    if isinstance(value, Tasks):
        return value
    if isinstance(value, EnvGroupBuilder):
        return BuilderTasks(name, value)
    if isinstance(value, Env | MessageEnv):
        raise InputError(
            f"Expected {_EXPECTED} at {name}, got one {type(value).__name__}: an env plays one rollout only. "
            f"Name its class, or a function whose annotation says that it returns a {type(value).__name__}."
        )
    raise InputError(f"Expected {_EXPECTED} at {name}, got {type(value).__name__}.")


def _from_class(value: type, name: str, args: Mapping[str, Any]) -> Tasks:
    kind = next((kind for kind in (Tasks, EnvGroupBuilder, Env, MessageEnv) if issubclass(value, kind)), None)
    if kind is None:
        raise InputError(f"Expected {_EXPECTED} at {name}, got the class {value.__name__}: let it inherit from Env.")
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise InputError(f"{name} lacks {', '.join(missing)}, which every {kind.__name__} must define.")
    if kind in (Env, MessageEnv):
        return EnvTasks(name, value, args)
    result = call_with_arguments(value, args, name)
    return result if isinstance(result, Tasks) else BuilderTasks(name, result)


def _from_function(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> Tasks:
    if inspect.iscoroutinefunction(function):
        raise InputError(f"Expected {_EXPECTED} at {name}, got an async function: make it a plain one.")
    try:
        returns = inspect.signature(function, eval_str=True).return_annotation
    except (NameError, AttributeError, SyntaxError, TypeError):
        returns = None
    if isinstance(returns, type) and issubclass(returns, Env | MessageEnv):
        return EnvTasks(name, function, args)
    result = call_with_arguments(function, args, name)
    if callable(result) and not isinstance(result, type):
        raise InputError(f"Expected {_EXPECTED} at {name}, got a function that returns {type(result).__name__}.")
    return as_tasks(result, name, {})


class BuilderTasks(Tasks):
    """One group builder, as the only task."""

    count = 1

    def __init__(self, name: str, group: EnvGroupBuilder) -> None:
        self.env = name
        self.group = group

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """A copy of the builder with this number of episodes."""
        names = {"env": self.env, "task": type(self.group).__name__}
        missing = {field: name for field, name in names.items() if not getattr(self.group, field, None)}
        return copy_builder(self.group, f"at {self.env}", {"episodes": episodes, **missing})


class EnvTasks(Tasks):
    """An env's class, or a function that makes one: one task, or one for each seed if it takes a `seed`."""

    def __init__(self, name: str, make: Callable[..., Any], args: Mapping[str, Any]) -> None:
        self.env = name
        self.make = make
        self.args = bind_arguments(make, args, name, supplied=_SEED_ARGUMENTS)
        self.seed_arguments = {argument.name for argument in list_arguments(make)} & set(_SEED_ARGUMENTS) - set(args)
        self.count = None if "seed" in self.seed_arguments else 1

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays the env with the seed of this number."""
        return UserEnvGroup(
            make_env=self.make,
            env=self.env,
            task=f"seed{seed}-{number}" if self.count is None else self.make.__name__,
            episodes=episodes,
            env_args=self.args,
            seed=derive_seed("env", self.env, seed, number),
            seed_arguments=frozenset(self.seed_arguments),
        )


@dataclass(kw_only=True)
class UserEnvGroup(SingleEnvGroup):
    """Makes the env in `make_episode`, so that an error of its constructor is a recorded failure of the rollout."""

    seed_arguments: frozenset[str]
    """Which of `seed` and `episode` the constructor takes."""

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One new env."""
        values = {"seed": self.seed, "episode": number}
        env = self.make_env(**self.env_args, **{name: values[name] for name in self.seed_arguments})
        if isinstance(env, Env):
            return (env,)
        if isinstance(env, MessageEnv):
            return (MessageEnvAdapter(env),)
        raise EnvError(f"Expected {self.env} to make an Env or a MessageEnv, got {type(env).__name__}.")
