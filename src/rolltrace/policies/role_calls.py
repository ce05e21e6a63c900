"""Calls the policies of other roles (grader, answerer, opponent), and records each call."""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, Token
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from rolltrace.cancellation import is_failure
from rolltrace.errors import PolicyError, RoleError
from rolltrace.policies.policy import Completion, Policy, Request
from rolltrace.policies.roles import Roles
from rolltrace.policies.validation import coerce_completion, require_awaitable
from rolltrace.seeds import derive_seed
from rolltrace.trace.convert import as_message
from rolltrace.trace.failure import failure_of
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.rollout import Call, Identity
from rolltrace.trace.stop_reasons import Layer


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

    It works inside an env and a grader while a runner plays them, and inside `with with_roles(…)`. `seconds` bounds the
    answer, not the wait for a place among the requests in flight. `about` says in a word what is asked about, for
    whoever reads the record. With `seat`, whoever was given that seat of a game, as `seat1`, is asked before the role.
    No answer is a `RoleError`.
    """
    asking = _ASKING.get()
    if asking is None:
        raise PolicyError(
            f"Nobody plays the role {role!r} here: ask() works while a Runner plays, or inside "
            "`with with_roles(policy):`."
        )
    return await asking.caller.call(role, messages, sampling, seconds, about, seat)


@contextmanager
def with_roles(policy: Policy, **roles: Policy) -> Iterator[list[Call]]:
    """Make `ask` work in this block without a runner; yields the list of recorded calls."""
    calls: list[Call] = []
    with RoleCallContext(lambda: RoleCaller(Roles(policy, roles), calls)):
        yield calls


class RoleCallContext:
    """A block in which `ask` works, also in tasks that are started inside it.

    The asker is made when the first one asks: most rollouts have nobody to ask.
    """

    __slots__ = ("_asker", "_make", "_token")

    def __init__(self, make: "Callable[[], RoleCaller]") -> None:
        self._make = make
        self._asker: RoleCaller | None = None

    @property
    def caller(self) -> "RoleCaller":
        """The caller that `ask` uses inside the block."""
        if self._asker is None:
            self._asker = self._make()
        return self._asker

    def __enter__(self) -> None:
        self._token: Token[RoleCallContext | None] = _ASKING.set(self)

    def __exit__(self, *error: object) -> None:
        try:
            _ASKING.reset(self._token)
        except ValueError:  # an abandoned coroutine is closed in another context
            return


async def _no_wait() -> None:
    return


def _nothing() -> None:
    return


class RoleCaller:
    """Makes the calls of one rollout, or of the grading of one group, and lists them in order."""

    def __init__(
        self,
        roles: Roles,
        calls: list[Call],
        *,
        identity: Identity | None = None,
        seed: int = 0,
        step: Callable[[], int | None] = _nothing,
        enter: Callable[[], Awaitable[Any]] = _no_wait,
        leave: Callable[[], None] = _nothing,
        notes: list[Note] | None = None,
    ) -> None:
        """`enter` acquires a slot for a request in flight, and `leave` releases it."""
        self._roles = roles
        self._calls = calls
        self._identity = identity
        self._seed = seed
        self._step = step
        self._enter = enter
        self._leave = leave
        self._notes = [] if notes is None else notes
        """Notes on values that could not be recorded as they were."""
        self._asked: Counter[int] = Counter()
        self._answered: dict[tuple[str, int, str], list[tuple[int, tuple[Message, ...]]]] = {}
        """Answered calls with their conversations, by role and by position and text of the answer."""

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
        policy = self._roles.policy_for_seat(role, seat)
        path = f"calls[{len(self._calls)}]"
        prompt = tuple(as_message(message, f"{path}.prompt[{n}]", self._notes) for n, message in enumerate(messages))
        step = self._step()
        request = Request(
            messages=prompt, sampling=sampling, seed=self._seed_of(role, step, prompt), identity=self._identity,
            step=step or 0, role=role,
        )  # fmt: skip
        place = self._note_call(role, policy, prompt, step, about)
        async with self._place_in_flight(place):
            started = time.perf_counter()
            limit = asyncio.timeout(seconds)
            try:
                async with limit:
                    answer = await require_awaitable(policy.complete(request), policy, "complete")
                    completion = coerce_completion(answer, policy, self._notes, path)
            except BaseException as error:
                if isinstance(error, TimeoutError) and limit.expired():
                    error = TimeoutError(f"no answer within {seconds} s")
                failure = failure_of(Layer.POLICY, error)
                took = time.perf_counter() - started
                raw = error.raw if isinstance(error, PolicyError) else None
                self._calls[place] = replace(self._calls[place], error=failure, seconds=took, raw=raw)
                if not is_failure(error):
                    raise
                raise RoleError(
                    f"The {role} (policy {policy.name!r}) did not answer: {failure.type}: {failure.message}"
                ) from error
            self._note_answer(place, role, prompt, completion, time.perf_counter() - started)
        return completion

    @asynccontextmanager
    async def _place_in_flight(self, place: int) -> AsyncIterator[None]:
        try:
            await self._enter()
        except BaseException as error:
            failure = failure_of(Layer.POLICY, error)
            unsent = replace(failure, message=f"it was not sent: {failure.message or 'there was no place in time'}")
            self._calls[place] = replace(self._calls[place], error=unsent)
            raise
        try:
            yield
        finally:
            self._leave()

    def _seed_of(self, role: str, step: int | None, prompt: tuple[Message, ...]) -> int:
        """A seed that depends on the prompt and not on the order of calls. A repeated prompt gets another one."""
        seed = derive_seed(self._seed, role, step, *(f"{message.role}: {message.content}" for message in prompt))
        self._asked[seed] += 1
        return derive_seed(seed, self._asked[seed])

    def _note_call(
        self, role: str, policy: Policy, prompt: tuple[Message, ...], step: int | None, about: str | None
    ) -> int:
        """Record the prompt before the call. If it continues an earlier call, record only the new messages."""
        continues, known = self._earlier(role, prompt)
        call = Call(role, policy.name, prompt[known:], step=step, continues_call=continues, about=about)
        self._calls.append(replace(call, policy_version=policy.version))
        return len(self._calls) - 1

    def _earlier(self, role: str, prompt: tuple[Message, ...]) -> tuple[int | None, int]:
        """The earlier call that a prompt continues, and how many of its messages that one has."""
        for place in reversed(range(len(prompt))):
            if prompt[place].role == "assistant":
                for number, conversation in self._answered.get((role, place, prompt[place].content), ()):
                    if prompt[: place + 1] == conversation:
                        return number, place + 1
                break
        return None, 0

    def _note_answer(
        self, place: int, role: str, prompt: tuple[Message, ...], completion: Completion, took: float
    ) -> None:
        message = completion.message
        asked = self._calls[place].policy_version  # the version may have changed in between
        self._calls[place] = replace(
            self._calls[place],
            reply=message,
            policy_version=asked if completion.policy_version is None else completion.policy_version,
            raw=None if completion.raw == message.content else completion.raw,
            usage=completion.usage,
            seconds=took,
            termination=completion.termination,
        )
        answered = self._answered.setdefault((role, len(prompt), message.content), [])
        insort(answered, (place, (*prompt, message)), key=itemgetter(0))


_ASKING: ContextVar[RoleCallContext | None] = ContextVar("rolltrace.asking", default=None)
