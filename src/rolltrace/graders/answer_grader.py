"""Grades a rollout by the answer in its last response: extracts it, and compares it with the reference answer."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rolltrace.errors import GraderError, NotGradableError, UnknownNameError
from rolltrace.graders.answer_check import (
    ANSWER_CHECKS,
    AnswerCheck,
    auto_score,
    extract_answer,
    extract_boxed,
    extract_tagged,
)
from rolltrace.graders.format_check import check_format_coef
from rolltrace.graders.grader import Grader
from rolltrace.graders.math_check import require_math_verify
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Grade
from rolltrace.trace.text_transform import is_hashed_text

CHECKS: Mapping[str, AnswerCheck] = {"auto": auto_score, **ANSWER_CHECKS}
"""The checks by name; `auto` is `number` if the reference is a number, otherwise `exact`."""

REFERENCE_KEYS = ("reference", "answer", "ground_truth", "target", "gold")
"""Where the reference answer is, if no key is named: `reference` in the last step's `extra`, else the first of these in
`task_data`. `answer` in `extra` is the answer of the policy."""


def _whole_text(text: str) -> str | None:
    return text.strip() or None


EXTRACTS: Mapping[str, Callable[[str], str | None]] = {
    "answer": extract_answer,
    "boxed": extract_boxed,
    "tagged": extract_tagged,
    "whole": _whole_text,
}
"""How the answer is extracted from a response, by name."""


class AnswerInput(NamedTuple):
    """What an answer check needs of a rollout."""

    response: str
    """The text of the last response."""
    is_well_formed: bool
    """Whether it is neither truncated nor malformed."""
    extra: Mapping[str, Any]
    """Of the last step."""
    task_data: Mapping[str, Any]
    env_args: Mapping[str, Any]

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> "AnswerInput":
        """The input from the last step of a rollout. Raises `NotGradableError` for a rollout without steps."""
        if not rollout.steps:
            raise NotGradableError("it has no response")
        last = rollout.steps[-1]
        is_well_formed = last.termination is None or last.termination.well_formed
        text = last.trace.policy_response.content
        return cls(text, is_well_formed, last.extra, rollout.task_data, rollout.env_args)


@dataclass(frozen=True, kw_only=True)
class AnswerGrader(Grader):
    """The grade is `correct + format_coef · (format − 1)`, as the reward of `ProblemEnv`.

    `correct` is the check's score of the answer; of several accepted answers, the best score counts. `format` is 1 if
    the response is complete and has an answer. If the check raises `GraderError`, `correct` is 0.
    """

    version: ClassVar[str] = "1"
    check: str | AnswerCheck = "auto"
    """`auto`, `exact`, `number`, `math`, or a function of the answer and the reference."""
    extract: str = "answer"
    """`answer` (after the last `Answer:`, or in the last box), `boxed`, `tagged` (`<answer>`) or `whole`."""
    reference: str | None = None
    """The key of the reference answer in the last step's `extra` or in `task_data`; None: see `REFERENCE_KEYS`."""
    format_coef: float | None = None
    """None: `format_coef` of the environment's arguments, otherwise 0."""

    def __post_init__(self) -> None:
        if isinstance(self.check, str) and self.check not in CHECKS:
            raise UnknownNameError.for_name("check", self.check, CHECKS)
        if self.extract not in EXTRACTS:
            raise UnknownNameError.for_name("way to extract an answer", self.extract, EXTRACTS)
        if self.format_coef is not None:
            check_format_coef(self.format_coef)
        if self.check == "math":
            require_math_verify()

    @property
    def is_quick(self) -> bool:
        """Whether its check is a quick one of Rolltrace, which `grade_quickly` can call."""
        return self.check in ("auto", "exact", "number")

    async def grade(self, rollout: Rollout) -> Grade:
        """Compare the answer in the last response. Raises `NotGradableError` without a response or a reference."""
        extracted = self._prepare(AnswerInput.of_rollout(rollout))
        if extracted.answer is None:
            return extracted.grade(0.0)
        scores, unjudged = [], None
        for reference in extracted.references:
            try:
                score = self._check(extracted.answer, reference)
                scores.append(_finite(await score if inspect.isawaitable(score) else score))
            except GraderError as error:
                unjudged = unjudged or str(error)
        return extracted.grade(max(scores, default=0.0), unjudged)

    def grade_quickly(self, given: AnswerInput) -> Grade:
        """The same for a check that is quick, without the whole rollout and without an event loop."""
        extracted = self._prepare(given)
        if extracted.answer is None:
            return extracted.grade(0.0)
        scores: Iterable[Any] = (self._check(extracted.answer, reference) for reference in extracted.references)
        return extracted.grade(max(scores))

    @property
    def _check(self) -> AnswerCheck:
        return CHECKS[self.check] if isinstance(self.check, str) else self.check

    def _prepare(self, given: AnswerInput) -> "_ExtractedAnswer":
        if is_hashed_text(given.response):
            raise NotGradableError("only the hash of its text is recorded")
        references = self._references(given)
        answer = EXTRACTS[self.extract](given.response)
        coefficient: Any = given.env_args.get("format_coef", 0.0) if self.format_coef is None else self.format_coef
        is_number = isinstance(coefficient, int | float) and math.isfinite(coefficient)
        return _ExtractedAnswer(
            answer, references, float(given.is_well_formed and answer is not None), coefficient if is_number else 0.0
        )

    def _references(self, given: AnswerInput) -> Sequence[str]:
        keys = REFERENCE_KEYS if self.reference is None else (self.reference,)
        values = (given.extra.get(keys[0]), *(given.task_data.get(key) for key in keys))
        value = next((value for value in values if value is not None and value != []), None)
        if value is None:
            raise NotGradableError(f"it has no reference answer ({' or '.join(keys)} in task_data)")
        texts = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
        if any(map(is_hashed_text, texts)):
            raise NotGradableError("only the hash of its reference answer is recorded")
        return texts


class _ExtractedAnswer(NamedTuple):
    """An answer, and what it is compared with."""

    answer: str | None
    references: Sequence[str]
    format: float
    format_coef: float

    def grade(self, correct: float, unjudged: str | None = None) -> Grade:
        reference = self.references[0] if len(self.references) == 1 else list(self.references)
        extra = {"answer": self.answer, "reference": reference}
        return Grade(
            correct + self.format_coef * (self.format - 1),
            {"correct": correct, "format": self.format},
            extra if unjudged is None else {**extra, "unjudged": unjudged},
        )


def _finite(score: Any) -> float:
    number = float(score)
    if not math.isfinite(number):
        raise GraderError(f"The check returned {number}.")
    return number
