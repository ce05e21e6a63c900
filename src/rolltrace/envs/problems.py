"""The built-in `problems`: questions with known answers, from a file or dataset."""

import math
import random
import re
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from rolltrace.envs.dataset_rows import ColumnName, NonEmpty, column_arguments, read_rows
from rolltrace.envs.dataset_sources import describe_data
from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError, InputError, UnknownNameError
from rolltrace.graders.answer_check import ANSWER_CHECKS, auto_score, extract_boxed, is_number
from rolltrace.graders.format_check import FORMAT_COEF, check_format_coef, reward_range_with_format
from rolltrace.graders.math_check import require_math_verify
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

BUNDLED_DATA = Path(__file__).parent / "data" / "problems.jsonl"
INSTRUCTION = "Finish with a line `Answer: ` and your answer, nothing after it."
_BARE_BOX = re.compile(r"\\boxed +([^\s\\${}]+)")
_MARKED_ANSWER = re.compile(r"(?:\A|\n)####([^\n]*)\s*\Z")

AnswerValue = NonEmpty | int | float


class AnswerFormat(StrEnum):
    """Where the final answer is in the text of an answer column."""

    AUTO = "auto"
    """`gsm8k` if the last line starts with `####`, else `boxed` if there is a box, else `plain`."""
    PLAIN = "plain"
    """The whole text is the answer."""
    GSM8K = "gsm8k"
    """After `####`, which starts the last line; the lines before it are the solution."""
    BOXED = "boxed"
    r"""In the last `\boxed{…}`; the whole text is the solution."""


class ProblemRow(msgspec.Struct, frozen=True):
    """One row of the data."""

    question: NonEmpty
    answer: AnswerValue | Annotated[list[AnswerValue], msgspec.Meta(min_length=1)] | None = None
    """The right answer, or several that are accepted; None if the solution ends with it."""
    id: NonEmpty | int | None = None
    """None: derived from the question."""
    solution: str | None = None
    """Shown to the policy only if the row is an example."""
    other: dict[str, Any] = {}
    """The row's other columns: recorded in `task_data`, never shown to a policy."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The accepted answers, as texts."""
        return tuple(str(each) for each in (self.answer if isinstance(self.answer, list) else [self.answer]))


