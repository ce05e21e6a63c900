"""Records one env of tinker-cookbook while it is played: what it renders, samples, parses and returns."""

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial, update_wrapper
from typing import Any, Protocol

from rolltrace.bridges.guard import Guard
from rolltrace.bridges.tinker_package import (
    STOP_METRIC_PREFIX,
    TRUNCATION_METRIC_KEY,
    InitialObservationOverflow,
    Renderer,
    TokenCompleter,
)
from rolltrace.bridges.tinker_renderers import Rendered, image_tokens, listening, read_response, renderers_of, token_ids
from rolltrace.bridges.tinker_state import read_state
from rolltrace.secret_redaction import redact_mapping
from rolltrace.store.recorder import RolloutRecorder
from rolltrace.store.writer import RunWriter
from rolltrace.trace.codec import utc_now
from rolltrace.trace.failure import failure_of
from rolltrace.trace.stop_reasons import EnvFailure, Layer, StoppedBy, StopReason, Termination
from rolltrace.trace.tokens import Tokens, Usage

REF_ATTRIBUTE = "_rolltrace"
"""The attribute of a trajectory that says which rollout it is."""
_MAX_RENDERED = 8
"""How many of the last prompts that an env rendered are remembered, until one of them is sampled from."""
_METHODS = ("initial_observation", "step")
_by_env: "weakref.WeakValueDictionary[int, EnvRecording]" = weakref.WeakValueDictionary()


@dataclass
class RolloutRef:
    """Which rollout a trajectory is, also in another process."""

    run: str
    rollout: str
    total: float | None = None
    """The reward that is recorded."""


class Turn:
    """One turn: what was sampled from, then what was sampled, then what the env made of it."""

    def __init__(self, prompt: Any, stop: Any = None, sampling: dict[str, Any] | None = None) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.stop = stop
        self.extra: dict[str, Any] = {}
        self.seconds: float | None = None
        self.tokens: tuple[int, ...] | None = None
        self.logprobs: tuple[float, ...] | None = None
        self.is_cut = False
        self.parsed: tuple[Any, Any] | None = None


