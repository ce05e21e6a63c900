"""The built-in `calculator`: arithmetic questions that the policy solves with a tool."""

import functools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rolltrace.envs.env import SingleEnvGroup, StepResult
from rolltrace.envs.guessing_env import check_max_turns
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.envs.tools import Tool, ToolOutcome
from rolltrace.errors import InputError, ToolError
from rolltrace.expressions import ExpressionError, evaluate, format_number
from rolltrace.graders.answer_check import extract_answer, number_score
from rolltrace.policies.policy import Completion
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

MAX_DIFFICULTY = 10


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
    """The tool. Evaluation is bounded, so it needs no thread."""
    return Tool(calculator, in_thread=False)


class CalculatorEnv(ToolEnv):
    """One question. A right answer has reward 1, anything else 0."""

    def __init__(self, expression: str, answer: str, max_turns: int) -> None:
        question = (
            f"What is {expression}?\n\n"
            "Use the tool calculator(expression: str) to work it out, as often as you need. "
            "Then finish with a line that says only:\nAnswer: NUMBER"
        )
        super().__init__([Message("user", question)], [calculator_tool()], max_turns=max_turns)
        self.answer = answer

    async def final(self, completion: Completion) -> StepResult:
        """Compare the answer with the reference."""
        answer = extract_answer(completion.message.content)
        correct = 0.0 if answer is None else number_score(answer, self.answer)
        return self._scored(correct, answer)

    async def after_tools(
        self, completion: Completion, outcomes: Sequence[ToolOutcome], stop_reason: str | None
    ) -> StepResult:
        """Reward 0 for using the tool; the last turn counts as a wrong answer."""
        return StepResult(reward=0.0, done=False) if stop_reason is None else self._scored(0.0, None)

    def _scored(self, correct: float, answer: str | None) -> StepResult:
        return StepResult(
            reward=correct,
            done=True,
            reward_data={"correct": correct},
            extra={"reference": self.answer, "answer": answer},
        )


@dataclass
class CalculatorTasks(Tasks):
    """An unlimited number of questions; the difficulty is the number of operations in each."""

    env = "calculator"

    difficulty: int = 2
    max_turns: int = 6

    def __post_init__(self) -> None:
        if not 1 <= self.difficulty <= MAX_DIFFICULTY:
            raise InputError(f"Expected a difficulty from 1 to {MAX_DIFFICULTY}, got {self.difficulty}.")
        check_max_turns(self.max_turns)

    def builder(self, number: int, *, episodes: int, seed: int) -> SingleEnvGroup:
        """The group that plays question `number` of the seed."""
        task_seed = derive_seed(self.env, self.difficulty, seed, number)
        expression = make_question_expression(random.Random(task_seed), self.difficulty)  # noqa: S311 - not for secrets
        answer = format_number(evaluate(expression))
        return SingleEnvGroup(
            make_env=functools.partial(CalculatorEnv, expression, answer, self.max_turns),
            env=self.env,
            task=f"difficulty{self.difficulty}-seed{seed}-{number}",
            tags=("math", "tools", f"difficulty{self.difficulty}"),
            episodes=episodes,
            env_args=asdict(self),
            task_data={"expression": expression, "answer": answer},
            seed=task_seed,
            reward_range=(0.0, 1.0),
        )


def make_question_expression(rng: random.Random, operations: int) -> str:
    """A random expression with this many operations and an integer value, such as `(48 * 17) - 309`."""
    operator = rng.choice("+-*")
    left = rng.randrange(operations)
    largest = 99 if operator == "*" else 999
    sides = [_side(rng, count, largest) for count in (left, operations - 1 - left)]
    return f" {operator} ".join(sides)


def _side(rng: random.Random, operations: int, largest: int) -> str:
    return f"({make_question_expression(rng, operations)})" if operations else str(rng.randint(2, largest))
