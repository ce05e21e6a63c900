"""A question with a known answer: one prompt and one reply, which is scored at once."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from rolltrace.envs.env import Env, GroupFields, Observation, SingleUse, StepResult
from rolltrace.errors import GraderError, InputError
from rolltrace.graders.answer_check import AnswerCheck, extract_answer, number_score
from rolltrace.graders.format_check import FORMAT_COEF, FormatCheck, check_format_coef, run_format_check
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import StopReason, Termination

Reference = str | Sequence[str] | None
"""The right answer, or several that are accepted; None if only the check knows."""

Extract = Callable[[str], str | None]
"""Extracts the answer from a reply, or returns None."""


@dataclass(eq=False)
class ProblemFields:
    """A problem, and how its reply is scored."""

    question: str
    """The whole text of the user's message."""
    reference: Reference
    _: KW_ONLY
    check: AnswerCheck = number_score
    extract: Extract = extract_answer
    system: str | None = None
    examples: Sequence[Message | Mapping[str, Any]] = ()
    """Messages before the question, such as worked examples."""
    format_coef: float = FORMAT_COEF
    format_check: FormatCheck | None = None
    """None: the format is right if the reply has an answer."""

    def __post_init__(self) -> None:
        check_format_coef(self.format_coef)
        if self.reference is not None and not isinstance(self.reference, str):
            self.reference = tuple(self.reference)
        if self.reference == ():
            raise InputError("Expected at least one accepted answer as reference, got none.")
        self.examples = tuple(self.examples)


@dataclass(eq=False)
class ProblemEnv(ProblemFields, Env):
    """Asks one question. The reward is `format_coef * (format − 1) + correct`.

    `format` is 1 if the reply is complete and has the right format, and 0 if it is truncated or malformed. `correct` is
    the check's score of the answer; of several accepted answers, the best score counts. Both may be fractions. If a
    check raises `GraderError`, its score is 0, so that no reply can avoid its reward; the reason is in the logs.
    """

    takes_any_completion = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._life = SingleUse()

    async def initial_observation(self) -> Observation:
        """The system text if there is one, the examples, the question."""
        self._life.start()
        system = () if self.system is None else (Message("system", self.system),)
        return Observation((*system, *self.examples, Message("user", self.question)))

    async def step(self, completion: Completion) -> StepResult:
        """Score the reply; the episode is over."""
        self._life.require_active()
        self._life.end()
        reply = completion.message.content
        answer = self.extract(reply)
        well_formed = float(completion.termination.well_formed)
        format_value, unjudged_format = self._score_format(reply, answer)
        correct, unjudged = (0.0, None) if answer is None else await self._score_answer(answer)
        logs = {}
        if unjudged is not None:
            logs["unjudged"] = unjudged
        if unjudged_format is not None:
            logs["unjudged_format"] = unjudged_format
        numbers = {"correct": correct, "format": well_formed * format_value, "well_formed": well_formed}
        return StepResult(
            reward=self.format_coef * (numbers["format"] - 1) + correct,
            done=True,
            reward_data=numbers,
            extra={
                "reference": list(self.reference) if isinstance(self.reference, tuple) else self.reference,
                "answer": answer,
            },
            metrics={
                "correct": correct,
                "format": numbers["format"],
                "answered": float(answer is not None),
                "unjudged": float(bool(logs)),
            },
            logs=logs,
            stop_reason=StopReason.MAX_TOKENS if completion.termination is Termination.LENGTH else None,
        )

    def _score_format(self, reply: str, answer: str | None) -> tuple[float, str | None]:
        """The score of the reply's format, and the error if it cannot be scored."""
        if self.format_check is None:
            return float(answer is not None), None
        try:
            return run_format_check(self.format_check, reply), None
        except GraderError as error:
            return 0.0, str(error)

    async def _score_answer(self, answer: str) -> tuple[float, str | None]:
        """The score of the answer, and the error if it cannot be scored."""
        references = self.reference if isinstance(self.reference, tuple) else (self.reference or "",)
        scores, unjudged = [], None
        for reference in references:
            correct, reason = await self._compare(answer, reference)
            if correct >= 1:
                return correct, None
            scores.append(correct)
            unjudged = unjudged or reason
        return max(scores), unjudged

    async def _compare(self, answer: str, reference: str) -> tuple[float, str | None]:
        try:
            score = self.check(answer, reference)
            correct = float(await score if inspect.isawaitable(score) else score)
        except GraderError as error:
            return 0.0, str(error)
        return (correct, None) if math.isfinite(correct) else (0.0, f"The check returned {correct}.")


@dataclass(kw_only=True)
class ProblemGroup(ProblemFields, GroupFields):
    """Episodes of one problem. It pickles if its checks are functions of a module."""

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One new `ProblemEnv`."""
        env = ProblemEnv(
            self.question, self.reference, check=self.check, extract=self.extract, system=self.system,
            examples=self.examples, format_coef=self.format_coef, format_check=self.format_check,
        )  # fmt: skip
        return (env,)
