"""Adapts environments that keep one list of chat messages and return it whole after each turn."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import STEP_MAP_FIELDS, Env, Observation, SingleUse, StepResult
from rolltrace.errors import EnvError
from rolltrace.policies.policy import Completion
from rolltrace.trace.convert import to_openai
from rolltrace.trace.message import Message, ToolSpec


class MessageStepResult(msgspec.Struct):
    """The result of one message."""

    reward: float
    episode_done: bool
    next_messages: Sequence[Any]
    """The whole history, including the policy's message."""
    metrics: Mapping[str, Any] = {}
    logs: Mapping[str, Any] = {}
    reward_data: Mapping[str, Any] = {}
    env_state: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    stop_reason: str | None = None


class MessageEnv(ABC):
    """An environment in terms of chat dicts. It may keep one list, change it in place and return it every time."""

    tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
    """The tools that the policy may call."""
    stop: Sequence[str] = ()
    """Stop sequences for the policy's turns."""

    @abstractmethod
    async def initial_observation(self) -> Sequence[Any]:
        """The first prompt."""

    @abstractmethod
    async def step(self, message: dict[str, Any]) -> MessageStepResult:
        """Handle the policy's message, a new chat dict that the environment may keep and change."""

    def unfinished_step(self) -> MessageStepResult | None:
        """The partial result of a `step` that raised or was cancelled, for the record; its reward does not count."""
        return None

    async def observe(self, messages: Sequence[dict[str, Any]]) -> Sequence[Any] | None:
        """Accept messages from the runner or a hook, and return the whole history; None if this is not supported."""
        return None

    async def close(self) -> None:
        """Release the environment's resources."""
        return


class MessageEnvAdapter(Env):
    """A `MessageEnv`, or any object with its two methods, as an `Env`.

    It passes the history on as the whole new prompt. The runner copies it at once, so the record is right even if the
    environment changes its list afterwards.
    """

    def __init__(self, env: Any) -> None:
        for method in ("initial_observation", "step"):
            if not callable(getattr(env, method, None)):
                raise EnvError(f"Expected a message env with a method `{method}`, got {type(env).__name__} without it.")
        self.env = env
        self._life = SingleUse()

    async def initial_observation(self) -> Observation:
        """The first prompt."""
        self._life.start()
        return self._observation(await _await_if_async(self.env.initial_observation()), "initial_observation")

    async def step(self, completion: Completion) -> StepResult:
        """Pass the policy's message on, and convert the result."""
        self._life.require_active()
        result = self._as_step_result(await _await_if_async(self.env.step(to_openai(completion.message))), "step")
        if result.done:
            self._life.end()
        return result

    def unfinished_step(self) -> StepResult | None:
        """The environment's partial result of a `step` that it did not finish."""
        if not callable(unfinished := getattr(self.env, "unfinished_step", None)):
            return None
        result = unfinished()
        return None if result is None else self._as_step_result(result, "unfinished_step")

    @property
    def can_observe(self) -> bool:
        """Whether the message env implements `observe`."""
        observe = getattr(self.env, "observe", None)
        return callable(observe) and getattr(observe, "__func__", None) is not MessageEnv.observe

    async def observe(self, messages: Sequence[Message]) -> Observation | None:
        """Pass messages on, if the environment accepts them."""
        if not callable(observe := getattr(self.env, "observe", None)):
            return None
        history = await _await_if_async(observe([to_openai(message) for message in messages]))
        return None if history is None else self._observation(history, "observe")

    async def close(self) -> None:
        """Close the environment, if it can be closed."""
        if callable(close := getattr(self.env, "close", None)):
            await _await_if_async(close())

    def _as_step_result(self, result: Any, method: str) -> StepResult:
        missing = [name for name in ("reward", "episode_done", "next_messages") if not hasattr(result, name)]
        if missing:
            raise EnvError(
                f"Expected {type(self.env).__name__}.{method} to return a MessageStepResult, got "
                f"{type(result).__name__} without {', '.join(missing)}: "
                "return MessageStepResult(reward=…, episode_done=…, next_messages=…)."
            )
        optional = {name: getattr(result, name, {}) or {} for name in STEP_MAP_FIELDS}
        return StepResult(
            reward=result.reward,
            done=result.episode_done,
            observation=self._observation(result.next_messages, method),
            stop_reason=getattr(result, "stop_reason", None),
            **optional,
        )

    def _observation(self, history: Any, method: str) -> Observation:
        if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
            raise EnvError(
                f"Expected {type(self.env).__name__}.{method} to return a list of messages, "
                f"got {type(history).__name__}: return the whole history."
            )
        tools = getattr(self.env, "tools", None) or ()
        stop = getattr(self.env, "stop", None) or ()
        return Observation(history, tools=tools, stop=stop, replaces_history=True)


async def _await_if_async(value: Any) -> Any:
    """The result of a method, which may be async or not."""
    return await value if inspect.isawaitable(value) else value
