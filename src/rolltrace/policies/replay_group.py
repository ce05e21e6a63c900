"""A policy that repeats the answers of one recorded group, whatever the prompts are now."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

from rolltrace.errors import LimitReachedError, RecordEndedError
from rolltrace.policies.policy import Completion, Request
from rolltrace.policies.recorded_tools import recorded_tool_results, tool_results_of
from rolltrace.policies.replay import completion_of_call, completion_of_step, describe_end
from rolltrace.policies.replay_index import prompt_digest, with_full_prompts
from rolltrace.seeds import derive_member_seed, derive_seed
from rolltrace.trace.call import Call
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.stop_reasons import StopReason

_LIMITS = (StopReason.TIMEOUT, StopReason.MAX_TOTAL_TOKENS, StopReason.MAX_SAMPLED_TOKENS)
"""Limits of time and tokens, which a replay cannot measure: it stops where the recorded rollout stopped."""
_ABORT_SECONDS = 1.0
"""How long a seat that was aborted in the record waits for the seat that ended the game."""


class GroupReplayPolicy:
    """Plays every role of one group: each turn and each call gets its recorded answer.

    Recorded failures of the policy are raised, and a rollout that was stopped by a limit of time or tokens is stopped
    at the same turn. A request beyond the record raises `RecordEndedError`.
    """

    name = "replay"
    version: int | str | None = None
    context_length: int | None = None

    def __init__(
        self, rollouts: Iterable[Rollout], group_calls: Sequence[Call], *, seed: int, recorded_tools: bool = False
    ) -> None:
        """Take the group's rollouts, the calls of its grader, and the seed of the run.

        With `recorded_tools`, the tools of a `ToolEnv` do not run, and their recorded results are used.
        """
        self._recorded_tools = recorded_tools
        self._rollouts = {(rollout.index, rollout.attempt): rollout for rollout in rollouts}
        self._calls = {rollout.id: _Calls(rollout.calls) for rollout in self._rollouts.values()}
        self._group_calls = _Calls(group_calls)
        self._seed = seed
        self.unanswered: set[str | None] = set()
        """The rollouts that made a call without a recorded answer; None is the group's grader."""

    async def complete(self, request: Request) -> Completion:
        """Return the recorded answer."""
        identity = request.identity
        if identity is None:
            return self._answer_call(request, self._group_calls, None)
        rollout = self._rollouts.get((identity.index, identity.attempt))
        if rollout is None:
            raise RecordEndedError(f"The record has no attempt {identity.attempt} of index {identity.index}.")
        if not self._is_turn(request):
            return self._answer_call(request, self._calls[rollout.id], rollout.id)
        if request.step < len(rollout.steps):
            if self._recorded_tools:  # the env runs in the same context as this request
                recorded_tool_results.set(tool_results_of(rollout, request.step))
            return completion_of_step(rollout, rollout.steps[request.step], request)
        if rollout.stop_reason in _LIMITS:
            limit = LimitReachedError(f"In the record the rollout was stopped here: {rollout.stop_reason}.")
            limit.stop_reason = rollout.stop_reason
            raise limit
        end = describe_end(rollout, request, strict=False)
        if rollout.stop_reason == StopReason.EPISODE_ABORTED and rollout.seat is not None:
            await asyncio.sleep(_ABORT_SECONDS)
        raise RecordEndedError(f"Turn {request.step + 1} has no recorded answer: {end}.")

    def count_tokens(self, request: Request) -> int | None:
        """Return None: the limits of the context were checked when the record was made."""
        return None

    def _is_turn(self, request: Request) -> bool:
        """Whether a request is a turn of a rollout, not a call of `ask`: only the runner's seed of the turn says so."""
        identity = request.identity
        if identity is None:
            return False
        member_seed = derive_member_seed(
            self._seed, identity.split, identity.iteration, identity.group, identity.index, identity.attempt
        )
        return request.seed == derive_seed(member_seed, request.step)

    def _answer_call(self, request: Request, calls: "_Calls", rollout: str | None) -> Completion:
        call = calls.take(request.role, request.messages)
        if call is None:
            self.unanswered.add(rollout)
            raise RecordEndedError(f"The record has no further answer of the {request.role}.")
        return completion_of_call(call)


class _Calls:
    """The recorded calls of one rollout, or of the group's grader. Each is used once."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._by_role: dict[str, list[tuple[bytes, Call]]] = defaultdict(list)
        for call, prompt in with_full_prompts(calls):
            self._by_role[call.role].append((prompt_digest(prompt), call))

    def take(self, role: str, prompt: Sequence[Message]) -> Call | None:
        """The first unused call with this prompt, otherwise the first unused call to this role."""
        unused = self._by_role[role]
        if not unused:
            return None
        digest = prompt_digest(prompt)
        return unused.pop(next((number for number, (own, _) in enumerate(unused) if own == digest), 0))[1]
