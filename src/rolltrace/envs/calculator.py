"""The built-in `calculator`: arithmetic that the policy is to leave to a tool."""

import functools
import random
from collections.abc import Sequence

from rolltrace.envs.env import Env, EnvGroupBuilder, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.envs.tools import Tool, ToolOutcome
from rolltrace.errors import InputError, ToolError
from rolltrace.expressions import ExpressionError, evaluate, format_number
from rolltrace.graders.answer_check import extract_answer, number_score
from rolltrace.policies.policy import Completion
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

ENV = "calculator"
MAX_DIFFICULTY = 10
"""The largest difficulty."""


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression exactly.

    Args:
        expression: Numbers, parentheses, + - * / // % **, and abs, ceil, floor, max, min, round or sqrt,
            such as "(12.5 + 3) * 4".

    """
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        raise ToolError(str(error)) from error


@functools.cache
def calculator_tool() -> Tool:
    """The tool; evaluation is bounded, so it needs no thread."""
    return Tool.of(calculator, in_thread=False)


class CalculatorEnv(ToolEnv):
    """One question; right is worth 1, anything else 0."""

    def __init__(self, expression: str, answer: str, max_turns: int) -> None:
        question = (
            f"What is {expression}?\n\n"
            "Use the tool calculator(expression: str) to work it out, as often as you need. "
            "Then finish with a line that says only:\nAnswer: NUMBER"
        )
        super().__init__([Message("user", question)], [calculator_tool()], max_turns=max_turns)
        self.answer = answer

    async def final(self, completion: Completion) -> StepResult:
        """Whether the answer is the number that it should be."""
        given = extract_answer(completion.message.content)
        correct = 0.0 if given is None else number_score(given, self.answer)
        return self._scored(correct, given)

    async def after_tools(
        self, completion: Completion, outcomes: Sequence[ToolOutcome], stop_reason: str | None
    ) -> StepResult:
        """Nothing for using the tool; a last turn that gives no answer is wrong."""
        return StepResult(reward=0.0, done=False) if stop_reason is None else self._scored(0.0, None)

    def _scored(self, correct: float, given: str | None) -> StepResult:
        return StepResult(
            reward=correct,
            done=True,
            reward_data={"correct": correct},
            extra={"reference": self.answer, "answer": given},
        )


class CalculatorBuilder(EnvGroupBuilder):
    """The episodes of one question."""

    env = ENV

    def __init__(self, number: int, *, episodes: int, seed: int, difficulty: int, max_turns: int) -> None:
        self.task = f"difficulty{difficulty}-seed{seed}-{number}"
        self.tags = ("math", "tools", f"difficulty{difficulty}")
        self.episodes = episodes
        self.seed = derive_seed(ENV, difficulty, seed, number)
        self.env_args = {"difficulty": difficulty, "max_turns": max_turns}
        self.expression = make_question_expression(random.Random(self.seed), difficulty)  # noqa: S311 - not for secrets
        self.answer = format_number(evaluate(self.expression))
        self.max_turns = max_turns
        self.task_data = {"expression": self.expression, "answer": self.answer}

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One env that asks the question."""
        return [CalculatorEnv(self.expression, self.answer, self.max_turns)]


class CalculatorTasks(Tasks):
    """Questions without end, from a seed; the difficulty is how many operations each has."""

    env = ENV

    def __init__(self, difficulty: int = 2, max_turns: int = 6) -> None:
        if not 1 <= difficulty <= MAX_DIFFICULTY:
            raise InputError(f"Expected a difficulty from 1 to {MAX_DIFFICULTY}, got {difficulty}.")
        if max_turns < 1:
            raise InputError(f"Expected max_turns of at least 1, got {max_turns}.")
        self.difficulty = difficulty
        self.max_turns = max_turns

    def builder(self, number: int, *, episodes: int, seed: int) -> CalculatorBuilder:
        """The group that plays question `number` of the seed."""
        return CalculatorBuilder(
            number, episodes=episodes, seed=seed, difficulty=self.difficulty, max_turns=self.max_turns
        )


def make_question_expression(rng: random.Random, operations: int) -> str:
    """An expression of so many operations whose value is an integer, such as `(48 * 17) - 309`."""
    operator = rng.choice("+-*")
    left = rng.randrange(operations)
    largest = 99 if operator == "*" else 999
    sides = [_side(rng, count, largest) for count in (left, operations - 1 - left)]
    return f" {operator} ".join(sides)


def _side(rng: random.Random, operations: int, largest: int) -> str:
    return f"({make_question_expression(rng, operations)})" if operations else str(rng.randint(2, largest))