class EnvRecording:
    """The recording of one env, from its first observation to the reward from its group."""

    def __init__(
        self,
        env: Any,
        begin: Callable[["EnvRecording", Mapping[str, Any]], RolloutRecorder],
        on_over: Callable[["EnvRecording"], object],
        run: RunWriter,
        guard: Guard,
        state: Callable[[Any], Mapping[str, Any]] | None,
    ) -> None:
        self.env = env
        self.recorder: RolloutRecorder | None = None
        self.ref: RolloutRef | None = None
        self.is_over = False
        """Whether it was played to its end, or failed."""
        self.error: BaseException | None = None
        self.grade: tuple[float, Mapping[str, Any]] | None = None
        """The reward from the group, and its numbers."""
        self.is_watched = False
        """Whether it is known when it ends; else it ends with its group."""
        self._begin = begin
        self._on_over = on_over
        self._run = run
        self.guard = guard
        self._state = state
        self._start: Mapping[str, Any] = {}
        self._observation: Any = None
        self._rendered: list[Rendered] = []
        self._renderer: Renderer | None = None
        self._turn: Turn | None = None
        self._steps = 0
        self._without_logprobs: list[int] = []
        self._failure: EnvFailure | None = None
        self._layer = Layer.RUNNER
        self._stopped_by = StoppedBy.RUNNER
        self._trajectory: Any = None
        self._ended_at: datetime | None = None
        _by_env[id(env)] = self
        for name, recorded in zip(_METHODS, (_recorded_observation, _recorded_step), strict=True):
            original = getattr(env, name)
            object.__setattr__(env, name, update_wrapper(partial(recorded, self, original), original))

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_recording, ()  # a copy of the env is not recorded

    def release(self) -> None:
        """Give the env its own methods back."""
        for name in _METHODS:
            replaced = vars(self.env).get(name)
            if isinstance(replaced, partial) and replaced.args[:1] == (self,):
                object.__delattr__(self.env, name)
                if getattr(self.env, name) != replaced.args[1]:  # the env had one of its own, not of its class
                    object.__setattr__(self.env, name, replaced.args[1])

    # While it is played

    async def rolltrace_play(self, rollout: Callable[..., Awaitable[Any]], policy: TokenCompleter) -> Any:
        """Play the whole rollout with the function of tinker-cookbook that does."""
        token = listening.set(self)
        self.is_watched = True
        self.guard(self.begin)
        try:
            trajectory = await rollout(WatchedPolicy(policy, self), self.env)
        except BaseException as error:
            self.guard(self._set_over, error)
            raise
        finally:
            listening.reset(token)
        self.guard(self.finish, trajectory)
        return trajectory

    async def observe(self, original: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """The env's `initial_observation`."""
        token = listening.set(self)
        self.guard(self.begin)
        try:
            first = await original(*args, **kwargs)
        except BaseException:
            self._layer = Layer.ENV
            raise
        finally:
            listening.reset(token)
        if isinstance(first, InitialObservationOverflow):
            self._stopped_by = StoppedBy.ENV
        elif isinstance(first, Sequence):
            self._observation = first[0]
        return first

    async def step(self, original: Callable[..., Awaitable[Any]], action: list[int], *args: Any, **kwargs: Any) -> Any:
        """The env's `step`."""
        token = listening.set(self)
        self.guard(self._act, action, kwargs.get("extra"))
        try:
            result = await original(action, *args, **kwargs)
        except BaseException as error:
            self._layer = Layer.ENV
            self._failure = EnvFailure.RAISED if isinstance(error, Exception) else EnvFailure.CANCELLED
            raise
        finally:
            listening.reset(token)
        self.guard(self._record_step, result)
        return result

    def begin(self) -> None:
        """Begin the record of the rollout, once."""
        if self.recorder is None:
            self._start = redact_mapping(read_state(self.env))
            self.recorder = self._begin(self, self._start)
            self.recorder.call_before_end(self._record_rest)
            self.ref = RolloutRef(self._run.run, self.recorder.id)

    def sample(self, prompt: Any, stop: Any, policy: TokenCompleter, max_tokens: int | None) -> Turn:
        """The policy is asked."""
        limits = [limit for limit in (max_tokens, getattr(policy, "max_tokens", None)) if limit is not None]
        sampling = {"temperature": getattr(policy, "temperature", None), "max_tokens": min(limits, default=None)}
        sampling["stop" if all(isinstance(one, str) for one in stop) else "stop_token_ids"] = list(stop)
        self._observation = prompt
        return self._new_turn(list(stop), sampling)

    def sample_failed(self, error: BaseException) -> None:
        """The policy raised."""
        self._layer = Layer.POLICY

    def rendered(self, rendered: Rendered) -> None:
        """The env rendered a prompt, perhaps that of its next turn."""
        self._rendered = [*self._rendered[1 - _MAX_RENDERED :], rendered]

    def parsed(self, tokens: Sequence[int], parsed: tuple[Any, Any]) -> None:
        """The env parsed a response, perhaps that of its policy."""
        if self._turn is not None and self._turn.tokens == tuple(tokens):
            self._turn.parsed = parsed

    def _new_turn(self, stop: Any = None, sampling: dict[str, Any] | None = None) -> Turn:
        self._turn = turn = Turn(self._observation, stop, sampling)
        if images := image_tokens(turn.prompt):
            turn.extra["image_tokens"] = images
        if self.recorder is not None:
            self.recorder.send(self._messages(turn.prompt, turn.extra))
        return turn

    def _messages(self, prompt: Any, extra: dict[str, Any]) -> Sequence[Any]:
        """The messages that a prompt was rendered from; if the env did not render it, its text."""
        known = next((one for one in reversed(self._rendered) if one.prompt is prompt), None)
        if known is not None:
            self._renderer = known.renderer
            if known.prefill is not None:
                extra["prefill"] = known.prefill
            return known.messages
        extra["prompt_from"] = "tokens"
        return [{"role": "user", "content": self._decode(token_ids(prompt))}]

    def _decode(self, tokens: Sequence[int]) -> str:
        renderer = self._find_renderer()
        return str(list(tokens)) if renderer is None else str(renderer.tokenizer.decode(list(tokens)))

    def _find_renderer(self) -> Renderer | None:
        """The renderer of the last prompt; else the first that the env has."""
        if self._renderer is None:
            self._renderer = next(iter(renderers_of(self.env)), None)
        return self._renderer

    def _act(self, action: Sequence[int], extra: Mapping[str, Any] | None) -> None:
        turn = self._turn
        if turn is None or turn.tokens is not None:  # the policy is not watched
            turn = self._new_turn()
        turn.tokens = tuple(action)
        turn.is_cut = (extra or {}).get("stop_reason") == "length"

    def _record_step(self, result: Any) -> None:
        turn, recorder = self._turn, self.recorder
        if turn is None or turn.tokens is None or recorder is None:
            return
        fields: dict[str, Any] = {"env_failure": self._failure, "reward": None}
        if result is not None:
            self._observation = result.next_observation
            self._stopped_by = StoppedBy.ENV if result.episode_done else StoppedBy.RUNNER
            reward_data, _ = split_metrics(result.metrics)
            fields = {"reward": result.reward, "reward_data": reward_data, "logs": result.logs}
        if turn.logprobs is None:
            self._without_logprobs.append(self._steps)
        elif self._run.recording.tokens:
            fields["tokens"] = Tokens(token_ids(turn.prompt), turn.tokens, turn.logprobs)
        recorder.step(
            None, **self._response(turn), **fields, extra=turn.extra, sampling=turn.sampling, seconds=turn.seconds,
            env_state=self.guard(self._env_state), usage=Usage(turn.prompt.length, len(turn.tokens)),
        )  # fmt: skip
        self._steps += 1
        self._turn = None

    def _env_state(self) -> Mapping[str, Any]:
        """What the user's function says; else what is not as it was at the start."""
        if self._state is not None:
            return redact_mapping(dict(self._state(self.env)))
        state = redact_mapping(read_state(self.env))
        return {name: value for name, value in state.items() if name not in self._start or self._start[name] != value}

    def _response(self, turn: Turn) -> dict[str, Any]:
        renderer, tokens = self._find_renderer(), turn.tokens or ()
        if renderer is None:
            return {"response": self._decode(tokens), "termination": Termination.LENGTH if turn.is_cut else None}
        return read_response(renderer, tokens, turn.is_cut, turn.stop, turn.parsed)._asdict()

    # When it is over

    def finish(self, trajectory: Any) -> None:
        """The rollout came through; its group may still give it a reward."""
        if not self.is_over:
            self._trajectory = trajectory
            self._set_over(None)
        object.__setattr__(trajectory, REF_ATTRIBUTE, self.ref)

    def _set_over(self, error: BaseException | None) -> None:
        self.is_over, self.error, self._ended_at = True, error, utc_now()
        self.release()
        self._on_over(self)

    def end(self, grading_error: BaseException | None = None, *, is_timeout: bool = False) -> None:
        """Write the record. If it was cancelled, `is_timeout` says that this was for its time limit."""
        self.release()
        recorder, error = self.recorder, self.error
        if recorder is None or recorder.has_ended:
            return
        reason = getattr(self._trajectory, "stop_reason", None) or StopReason.COMPLETED
        if not self.is_over:
            reason = StopReason.EPISODE_ABORTED
        elif reason == "rollout_timeout" or (isinstance(error, asyncio.CancelledError) and is_timeout):
            reason = StopReason.TIMEOUT
            self._failure = self._failure and EnvFailure.TIMED_OUT
        failure: Any = error
        if isinstance(error, asyncio.CancelledError) and is_timeout:
            failure = {"type": "TimeoutError", "message": "The rollout exceeded its time limit.", "layer": Layer.LIMIT}
        elif isinstance(error, Exception):
            failure = failure_of(self._layer, error)
        elif error is None and self.is_over and grading_error is not None:
            failure = grading_error
            if isinstance(grading_error, Exception):
                failure = failure_of(Layer.GRADER, grading_error)
        if self.grade is not None and (self.grade[0] or self.grade[1]):
            recorder.grade(*self.grade)
        recorder.end(
            reason, stopped_by=self._stopped_by, pending=self.grade is None, error=failure, ended_at=self._ended_at
        )
        if self.grade is not None and failure is None and self.ref is not None:
            self.ref.total = sum(one.reward for one in self._trajectory.transitions) + self.grade[0]

    def _record_rest(self) -> None:
        """Record what is known only at the end."""
        if self._failure is not None:
            self._record_step(None)
        recorder = self.recorder
        transitions = [] if self._trajectory is None else self._trajectory.transitions
        if recorder is None:
            return
        if not self._steps and transitions:
            first = transitions[0]
            if self._turn is None and self._rendered:
                recorder.send(self._rendered[-1].messages)
            reward_data, _ = split_metrics(first.metrics)
            recorder.end_before_first_turn(first.reward, reward_data=reward_data, logs=first.logs)
        for name, value in split_metrics(transitions[-1].metrics)[1].items() if transitions else ():
            recorder.metric(name, value)
        for step in self._without_logprobs if self._run.recording.tokens else ():
            if step < len(transitions):
                taken = transitions[step]
                logprobs = None if taken.ac.maybe_logprobs is None else tuple(taken.ac.maybe_logprobs)
                recorder.attach_tokens(step, Tokens(token_ids(taken.ob), tuple(taken.ac.tokens), logprobs))


class Sampled(Protocol):
    """What is told what a policy samples."""

    guard: Guard

    def sample(self, prompt: Any, stop: Any, policy: TokenCompleter, max_tokens: int | None) -> Turn:
        """The policy is asked."""

    def sample_failed(self, error: BaseException) -> None:
        """The policy raised."""


class WatchedPolicy(TokenCompleter):
    """A policy whose answers are recorded."""

    def __init__(self, policy: TokenCompleter, recording: Sampled) -> None:
        self._policy = policy
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    async def __call__(self, model_input: Any, stop: Any, **kwargs: Any) -> Any:
        """Sample."""
        recording, guard = self._recording, self._recording.guard
        turn = guard(recording.sample, model_input, stop, self._policy, kwargs.get("max_tokens"))
        started = time.perf_counter()
        try:
            answer = await self._policy(model_input, stop, **kwargs)
        except BaseException as error:
            guard(recording.sample_failed, error)
            raise
        if turn is not None:
            turn.seconds = time.perf_counter() - started
            turn.logprobs = None if answer.maybe_logprobs is None else tuple(answer.maybe_logprobs)
        return answer


def recording_of(env: Any) -> EnvRecording | None:
    """The recording of an env."""
    recording = _by_env.get(id(env))
    return recording if recording is not None and recording.env is env else None


def split_metrics(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The numbers behind a reward, and those that the runner adds to the last turn, about the whole rollout."""
    late = {name for name in metrics if name.startswith(STOP_METRIC_PREFIX) or name == TRUNCATION_METRIC_KEY}
    return {name: value for name, value in metrics.items() if name not in late}, {name: metrics[name] for name in late}


async def _recorded_observation(
    recording: EnvRecording | None, original: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
) -> Any:
    return await (original(*args, **kwargs) if recording is None else recording.observe(original, *args, **kwargs))


async def _recorded_step(
    recording: EnvRecording | None, original: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
) -> Any:
    return await (original(*args, **kwargs) if recording is None else recording.step(original, *args, **kwargs))


def _no_recording() -> None:
    """What the recording of an env is where the env was copied to."""
