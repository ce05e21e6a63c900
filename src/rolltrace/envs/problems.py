"""Problems from a file of questions and answers."""

import random
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rolltrace.envs.problem import ProblemGroup
from rolltrace.envs.rows import read_rows
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError, InputError, UnknownNameError
from rolltrace.graders.answers import CHECKS, is_number
from rolltrace.graders.form import FORMAT_COEF, check_format_coef
from rolltrace.graders.math_check import require_math_verify
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

SHIPPED = Path(__file__).parent / "data" / "problems.jsonl"
INSTRUCTION = "Finish with a line `Answer: ` and your answer, nothing after it."

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class Problem(msgspec.Struct, frozen=True):
    """One row of the file."""

    id: NonEmpty | int
    question: NonEmpty
    answer: NonEmpty | int | float
    solution: str | None = None
    """The way to the answer, shown only where the row is an example."""
    other: dict[str, Any] = {}
    """The row's other keys: kept in the record's `task_data`, and shown to no policy."""


class ProblemsTasks(Tasks):
    """Short questions with known answers, from a JSONL file of `{id, question, answer, solution?}`."""

    env = "problems"

    def __init__(
        self,
        data: str | None = None,
        check: str | None = None,
        format_coef: float = FORMAT_COEF,
        system: str | None = None,
        instruction: str = INSTRUCTION,
        examples: int = 0,
    ) -> None:
        """Read the file; None is the shipped one. Check None is `number` where the answer is one, else `exact`."""
        if check is not None and check not in CHECKS:
            raise UnknownNameError.among("check", check, CHECKS)
        check_format_coef(format_coef)
        if check == "math":
            require_math_verify()
        self.data = data
        self.check = check
        self.format_coef = format_coef
        self.system = system
        self.instruction = instruction
        self.examples = examples
        """How many other rows come before the question, with their solutions."""
        accept = _accept_numbers if check == "number" else None
        self.problems = read_rows(SHIPPED if data is None else data, Problem, unique="id", accept=accept)
        self.count: int = len(self.problems)
        most = self.count - max(Counter(problem.question for problem in self.problems).values())
        if not 0 <= examples <= most:
            raise InputError(f"Expected examples from 0 to {most}, the other rows of problems, got {examples}.")

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays row `number`; only the examples are left to chance."""
        problem = self.problems[number]
        task_seed = derive_seed("problems", seed, str(problem.id)) if self.examples else None
        reference = str(problem.answer)
        check = self.check or ("number" if is_number(reference) else "exact")
        return ProblemGroup(
            env=self.env,
            task=str(problem.id),
            question=self._question(problem),
            reference=reference,
            check=CHECKS[check],
            system=self.system,
            examples=() if task_seed is None else self._examples(problem, task_seed),
            format_coef=self.format_coef,
            episodes=episodes,
            env_args={
                "data": self.data,
                "check": self.check,
                "format_coef": self.format_coef,
                "system": self.system,
                "instruction": self.instruction,
                "examples": self.examples,
            },
            task_data={
                **problem.other,
                **({} if problem.solution is None else {"solution": problem.solution}),
                "question": problem.question,
                "answer": problem.answer,
                "check": check,
            },
            seed=task_seed,
        )

    def _question(self, problem: Problem) -> str:
        return "\n".join(filter(None, (problem.question, self.instruction)))

    def _examples(self, asked: Problem, task_seed: int) -> tuple[Message, ...]:
        """Rows with other questions than the one that is asked, each answered as asked for."""
        others = [problem for problem in self.problems if problem.question != asked.question]
        chosen = random.Random(task_seed).sample(others, self.examples)  # noqa: S311 - not for secrets
        return tuple(
            message
            for problem in chosen
            for message in (
                Message("user", self._question(problem)),
                Message("assistant", "\n".join(filter(None, (problem.solution, f"Answer: {problem.answer}")))),
            )
        )


def _accept_numbers(problem: Problem) -> None:
    if not is_number(str(problem.answer)):
        raise DataError(f"expected a number as `answer`, got {problem.answer!r}: correct it, or use check=exact.")
