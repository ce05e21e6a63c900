"""What one rollout shows its policy next, and the record of each step."""

import msgspec
from msgspec.structs import replace

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.policies.policy import Completion, Request
from rolltrace.rollout.contract import validate_step_result
from rolltrace.rollout.rollout_end import RolloutEnd
from rolltrace.trace.conversion_cache import ConversionCache
from rolltrace.trace.convert import as_tool
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Sampling, ToolSpec
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.stop_reasons import Layer

_EMPTY_RESULT = StepResult(0.0, done=False)


class SampledTurn(msgspec.Struct, gc=False):
    """One request to the policy and its completion."""

    request: Request
    completion: Completion
    seconds: float
    """How long the policy took."""
    policy_version: int | str | None
    """The policy's version when it was asked; it may change before the completion arrives."""
    parse_error: str | None
    """Why the completion, or one of its tool calls, could not be parsed."""


class PromptState:
    """The tools and sampling settings of the next request; its messages are the rollout builder's `prompt`.

    Observations are frozen when they arrive, because the env may change its own lists afterwards.
    """

    __slots__ = ("_base_sampling", "_cache", "_rollout_builder", "sampling", "tools")

    def __init__(self, rollout_builder: RolloutBuilder, sampling: Sampling) -> None:
        self.tools: tuple[ToolSpec, ...] = ()
        self.sampling = sampling
        self._base_sampling = sampling
        self._rollout_builder = rollout_builder
        self._cache = ConversionCache(rollout_builder.notes)

    def add(self, observation: Observation) -> None:
        """Continue with what the env shows after the policy's last response."""
        self._set_tools_and_sampling(observation)
        messages = self._cache.convert(observation.messages)
        if observation.replaces_history:
            self._rollout_builder.replace(messages)
        else:
            self._rollout_builder.extend(messages)

    def insert(self, observation: Observation) -> None:
        """Continue with what `observe` returned. Unlike in `add`, it contains the policy's last response."""
        self._set_tools_and_sampling(observation)
        messages = self._cache.convert(observation.messages)
        self._rollout_builder.replace(
            messages if observation.replaces_history else [*self._rollout_builder.prompt, *messages]
        )

    def _set_tools_and_sampling(self, observation: Observation) -> None:
        self.sampling = self._base_sampling
        if not (observation.tools or observation.stop or self.tools):
            return
        notes: list[Note] = []
        tools = tuple(as_tool(tool, f"tools[{position}]", notes) for position, tool in enumerate(observation.tools))
        if tools != self.tools:  # tools that are offered again every turn are noted once
            self.tools = tools
            self._rollout_builder.notes.extend(notes)
        if observation.stop:
            stop = tuple(dict.fromkeys((*self._base_sampling.stop, *map(str, observation.stop))))
            self.sampling = replace(self._base_sampling, stop=stop)


class StepRecorder(msgspec.Struct):
    """Records the steps of one rollout, also one that the env does not finish."""

    _env: Env
    _rollout_builder: RolloutBuilder
    _last_step_unfinished: bool = False

    def record(
        self,
        sampled: SampledTurn,
        reward: float,
        env_reward: float | None = None,
        result: StepResult = _EMPTY_RESULT,
    ) -> None:
        """Add a step. Without `env_reward`, the env was not asked or failed, and the runner chose the reward."""
        completion = sampled.completion
        raw = completion.raw
        version = completion.policy_version
        self._rollout_builder.step(
            completion.message,
            reward=reward,
            env_reward=env_reward,
            reward_data=result.reward_data,
            env_state=result.env_state,
            extra=result.extra,
            metrics=result.metrics,
            logs=result.logs,
            tools=sampled.request.tools,
            sampling=sampled.request.sampling,
            termination=completion.termination,
            parse_error=sampled.parse_error,
            raw=None if raw == completion.message.content else raw,
            policy_version=sampled.policy_version if version is None else version,
            usage=completion.usage,
            seconds=sampled.seconds,
            tokens=completion.tokens,
        )

    def record_unfinished(self, sampled: SampledTurn) -> Observation | None:
        """Add a step that the env did not finish, and return what the env shows of it."""
        result = self._unfinished_step()
        self.record(sampled, 0.0, None, result)
        self._last_step_unfinished = True
        return result.observation

    def mark_unfinished(self) -> None:
        """Note that the env did not finish the turn of the last recorded step."""
        self._last_step_unfinished = True

    def set_env_failure(self, stop: RolloutEnd) -> None:
        """Record why the env did not finish the last step, if it did not. Only the end of the rollout says why."""
        if self._last_step_unfinished:
            self._last_step_unfinished = False
            self._rollout_builder.set_env_failure(stop.env_failure)

    def _unfinished_step(self) -> StepResult:
        env = type(self._env).__name__
        try:
            value = self._env.unfinished_step()
            result = _EMPTY_RESULT if value is None else validate_step_result(value, self._env, "unfinished_step")
        except Exception as error:  # noqa: BLE001 - the turn is recorded whatever the env does
            failure = failure_of(Layer.ENV, error)
            self._rollout_builder.add_note("", f"unfinished_step of {env} raised {failure.type}: {failure.message}")
            return _EMPTY_RESULT
        if result.reward:
            self._rollout_builder.add_note(
                "", f"unfinished_step of {env} gave the reward {result.reward}, which does not count"
            )
        return result
