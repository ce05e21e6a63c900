"""Which policy plays which role (policy, grader, answerer, opponent), and the recorded calls to roles."""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from rolltrace.cancellation import is_failure
from rolltrace.errors import InputError, PolicyError, RoleError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.validation import check_policy, coerce_completion, require_awaitable
from rolltrace.seeds import derive_seed
from rolltrace.trace.call import Call
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.rollout import Identity
from rolltrace.trace.stop_reasons import Layer

POLICY_ROLE = "policy"
"""The role of the policy that is trained."""


class Roles(msgspec.Struct, frozen=True):
    """The policy, and policies of other roles. The policy plays each role that has no policy of its own."""

    policy: Policy
    others: Mapping[str, Policy] = {}
    used: set[str] = msgspec.field(default_factory=set)
    """The roles that were used."""

    def __post_init__(self) -> None:
        check_policy(self.policy)
        for role, policy in self.others.items():
            if role == POLICY_ROLE:
                raise InputError(f"Expected policies of other roles, got one for {role!r}: pass it as the policy.")
            check_policy(policy)

    def policy_for_seat(self, role: str, seat: int | None) -> Policy:
        """The policy that plays a seat of a game: that of `seat1` for seat 1, otherwise that of the role."""
        if seat is not None and (numbered := f"seat{seat}") in self.others:
            role = numbered
        self.used.add(role)
        return self.others.get(role, self.policy)

    @property
    def unused(self) -> list[str]:
        """Roles that have a policy but were not used so far: their names may be misspelled."""
        return sorted(self.others.keys() - self.used)

    @property
    def played_by_policy(self) -> list[str]:
        """Other roles that were used and have no policy of their own."""
        return sorted(self.used - self.others.keys() - {POLICY_ROLE})


async def ask(
    role: str,
    messages: Sequence[Message | Mapping[str, Any]],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    seconds: float | None = None,
    about: str | None = None,
    seat: int | None = None,
) -> Completion:
    """Ask the policy of a role, and return its answer. The call is recorded with the current rollout.

    It works in an env or a grader that a runner plays, and inside `with with_roles(…)`. `seconds` is the time-out of
    the answer, without the wait for a request slot. `about` labels the call in the record. With `seat`, the policy of
    that seat (`seat1`) is asked, if there is one. Raises `RoleError` if there is no answer.
    """
    context = _CONTEXT.get()
    if context is None:
        raise PolicyError(
            f"No policy plays the role {role!r} here: ask() works while a Runner plays, or inside "
            "`with with_roles(policy):`."
        )
    return await context.caller.call(role, messages, sampling, seconds, about, seat)


@contextmanager
def with_roles(policy: Policy, **roles: Policy) -> Iterator[list[Call]]:
    """Make `ask` work in this block without a runner; yields the list of recorded calls."""
    calls: list[Call] = []
    with RoleCallContext(lambda: RoleCaller(Roles(policy, roles), calls)):
        yield calls


class RoleCallContext:
    """A block in which `ask` works, also in tasks that are started inside it.

    The caller is made at the first `ask`, because most rollouts call no other role.
    """

    __slots__ = ("_caller", "_make_caller", "_token")

    def __init__(self, make_caller: "Callable[[], RoleCaller]") -> None:
        self._make_caller = make_caller
        self._caller: RoleCaller | None = None

    @property
    def caller(self) -> "RoleCaller":
        """The caller that `ask` uses inside the block."""
        if self._caller is None:
            self._caller = self._make_caller()
        return self._caller

    def __enter__(self) -> None:
        self._token: Token[RoleCallContext | None] = _CONTEXT.set(self)

    def __exit__(self, *error: object) -> None:
        try:
            _CONTEXT.reset(self._token)
        except ValueError:  # an abandoned coroutine is closed in another context
            return


async def _do_not_wait() -> None:
    return


def _return_none() -> None:
    return