class ProblemsTasks(Tasks):
    """Short questions with known answers, from a file or dataset of `{id?, question, answer, solution?}`."""

    env = "problems"

    def __init__(
        self,
        data: Any = None,
        check: str | None = None,
        format_coef: float = FORMAT_COEF,
        system: str | None = None,
        instruction: str = INSTRUCTION,
        examples: int = 0,
        question: ColumnName = None,
        answer: ColumnName = None,
        solution: ColumnName = None,
        id: ColumnName = None,  # noqa: A002 - the name of the field
        answer_format: str = AnswerFormat.AUTO.value,
        split: str | None = None,
    ) -> None:
        """Read the data: a JSONL, CSV or Parquet file, a `Dataset` or a directory that it was saved to.

        None is the file that ships with the package. `question`, `answer`, `solution` and `id` name the columns.
        Without `check`, numbers are compared as numbers and other answers as text.
        """
        if check is not None and check not in ANSWER_CHECKS:
            raise UnknownNameError.for_name("check", check, ANSWER_CHECKS)
        check_format_coef(format_coef)
        if check == "math":
            require_math_verify()
        self.check = check
        self.format_coef = format_coef
        self.system = system
        self.instruction = instruction
        self.examples = examples
        """How many other rows the prompt shows before the question, with their solutions."""
        self._format = answer_format_of(answer_format)
        self._columns = column_arguments(question=question, answer=answer, solution=solution, id=id)
        other = {"answer_format": answer_format, "split": split}
        defaults = {"answer_format": AnswerFormat.AUTO, "split": None}
        self.args = {
            "data": describe_data(data),
            "check": check,
            "format_coef": format_coef,
            "system": system,
            "instruction": instruction,
            "examples": examples,
            **self._columns,
            **{name: value for name, value in other.items() if value != defaults[name]},
        }
        self.problems = read_rows(
            BUNDLED_DATA if data is None else data,
            ProblemRow,
            columns=self._columns,
            defaults={"question": ("question", "problem")},
            any_of=("answer", "solution"),
            split=split,
            unique="id",
            content=lambda problem: problem.question,
            accept=self._accept,
        )
        self.count: int = len(self.problems)
        most = self.count - max(Counter(problem.question for problem in self.problems).values())
        if not 0 <= examples <= most:
            raise InputError(f"Expected examples from 0 to {most}, the other rows of problems, got {examples}.")

    def builder(self, number: int, *, episodes: int, seed: int) -> ProblemGroup:
        """The group that plays row `number`; `seed` only chooses the examples."""
        problem = self.problems[number]
        task_seed = derive_seed("problems", seed, str(problem.id)) if self.examples else None
        answers = problem.answers
        check = self.check or _check_of(answers)
        return ProblemGroup(
            env=self.env,
            task=str(problem.id),
            question=self._question(problem),
            reference=answers[0] if len(answers) == 1 else answers,
            check=ANSWER_CHECKS.get(check, auto_score),
            system=self.system,
            examples=() if task_seed is None else self._examples(problem, task_seed),
            format_coef=self.format_coef,
            episodes=episodes,
            env_args=self.args,
            task_data={
                **problem.other,
                **({} if problem.solution is None else {"solution": problem.solution}),
                "question": problem.question,
                "answer": problem.answer,
                "check": check,
            },
            seed=task_seed,
            reward_range=reward_range_with_format(self.format_coef),
        )

    def _question(self, problem: ProblemRow) -> str:
        return "\n".join(filter(None, (problem.question, self.instruction)))

    def _examples(self, target: ProblemRow, task_seed: int) -> tuple[Message, ...]:
        """Messages of randomly chosen rows with other questions, each with its answer in the expected form."""
        others = [problem for problem in self.problems if problem.question != target.question]
        chosen = random.Random(task_seed).sample(others, self.examples)  # noqa: S311 - not for secrets
        return tuple(
            message
            for problem in chosen
            for message in (
                Message("user", self._question(problem)),
                Message("assistant", "\n".join(filter(None, (problem.solution, f"Answer: {problem.answers[0]}")))),
            )
        )

    def _accept(self, problem: ProblemRow) -> ProblemRow:
        """The problem with its final answers, and the solution if an answer's text holds one."""
        answer, form = problem.answer, self._format
        if answer is None:  # the row has a solution, whose end is the answer
            answer, form = problem.solution or "", AnswerFormat.BOXED if form is AnswerFormat.AUTO else form
        pairs = [self._final(each, form) for each in (answer if isinstance(answer, list) else [answer])]
        solutions = [solution for _, solution in pairs if solution is not None]
        finals = [final for final, _ in pairs]
        return replace(
            problem,
            answer=finals if isinstance(answer, list) else finals[0],
            solution=problem.solution if not solutions or problem.solution is not None else solutions[0],
        )

    def _final(self, answer: AnswerValue, form: AnswerFormat) -> tuple[AnswerValue, str | None]:
        if isinstance(answer, float) and not math.isfinite(answer):
            raise DataError(f"expected a finite number as `answer`, got {answer}.")
        final, solution = final_answer(answer, form) if isinstance(answer, str) else (answer, None)
        if self.check == "number" and not is_number(str(final)):
            raise DataError(f"expected a number as `answer`, got {final!r}: correct it, or use check=exact.")
        return final, solution


def _check_of(answers: tuple[str, ...]) -> str:
    """The default check: `number`, `exact`, or `auto` for a mixture of both."""
    kinds = {"number" if is_number(answer) else "exact" for answer in answers}
    return kinds.pop() if len(kinds) == 1 else "auto"


def answer_format_of(name: str) -> AnswerFormat:
    """The format of this name."""
    try:
        return AnswerFormat(name)
    except ValueError:
        raise UnknownNameError.for_name("answer format", str(name), [form.value for form in AnswerFormat]) from None


def final_answer(text: str, form: AnswerFormat) -> tuple[str, str | None]:
    """Split a reference text into its final answer and the solution before it, if it has one."""
    match = _MARKED_ANSWER.search(text) if form in (AnswerFormat.AUTO, AnswerFormat.GSM8K) else None
    if match is not None and match[1].strip():
        return match[1].strip(), text[: match.start()].strip() or None
    boxed = _boxed(text) if form in (AnswerFormat.AUTO, AnswerFormat.BOXED) else None
    if boxed is not None:
        return boxed, text
    if form is AnswerFormat.GSM8K:
        raise DataError("expected an answer whose last line is `#### ANSWER`, got none.")
    if form is AnswerFormat.BOXED:
        raise DataError(r"expected an answer with `\boxed{ANSWER}` in it, got none.")
    if form is AnswerFormat.AUTO and "\n" in text.strip():
        raise DataError(
            r"expected an answer of one line, `#### ANSWER` as the last line, or `\boxed{ANSWER}`, got "
            f"{len(text.strip().splitlines())} lines: give answer_format=plain if all of it is the answer."
        )
    return text, None


def _boxed(text: str) -> str | None:
    r"""MATH also writes `\fbox{…}`, and `\boxed 2` without braces."""
    text = text.replace(r"\fbox", r"\boxed")
    bare = _BARE_BOX.findall(text)
    return extract_boxed(text) or (bare[-1] if bare else None)
