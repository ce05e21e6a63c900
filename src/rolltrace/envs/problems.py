"""Problems from a file of questions and answers."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from rolltrace.envs.problem import FORMAT_COEF, ProblemGroup
from rolltrace.envs.rows import read_rows
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError, UnknownNameError
from rolltrace.graders.answers import CHECKS, is_number

SHIPPED = Path(__file__).parent / "data" / "problems.jsonl"
INSTRUCTION = "Finish with a line `Answer: ` and your answer, nothing after it."

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class Problem(msgspec.Struct, frozen=True):
    """One row of the file."""

    id: NonEmpty | int
    question: NonEmpty
    answer: NonEmpty | int | float
    other: dict[str, Any] = {}
    """The row's other keys: kept in the record's `task_data`, and shown to no policy."""


class ProblemsTasks(Tasks):
    """Short questions with known answers, from a JSONL file of `{id, question, answer}`."""

    env = "problems"

    def __init__(
        self,
        data: str | None = None,
        check: str | None = None,
        format_coef: float = FORMAT_COEF,
        system: str | None = None,
        instruction: str = INSTRUCTION,
    ) -> None:
        """Read the file; None is the shipped one. Check None is `number` where the answer is one, else `exact`."""
        if check is not None and check not in CHECKS:
            raise UnknownNameError.among("check", check, CHECKS)
        self.data = data
        self.check = check
        self.format_coef = format_coef
        self.system = system
        self.instruction = instruction
        accept = _accept_numbers if check == "number" else None
        self.problems = read_rows(SHIPPED if data is None else data, Problem, unique="id", accept=accept)
        self.count: int = len(self.problems)

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays row `number`; nothing in it is left to chance."""
        problem = self.problems[number]
        reference = str(problem.answer)
        check = self.check or ("number" if is_number(reference) else "exact")
        return ProblemGroup(
            env=self.env,
            task=str(problem.id),
            question="\n".join(filter(None, (problem.question, self.instruction))),
            reference=reference,
            check=CHECKS[check],
            system=self.system,
            format_coef=self.format_coef,
            episodes=episodes,
            env_args={
                "data": self.data,
                "check": self.check,
                "format_coef": self.format_coef,
                "system": self.system,
                "instruction": self.instruction,
            },
            task_data={**problem.other, "question": problem.question, "answer": problem.answer, "check": check},
        )


def _accept_numbers(problem: Problem) -> None:
    if not is_number(str(problem.answer)):
        raise DataError(f"expected a number as `answer`, got {problem.answer!r}: correct it, or use check=exact.")
