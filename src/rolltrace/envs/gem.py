"""The built-in family `gem:NAME`: environments of GEM (the package gem-llm) that take text and return text."""

import contextlib
import importlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from rolltrace.envs.env import Env, Observation, SingleEnvGroup, SingleUse, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.textarena import RngState
from rolltrace.envs.textarena_games import missing_word_list, silenced
from rolltrace.errors import EnvError, InputError, UnknownNameError
from rolltrace.policies.policy import Completion
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason

FAMILY = "gem"
_SEEDS = 2**31
"""GEM passes seeds to numpy, which accepts 32 bits."""


class GemTasks(Tasks):
    """Environments of GEM, such as game:GuessTheNumber-v0-easy; the environment sets the rewards."""

    def __init__(self, name: str, system: str | None = None, options: dict[str, Any] | None = None) -> None:
        """Choose an environment. `options` are arguments of the environment itself."""
        known = self.names()
        if name not in known:
            raise UnknownNameError.for_name("environment of gem named", name, known)
        self.name = name
        self.env = f"{FAMILY}:{name}"
        self.args: dict[str, Any] = {"system": system, "options": options or {}}
        try:
            GemEnv(name, 0, **self.args).make()
        except EnvError as error:
            raise InputError(str(error)) from error

    @staticmethod
    def names() -> list[str]:
        """All environments that the installed package registers."""
        return sorted(_registration().ENV_REGISTRY)

    def builder(self, number: int, *, episodes: int, seed: int) -> SingleEnvGroup:
        """The group that plays the episode of this seed."""
        task_seed = derive_seed(FAMILY, self.name, seed, number) % _SEEDS
        return SingleEnvGroup(
            make_env=partial(GemEnv, self.name, task_seed, **self.args),
            env=self.env,
            task=f"{self.name}-seed{seed}-{number}",
            episodes=episodes,
            tags=(FAMILY, self.name.partition(":")[0]),
            env_args=self.args,
            task_data={"number": number},
            seed=task_seed,
        )


class GemEnv(Env):
    """One episode: each observation is a user's message, and the reply is the action."""

    takes_any_completion = True

    def __init__(self, name: str, seed: int, system: str | None, options: dict[str, Any]) -> None:
        self.name = name
        self.seed = seed
        self.system = system
        self.options = options
        self._env: Any = None
        self._turns = 0
        self._rng_state = RngState(seed)
        self._life = SingleUse()

    def make(self) -> None:
        """Make GEM's own object; raises `EnvError` if that is not possible, for example without a download."""
        with self._isolated("start"):
            self._env = _registration().make(self.name, **self.options)

    async def initial_observation(self) -> Observation:
        """What the environment says after its reset."""
        self._life.start()
        self.make()
        with self._isolated("reset"):
            observed, _ = self._env.reset(seed=self.seed)
        system = () if self.system is None else (Message("system", self.system),)
        return Observation((*system, _message(observed)))

    async def step(self, completion: Completion) -> StepResult:
        """Take the reply as the action."""
        self._life.require_active()
        self._turns += 1
        with self._isolated("step"):
            observed, reward, terminated, truncated, info = self._env.step(completion.message.content)
            state = self._env.get_state() if hasattr(self._env, "get_state") else {}
        done = bool(terminated or truncated)
        if done:
            self._life.end()
        return StepResult(
            reward=float(reward),
            done=done,
            observation=Observation((_message(observed, "" if done else info.get("suffix", "")),)),
            reward_data={"gem_reward": float(reward)},
            env_state={"turn": self._turns, **(state if isinstance(state, dict) else {"state": state})},
            extra={name: value for name, value in info.items() if name not in ("prefix", "suffix")},
            stop_reason=StopReason.MAX_TURNS if truncated and not terminated else None,
        )

    @contextlib.contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        with silenced(), self._rng_state.installed():
            try:
                yield
            except Exception as error:
                name = f"{FAMILY}:{self.name}"
                failed = f"{name} failed at its {what}: {type(error).__name__}: {error}"
                raise EnvError(missing_word_list(name, error) or failed) from error


def _message(observed: Any, reminder: str = "") -> Message:
    """An observation, with the reminder that GEM shows before each later turn."""
    return Message("user", "\n".join(filter(None, (str(observed), reminder))))


def _registration() -> Any:
    """GEM's registry of environments. Importing the package configures logging, which is undone."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        importlib.import_module("nltk")  # before GEM imports it, so that its downloads are suppressed
        importlib.import_module("gem.envs")
        return importlib.import_module("gem.envs.registration")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
