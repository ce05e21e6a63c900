"""`scripted:fault`: a policy that misbehaves in a chosen way at a chosen turn."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import cast

from rolltrace.errors import ContextOverflowError, InputError, PolicyError, UnknownNameError
from rolltrace.policies.policy import Completion, Request
from rolltrace.seeds import derive_seed
from rolltrace.testing.noisy import CALCULATOR, NoisyPolicy
from rolltrace.testing.scripted import ScriptedPolicy, ScriptedReply
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.stop_reasons import Termination

HUGE = 1_000_000
"""The length of a `huge` reply in characters."""
DEEP = 100_000
"""The nesting depth of `deep_arguments`."""


class UnprintableError(Exception):
    """An error whose `str` raises."""

    def __str__(self) -> str:
        raise RuntimeError("this error has no text")


class Fault:
    """The faulty replies of one turn: a method for each kind."""

    def __init__(self, proper: Message, request: Request) -> None:
        self.proper = proper
        self.request = request
        self.tool = request.tools[0].name if request.tools else CALCULATOR
        self.call_id = f"call_{request.step}"

    def length(self) -> ScriptedReply:
        """Truncated by the token limit."""
        half = self.proper.content[: len(self.proper.content) // 2]
        return Completion(message=Message("assistant", half), termination=Termination.LENGTH)

    def malformed(self) -> ScriptedReply:
        """Broken framing."""
        raw = f"{self.proper.content}<|im_start|><|im_start|>"
        return Completion(
            message=Message("assistant", raw),
            termination=Termination.MALFORMED,
            parse_error="expected an end of turn, got the start of another",
            raw=raw,
        )

    def raise_error(self) -> ScriptedReply:
        """An ordinary error."""
        return PolicyError("The scripted policy failed, as it was asked to.")

    def raise_unprintable(self) -> ScriptedReply:
        """An error that cannot be printed."""
        return UnprintableError()

    def overflow(self) -> ScriptedReply:
        """The error for a prompt that is too long."""
        return ContextOverflowError(
            "Expected a prompt that fits the context, got one that the scripted server refuses."
        )

    async def hang(self) -> ScriptedReply:
        """Never answers; can be cancelled."""
        await asyncio.Event().wait()
        return self.proper

    def bad_tool_json(self) -> ScriptedReply:
        """One tool call, which cannot be parsed."""
        return Completion(
            message=_calls(self._broken_call()),
            termination=Termination.TOOL_CALLS,
            parse_error="the only tool call has arguments that are not JSON",
        )

    def mixed_tool_calls(self) -> ScriptedReply:
        """A valid tool call, and one that cannot be parsed."""
        valid = self.proper.tool_calls or (ToolCall(self.tool, '{"expression": "1 + 1"}', id=self.call_id),)
        return Completion(
            message=_calls(*valid, self._broken_call()),
            termination=Termination.TOOL_CALLS,
            parse_error="one of the tool calls has arguments that are not JSON",
        )

    def unknown_tool(self) -> ScriptedReply:
        """A call of a tool that was not offered."""
        return _calls(ToolCall("no_such_tool", "{}", id=self.call_id))

    def bad_arguments(self) -> ScriptedReply:
        """A call whose arguments are JSON but do not match the tool's parameters."""
        return _calls(ToolCall(self.tool, '{"no_such_argument": [1, 2]}', id=self.call_id))

    def deep_arguments(self) -> ScriptedReply:
        """A call whose arguments are JSON that is nested too deeply to parse."""
        return _calls(ToolCall(self.tool, "[" * DEEP + "]" * DEEP, id=self.call_id))

    def empty(self) -> ScriptedReply:
        """An empty reply."""
        return ""

    def huge(self) -> ScriptedReply:
        """A very long reply."""
        return "very " * (HUGE // len("very "))

    def surrogate(self) -> ScriptedReply:
        """Text that UTF-8 cannot encode."""
        return f"half of a pair: \ud83d\n{self.proper.content}"

    def nonsense(self) -> ScriptedReply:
        """Control characters, markup and other hostile text."""
        rng = random.Random(self.request.seed or 0)  # noqa: S311 - not for secrets
        alphabet = "\x00\x07\x1b[31m\u202e\ufeff\u2028<script>&\"'`{}\\\n\tAnswer:é漢🦉"
        return "".join(rng.choice(alphabet) for _ in range(200))

    def _broken_call(self) -> ToolCall:
        return ToolCall(
            self.tool, '{"expression": 1 +', id=f"{self.call_id}_broken", error="the arguments are not JSON"
        )


FAULTS: dict[str, Callable[[Fault], ScriptedReply | Awaitable[ScriptedReply]]] = {
    name.removesuffix("_error"): method for name, method in vars(Fault).items() if not name.startswith("_")
}
"""The faulty reply, by kind: the methods of `Fault`, with `raise` for `raise_error`."""

NOT_A_COMPLETION = "not_a_completion"
FAULT_KINDS = (*FAULTS, NOT_A_COMPLETION)
"""All kinds of fault."""


class FaultyPolicy(ScriptedPolicy):
    """Plays like `NoisyPolicy`, except for a fault at one turn or more.

    `at` is the first faulty step, `times` how many steps in a row are faulty, `fraction` the share of rollouts that are
    affected, drawn from the request's seed, and `attempts` how many attempts at an episode fail before one goes well.
    """

    def __init__(
        self,
        kind: str,
        at: int = 0,
        *,
        times: int = 1,
        fraction: float = 1.0,
        attempts: int | None = None,
        correct: float = 0.7,
        name: str | None = None,
        version: int | str | None = None,
        context_length: int | None = None,
    ) -> None:
        if kind not in FAULT_KINDS:
            raise UnknownNameError.for_name("kind of fault", kind, FAULT_KINDS)
        if not 0 <= fraction <= 1:
            raise InputError(f"Expected fraction from 0 to 1 for scripted:fault, got {fraction}.")
        super().__init__(name=name or f"scripted:fault:{kind}", version=version, context_length=context_length)
        self.kind = kind
        self.at = at
        self.times = times
        self.fraction = fraction
        self.attempts = attempts
        self.noisy = NoisyPolicy(correct)

    def reply(self, request: Request) -> ScriptedReply | Awaitable[ScriptedReply]:
        """The fault if it is due, otherwise a proper answer."""
        proper = self.noisy.reply(request)
        faulty = self.kind in FAULTS and self.is_due(request)
        return FAULTS[self.kind](Fault(proper, request)) if faulty else proper

    def is_due(self, request: Request) -> bool:
        """Whether the fault is due at this turn."""
        if not self.at <= request.step < self.at + self.times:
            return False
        if self.attempts is not None and request.identity is not None and request.identity.attempt >= self.attempts:
            return False
        rng = random.Random(derive_seed("fault", request.seed))  # noqa: S311 - not for secrets
        return rng.random() < self.fraction

    async def complete(self, request: Request) -> Completion:
        """The reply as a completion, except for the fault that returns something else."""
        if self.kind == NOT_A_COMPLETION and self.is_due(request):
            return cast("Completion", "this is not a completion")
        return await super().complete(request)


def _calls(*calls: ToolCall) -> Message:
    return Message("assistant", "", tool_calls=calls)
