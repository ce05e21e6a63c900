"""`scripted:noisy`: answers from the prompt alone, and is right with a given probability."""

import random
import re
from collections.abc import Callable, Sequence

import msgspec

from rolltrace.errors import InputError
from rolltrace.policies.policy import Request
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.testing.noisy_games import (
    MAX_TEXT_CHARS,
    answer_question,
    guess_number,
    is_game,
    move,
    play_questions,
    prompt_text,
)
from rolltrace.testing.noisy_grader import PREFERENCE, SCORE, first_question, prefer, score, write_paragraph
from rolltrace.testing.noisy_math import (
    find_expression,
    find_question,
    guess_expression,
    make_wrong,
    parse_tool_result,
    solve,
)
from rolltrace.testing.scripted import ScriptedPolicy
from rolltrace.trace.message import Message, ToolCall, ToolSpec

CALCULATOR = "calculator"

NoisySkill = Callable[[Sequence[Message], random.Random, float], str]
"""Answers a conversation; takes a random number generator and the probability of being right."""

_ASKS_FOR_ANSWER = re.compile(r"answer *:|</?answer>|\\boxed", re.IGNORECASE)
_TAG = "<answer>"
"""A prompt with this text wants the answer in tags."""
_OPENINGS = ("Let me work it out.", "Step by step:", "First I look at what is asked.", "This is short.")
_CLOSINGS = ("So that is it.", "I have checked it once.", "That settles it.", "")


class NoisyPolicy(ScriptedPolicy):
    """Answers from the prompt alone: a problem with a little working and a line `Answer: X`, a game with a move.

    If a tool named `calculator` is offered, it calls that first and then answers with the tool's result. In the role of
    a grader or answerer it grades, compares and answers. All randomness comes from the request's seed.
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
        """The probability that a reply is right."""

    def reply(self, request: Request) -> Message:
        """The reply of the chosen skill, a call of the calculator, or the answer to a problem."""
        rng = random.Random(request.seed or 0)  # noqa: S311 - not for secrets
        if (skill := choose_skill(request)) is not None:
            return Message("assistant", skill(request.messages, rng, self.correct))
        question = find_question(request.messages)
        tool_result = _tool_answer(request)
        tool = next((tool for tool in request.tools if tool.name == CALCULATOR), None)
        if tool_result is None and tool is not None:
            expression = find_expression(question) or guess_expression(question, rng)
            if expression is not None:
                return Message("assistant", "", tool_calls=(calculator_call(tool, expression, request.step),))
        return Message("assistant", self._answer(question, tool_result, rng))

    def _answer(self, question: str, tool_result: str | None, rng: random.Random) -> str:
        answer, working = solve(question, rng)
        if tool_result is not None and (result := parse_tool_result(tool_result)) is not None:
            answer, working = result, ""
        if rng.random() >= self.correct:
            answer = make_wrong(answer, rng)
        lines = (rng.choice(_OPENINGS), f"{working} = {answer}" if working else "", rng.choice(_CLOSINGS))
        final = f"<answer>{answer}</answer>" if _TAG in question else f"Answer: {answer}"
        return "\n".join(filter(None, (*lines, final)))


def calculator_call(tool: ToolSpec, expression: str, step: int) -> ToolCall:
    """A well-formed call of the calculator, with the expression as its first argument."""
    properties = tool.parameters.to_dict().get("properties") or {"expression": {}}
    arguments = msgspec.json.encode({next(iter(properties)): expression}).decode()
    return ToolCall(tool.name, arguments, id=f"call_{step}")


def _tool_answer(request: Request) -> str | None:
    """The result of the last tool call since the question, or None."""
    for message in reversed(request.messages):
        if message.role == "user":
            return None
        if message.role == "tool":
            return message.content
    return None


def choose_skill(request: Request) -> NoisySkill | None:
    """How to answer, judged by the role and by what the prompt asks for; None if there is a problem to solve."""
    messages = request.messages
    if request.role == "answerer":
        return answer_question
    if request.role != POLICY_ROLE and (skill := _grading(messages)) is not None:
        return skill
    if request.tools:
        return None
    opening = first_question(messages)[:MAX_TEXT_CHARS]
    if "`Guess: NUMBER`" in opening:
        return guess_number
    if "`Guess: NAME`" in opening:
        return play_questions
    if _ASKS_FOR_ANSWER.search(prompt_text(messages)):
        return None
    if is_game(messages):
        return move
    return None if find_expression(find_question(messages)) else write_paragraph


def _grading(messages: Sequence[Message]) -> NoisySkill | None:
    # The graded text is in the middle of a user's message and may contain these words, so only the ends are searched.
    system = " ".join(message.content for message in messages if message.role == "system")
    last = messages[-1].content[-1000:] if messages else ""
    if SCORE in system or SCORE in last:
        return score
    return prefer if PREFERENCE in system or PREFERENCE in last else None
