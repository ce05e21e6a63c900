"""Plays a group of our envs while another framework samples the answers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.errors import InputError, PolicyError, RolltraceError
from rolltrace.policies.policy import Completion, Policy, Request, to_completion
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.rollout.strategies import KeepViable, Strategy
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey
from rolltrace.trace.sink import Sink

_UNBOUNDED = 1 << 30
"""The framework bounds its own requests."""


class SteppedGroup:
    """A group that a `Runner` plays and records as usual, with answers that are given from outside.

    The framework takes each rollout's next request, samples, and gives the answer. Limits, parse errors, graders and
    the record are the runner's. `roles` are the policies of other roles, such as `grader`, because the framework
    answers for the trained policy only. Without `run`, nothing is written to disk. Use it in one event loop.
    """

    def __init__(
        self,
        builder: EnvGroupBuilder,
        *,
        run: Sink | None = None,
        group: str | None = None,
        iteration: int = 0,
        split: str = "train",
        policy: str = "external",
        roles: Mapping[str, Policy] | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        strategy: Strategy = KeepViable(),  # noqa: B008 - frozen
        seed: int = 0,
    ) -> None:
        self.builder = builder
        self.key = GroupKey(split, iteration, builder.env, builder.task if group is None else group)
        self._by_index: dict[int, SteppedRollout] = {}
        outside = _OutsidePolicy(policy, builder, self._by_index)
        self._runner = Runner(
            outside,
            roles=roles,
            sink=_WatchedSink(MemorySink() if run is None else run, self._by_index),
            limits=limits,
            strategy=strategy,
            sampling=sampling,
            concurrency=_UNBOUNDED,
            seed=seed,
        )
        for index in range(builder.episodes * builder.seats):
            seat = index % builder.seats if builder.seats > 1 else None
            if self._runner.roles.policy_for_seat(builder.role_of(seat or 0), seat) is outside:
                self._by_index[index] = SteppedRollout(index)
        self._task: asyncio.Task[GroupResult] | None = None

    @property
    def rollouts(self) -> "list[SteppedRollout]":
        """The rollouts that are answered from outside, in the order of their indexes."""
        return list(self._by_index.values())

    async def start(self) -> "list[SteppedRollout]":
        """Start to play, and return `rollouts`."""
        if self._task is not None:
            raise InputError("A stepped group is played once: make a new one.")
        self._task = asyncio.create_task(self._runner.play_group(self.builder, self.key))
        self._task.add_done_callback(self._end_all)
        return self.rollouts

    async def result(self) -> GroupResult:
        """The result, once every rollout has ended and the group is graded."""
        if self._task is None:
            raise InputError("Expected the group to be started: call `start` first.")
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        """Cancel what is still being played; it is recorded as cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _end_all(self, task: "asyncio.Task[GroupResult]") -> None:
        error = None if task.cancelled() else task.exception()
        for rollout in self.rollouts:
            rollout.end(None, error)


class SteppedRollout:
    """One rollout that is answered from outside: `next_request`, `answer`, `next_request`, and so on until None."""

    def __init__(self, index: int) -> None:
        self.index = index
        """Its number in the group."""
        self.id: str | None = None
        """Its id in the record, once it has started."""
        self.outcome: Outcome | None = None
        """How it ended: stop reason, reward and more."""
        self._rollout_builder: RolloutBuilder | None = None
        self._request: Request | None = None
        self._answer: asyncio.Future[Completion] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._changed = asyncio.Event()

    @property
    def rewards(self) -> list[float]:
        """The reward of each step so far."""
        return [] if self._rollout_builder is None else list(self._rollout_builder.rewards)

    async def next_request(self) -> Request | None:
        """Wait for the next turn of the policy; None once the rollout is over."""
        while self._request is None and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        if self._ended:
            if self.outcome is None:
                raise RolltraceError(f"Rollout {self.index} was not played to an end.") from self._error
            return None
        return self._request

    def answer(self, answer: Completion | Message | str) -> None:
        """Answer the request. An answer after the end of the rollout, such as after a time-out, does not count."""
        completion = to_completion(answer)
        if (waiting := self._take_request()) is not None:
            waiting.set_result(completion)

    def fail(self, error: Exception) -> None:
        """There is no answer: the policy has failed, or the prompt does not fit (`ContextOverflowError`)."""
        if (waiting := self._take_request()) is not None:
            waiting.set_exception(error)

    def _take_request(self) -> "asyncio.Future[Completion] | None":
        waiting, self._request, self._answer = self._answer, None, None
        if waiting is None and not self._ended:
            raise InputError(f"Rollout {self.index} has no request to answer: await `next_request` first.")
        return None if waiting is None or waiting.done() else waiting

    # What the runner does

    def begin(self, rollout_builder: RolloutBuilder) -> None:
        """The runner starts to play it."""
        self.id = rollout_builder.id
        self._rollout_builder = rollout_builder

    async def complete(self, request: Request) -> Completion:
        """The runner asks for an answer."""
        self._request = request
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._changed.set()
        return await answer

    def end(self, outcome: Outcome | None, error: BaseException | None = None) -> None:
        """The runner has recorded it, or has given up on the group."""
        self.outcome = outcome if self.outcome is None else self.outcome
        self._error = error
        self._ended = True
        self._changed.set()


def role_error(role: str) -> PolicyError:
    """What to raise for a request of a role that the framework does not answer for."""
    return PolicyError(
        f"The role {role!r} needs a policy of its own: pass roles={{{role!r}: …}}. "
        "The other framework answers for its own policy only."
    )


class _OutsidePolicy:
    """The policy of the runner: each request waits at its rollout until it is answered."""

    version = None
    context_length = None

    def __init__(self, name: str, builder: EnvGroupBuilder, rollouts: Mapping[int, SteppedRollout]) -> None:
        self.name = name
        self._builder = builder
        self._rollouts = rollouts

    async def complete(self, request: Request) -> Completion:
        identity = request.identity
        if identity is None or request.role != self._builder.role_of(identity.seat or 0):
            raise role_error(request.role)
        return await self._rollouts[identity.index or 0].complete(request)

    def count_tokens(self, request: Request) -> int | None:
        return None


class _WatchedSink:
    """A sink that tells each rollout when it begins and ends."""

    def __init__(self, sink: Sink, rollouts: Mapping[int, SteppedRollout]) -> None:
        self._sink = sink
        self._rollouts = rollouts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, header: Header) -> RolloutBuilder:
        rollout_builder = self._sink.begin(header)
        if (rollout := self._rollouts.get(header.index or 0)) is not None:
            rollout.begin(rollout_builder)
        return rollout_builder

    def end(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> None:
        self._sink.end(rollout_builder, outcome)
        if (rollout := self._rollouts.get(rollout_builder.header.index or 0)) is not None:
            rollout.end(outcome)
