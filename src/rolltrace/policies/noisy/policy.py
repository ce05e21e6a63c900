"""`scripted:noisy`: answers the prompt it is sent in whatever part it is asked to play, right with a probability."""

import random

import msgspec

from rolltrace.errors import InputError
from rolltrace.policies.noisy.parts import choose_skill
from rolltrace.policies.noisy.solver import (
    find_expression,
    find_question,
    guess_expression,
    make_wrong,
    parse_tool_result,
    solve,
)
from rolltrace.policies.policy import Request
from rolltrace.policies.scripted import ScriptedPolicy
from rolltrace.trace.message import Message, ToolCall, ToolSpec

CALCULATOR = "calculator"

_TAG = "<answer>"
"""A prompt that mentions it wants its answer in tags."""
_OPENINGS = ("Let me work it out.", "Step by step:", "First I look at what is asked.", "This is short.")
_CLOSINGS = ("So that is it.", "I have checked it once.", "That settles it.", "")


class NoisyPolicy(ScriptedPolicy):
    """Answers from the prompt alone: a problem with a little working and a line `Answer: X`, a game with a move.

    Where a tool named `calculator` is offered, it calls that first and then answers with the tool's result. It also
    grades, compares and answers, where it is asked in such a role. All its chance is drawn from the request's seed.
    """

    def __init__(
        self,
        correct: float = 0.7,
        *,
        name: str = "scripted:noisy",
        version: int | str | None = None,
        context_length: int | None = None,
    ) -> None:
        if not 0 <= correct <= 1:
            raise InputError(f"Expected correct from 0 to 1 for scripted:noisy, got {correct}.")
        super().__init__(name=name, version=version, context_length=context_length)
        self.correct = correct
        """How often it says what it found, rather than something else."""

    def reply(self, request: Request) -> Message:
        """What its part says, a call of the calculator, or the answer."""
        rng = random.Random(request.seed or 0)  # noqa: S311 - not for secrets
        if (part := choose_skill(request)) is not None:
            return Message("assistant", part(request.messages, rng, self.correct))
        question = find_question(request.messages)
        told = _tool_answer(request)
        if told is None and (tool := offered_calculator(request)) is not None:
            expression = find_expression(question) or guess_expression(question, rng)
            if expression is not None:
                return Message("assistant", "", tool_calls=(calculator_call(tool, expression, request.step),))
        return Message("assistant", self._answer(question, told, rng))

    def _answer(self, question: str, told: str | None, rng: random.Random) -> str:
        answer, working = solve(question, rng)
        if told is not None and (result := parse_tool_result(told)) is not None:
            answer, working = result, ""
        if rng.random() >= self.correct:
            answer = make_wrong(answer, rng)
        lines = (rng.choice(_OPENINGS), f"{working} = {answer}" if working else "", rng.choice(_CLOSINGS))
        final = f"<answer>{answer}</answer>" if _TAG in question else f"Answer: {answer}"
        return "\n".join(filter(None, (*lines, final)))


def offered_calculator(request: Request) -> ToolSpec | None:
    """The calculator, if the policy may call one."""
    return next((tool for tool in request.tools if tool.name == CALCULATOR), None)


def calculator_call(tool: ToolSpec, expression: str, step: int) -> ToolCall:
    """A well-formed call of the calculator, with the expression as its first argument."""
    properties = tool.parameters.to_dict().get("properties") or {"expression": {}}
    arguments = msgspec.json.encode({next(iter(properties)): expression}).decode()
    return ToolCall(tool.name, arguments, id=f"call_{step}")


def _tool_answer(request: Request) -> str | None:
    """What a tool answered since the question was asked; None where none was called."""
    for message in reversed(request.messages):
        if message.role == "user":
            return None
        if message.role == "tool":
            return message.content
    return None