@dataclass(eq=False)
class RoleCaller:
    """Makes the calls of one rollout, or of the grading of one group, and lists them in order."""

    roles: Roles
    calls: list[Call]
    identity: Identity | None = None
    seed: int = 0
    current_step: Callable[[], int | None] = _return_none
    acquire_slot: Callable[[], Awaitable[Any]] = _do_not_wait
    release_slot: Callable[[], None] = _return_none
    notes: list[Note] = field(default_factory=list)
    """Notes on values that could not be recorded unchanged."""

    def __post_init__(self) -> None:
        self._seed_counts: Counter[int] = Counter()
        self._answered: dict[tuple[str, int, str], list[tuple[int, tuple[Message, ...]]]] = {}
        """Answered calls: their numbers and conversations, by role and by position and text of the answer."""

    async def call(
        self,
        role: str,
        messages: Sequence[Message | Mapping[str, Any]],
        sampling: Sampling,
        seconds: float | None,
        about: str | None = None,
        seat: int | None = None,
    ) -> Completion:
        """Call the policy, and record the prompt and the reply or failure."""
        policy = self.roles.policy_for_seat(role, seat)
        path = f"calls[{len(self.calls)}]"
        prompt = tuple(as_message(message, f"{path}.prompt[{n}]", self.notes) for n, message in enumerate(messages))
        step = self.current_step()
        request = Request(
            messages=prompt, sampling=sampling, seed=self._seed_of(role, step, prompt), identity=self.identity,
            step=step or 0, role=role,
        )  # fmt: skip
        number = self._record_prompt(role, policy, prompt, step, about)
        async with self._request_slot(number):
            started = time.perf_counter()
            limit = asyncio.timeout(seconds)
            try:
                async with limit:
                    answer = await require_awaitable(policy.complete(request), policy, "complete")
                    completion = coerce_completion(answer, policy, self.notes, path)
            except BaseException as error:
                if isinstance(error, TimeoutError) and limit.expired():
                    error = TimeoutError(f"no answer within {seconds} s")
                failure = failure_of(Layer.POLICY, error)
                duration = time.perf_counter() - started
                raw = error.raw if isinstance(error, PolicyError) else None
                self.calls[number] = replace(self.calls[number], error=failure, seconds=duration, raw=raw)
                if not is_failure(error):
                    raise
                raise RoleError(
                    f"The {role} (policy {policy.name!r}) did not answer: {failure.type}: {failure.message}"
                ) from error
            self._record_answer(number, role, prompt, completion, time.perf_counter() - started)
        return completion

    @asynccontextmanager
    async def _request_slot(self, number: int) -> AsyncIterator[None]:
        try:
            await self.acquire_slot()
        except BaseException as error:
            failure = failure_of(Layer.POLICY, error)
            unsent = replace(failure, message=f"it was not sent: {failure.message or 'no request slot was free'}")
            self.calls[number] = replace(self.calls[number], error=unsent)
            raise
        try:
            yield
        finally:
            self.release_slot()

    def _seed_of(self, role: str, step: int | None, prompt: tuple[Message, ...]) -> int:
        """A seed that depends on the prompt and not on the order of calls. A repeated prompt gets a new seed."""
        seed = derive_seed(self.seed, role, step, *(f"{message.role}: {message.content}" for message in prompt))
        self._seed_counts[seed] += 1
        return derive_seed(seed, self._seed_counts[seed])

    def _record_prompt(
        self, role: str, policy: Policy, prompt: tuple[Message, ...], step: int | None, about: str | None
    ) -> int:
        """Record the prompt before the call. If it continues an earlier call, record only the new messages."""
        continued, length = self._continued_call(role, prompt)
        call = Call(role, policy.name, prompt[length:], step=step, continues_call=continued, about=about)
        self.calls.append(replace(call, policy_version=policy.version))
        return len(self.calls) - 1

    def _continued_call(self, role: str, prompt: tuple[Message, ...]) -> tuple[int | None, int]:
        """The earlier call that a prompt continues, and the length of the conversation that they share."""
        for position in reversed(range(len(prompt))):
            if prompt[position].role == "assistant":
                for number, conversation in self._answered.get((role, position, prompt[position].content), ()):
                    if prompt[: position + 1] == conversation:
                        return number, position + 1
                break
        return None, 0

    def _record_answer(
        self, number: int, role: str, prompt: tuple[Message, ...], completion: Completion, seconds: float
    ) -> None:
        message = completion.message
        version_at_start = self.calls[number].policy_version  # the version may have changed in between
        self.calls[number] = replace(
            self.calls[number],
            reply=message,
            policy_version=version_at_start if completion.policy_version is None else completion.policy_version,
            raw=None if completion.raw == message.content else completion.raw,
            usage=completion.usage,
            seconds=seconds,
            termination=completion.termination,
        )
        answered = self._answered.setdefault((role, len(prompt), message.content), [])
        insort(answered, (number, (*prompt, message)), key=itemgetter(0))


_CONTEXT: ContextVar[RoleCallContext | None] = ContextVar("rolltrace.role_calls", default=None)
