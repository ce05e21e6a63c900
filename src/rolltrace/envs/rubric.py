"""Responses scored by a rubric: prompts with criteria of their own, or any other environment with common ones."""

import copy
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.criteria import accept_criteria, read_criteria
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.envs.prompts import PromptRow, accept_prompt, prompt_of
from rolltrace.envs.registry import load_env
from rolltrace.envs.rows import read_rows
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError, InputError
from rolltrace.graders.form import FORMAT_COEF
from rolltrace.graders.rubric import SAMPLING, SECONDS, TRIES, Criterion, RubricGrader

SHIPPED = Path(__file__).parent / "data" / "rubric.jsonl"


class RubricRow(PromptRow, frozen=True):
    """One row of the file: a prompt and what a good response to it does."""

    criteria: list[Criterion] | None = None
    """Left out where `criteria=FILE` gives those of every row."""


class RubricTasks(Tasks):
    """Responses scored criterion by criterion, by the policy in the role `grader`.

    Without `env`, the tasks are the rows of `data`, a JSONL file of `{id, prompt | messages, criteria}`; with it, they
    are that environment's, and the rubric's grade is added to its rewards. `criteria` is a JSON or JSONL file of
    `{text, weight, name}`, for all tasks. A weight is 1 unless given, and below 0 what is found counts against the
    response.
    """

    env = "rubric"

    def __init__(
        self,
        data: str | None = None,
        env: str | None = None,
        criteria: str | None = None,
        env_args: dict[str, Any] | None = None,
        format_coef: float = FORMAT_COEF,
        seconds: float = SECONDS,
        tries: int = TRIES,
        max_tokens: int | None = SAMPLING.max_tokens,
    ) -> None:
        """Read the files. `seconds` and `max_tokens` bound each reply of the grader, `tries` how often it is asked."""
        self.args = {
            "data": data, "env": env, "criteria": criteria, "env_args": env_args, "format_coef": format_coef,
            "seconds": seconds, "tries": tries, "max_tokens": max_tokens,
        }  # fmt: skip
        _refuse_conflicts(data, env, criteria, env_args)
        self.format_coef = format_coef
        self.seconds = seconds
        self.tries = tries
        self.sampling = msgspec.structs.replace(SAMPLING, max_tokens=max_tokens)
        self.criteria = None if criteria is None else read_criteria(criteria)
        self.inner = None if env is None else load_env(env, env_args)
        if self.inner is None:
            self.rows = read_rows(SHIPPED if data is None else data, RubricRow, unique="id", accept=self._accept)
            self.count = len(self.rows)
        else:
            self.count = self.inner.count
            self.env = f"rubric:{self.inner.env}"
        self._grader(self.criteria or self.rows[0].criteria or ())  # settings that no grader takes are found out now

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number`."""
        if self.inner is not None:
            return self._graded(self.inner.builder(number, episodes=episodes, seed=seed))
        row = self.rows[number]
        criteria = self.criteria or tuple(row.criteria or ())
        return PromptOnlyGroup(
            env=self.env,
            task=str(row.id),
            messages=prompt_of(row),
            episodes=episodes,
            grader=self._grader(criteria),
            env_args=self.args,
            task_data={**row.other, "criteria": _plain(criteria)},
        )

    def _graded(self, builder: EnvGroupBuilder) -> EnvGroupBuilder:
        """A copy of another environment's builder that the rubric grades."""
        if builder.grader is not None:
            raise InputError(
                f"Expected an environment without a grader as env of rubric, got {builder.env}, "
                f"which has a {type(builder.grader).__name__}: a rollout is graded once."
            )
        criteria = self.criteria or ()
        graded = copy.copy(builder)
        try:
            graded.env = self.env
            graded.grader = self._grader(criteria)
            graded.env_args = {**self.args, "env_args": dict(builder.env_args)}
            graded.task_data = {**builder.task_data, "criteria": _plain(criteria)}
        except (AttributeError, TypeError) as error:
            raise InputError(
                f"Expected a group builder as env of rubric whose `env`, `grader`, `env_args` and `task_data` can be "
                f"set, got {type(builder).__name__}: {error}. Let it be neither frozen nor a property."
            ) from error
        return graded

    def _grader(self, criteria: tuple[Criterion, ...] | list[Criterion]) -> RubricGrader:
        return RubricGrader(
            criteria, format_coef=self.format_coef, seconds=self.seconds, tries=self.tries, sampling=self.sampling
        )

    def _accept(self, row: RubricRow) -> None:
        accept_prompt(row)
        if self.criteria is not None:
            if row.criteria is not None:
                raise DataError("expected no `criteria` in a row where criteria=FILE gives them, got some.")
            return
        if row.criteria is None:
            raise DataError("expected the key `criteria`, got an object without it: add it, or give criteria=FILE.")
        accept_criteria(row.criteria)


def _plain(criteria: tuple[Criterion, ...]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(criterion) for criterion in criteria]


def _refuse_conflicts(data: str | None, env: str | None, criteria: str | None, env_args: object) -> None:
    if env is None:
        if env_args is not None:
            raise InputError("Expected env=NAME beside env_args for rubric, got env_args alone.")
        if criteria is not None and data is None:
            raise InputError(
                "Expected data=FILE or env=NAME beside criteria=FILE for rubric, got criteria alone: "
                "the prompts that ship have criteria of their own."
            )
    elif data is not None:
        raise InputError(
            f"Expected either data=FILE or env=NAME for rubric, got both: data of {env} goes into "
            'env_args={"data": "FILE"}.'
        )
    elif criteria is None:
        raise InputError(f"Expected criteria=FILE beside env={env} for rubric, got none: what is it to be graded by?")
