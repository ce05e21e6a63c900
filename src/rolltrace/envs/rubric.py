"""The built-in `rubric`: prompts with their own criteria, or any other environment with common criteria."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.envs.dataset_rows import ColumnName, NonEmpty, column_arguments, read_rows
from rolltrace.envs.dataset_sources import describe_data
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.envs.prompts import PromptRow, prompt_of, read_prompts, validate_prompt
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.with_grader import EnvArgs, load_inner_tasks, with_grader
from rolltrace.errors import DataError, InputError
from rolltrace.graders.format_check import FORMAT_COEF
from rolltrace.graders.retrying_question import GRADER_SAMPLING, MAX_TOKENS, MAX_TRIES, REPLY_SECONDS
from rolltrace.graders.rubric_grader import Criterion, RubricGrader, criterion_names

BUNDLED_DATA = Path(__file__).parent / "data" / "rubric.jsonl"


class RubricRow(PromptRow, frozen=True):
    """One row of the data: a prompt, and the criteria of a good response."""

    criteria: list[Criterion | NonEmpty] | None = None
    """Criteria, or only their texts; None if `criteria=FILE` gives the criteria of every row."""

    @property
    def own_criteria(self) -> tuple[Criterion, ...]:
        """The row's criteria."""
        return tuple(Criterion(each) if isinstance(each, str) else each for each in self.criteria or ())


class RubricTasks(Tasks):
    """Responses scored criterion by criterion, by the policy in the role `grader`.

    Without `env`, the tasks are the rows of `data`, a file or dataset of `{id?, prompt | messages, criteria}`; with it,
    they are that environment's, made with `env_args`, and the rubric's grade is added to its rewards. `criteria` is a
    JSON or JSONL file of `{text, weight, name}`, for all tasks. The default weight is 1; a criterion with a
    negative weight counts against the response if it is met.
    """

    env = "rubric"

    def __init__(
        self,
        data: Any = None,
        env: str | None = None,
        criteria: str | None = None,
        env_args: EnvArgs | None = None,
        format_coef: float = FORMAT_COEF,
        seconds: float = REPLY_SECONDS,
        tries: int = MAX_TRIES,
        max_tokens: int = MAX_TOKENS,
        prompt: ColumnName = None,
        messages: ColumnName = None,
        criteria_column: ColumnName = None,
        id: ColumnName = None,  # noqa: A002 - the name of the field
        split: str | None = None,
    ) -> None:
        """Read the data. `seconds` and `max_tokens` bound each reply of the grader, `tries` how often it is asked.

        `prompt`, `messages`, `criteria_column` and `id` name the columns.
        """
        columns = column_arguments(prompt=prompt, messages=messages, criteria_column=criteria_column, id=id)
        self.args = {
            "data": describe_data(data), "env": env, "criteria": criteria, "env_args": env_args,
            "format_coef": format_coef, "seconds": seconds, "tries": tries, "max_tokens": max_tokens,
            **columns, **({"split": split} if split else {}),
        }  # fmt: skip
        self.inner = load_inner_tasks(self.env, self.args)
        _refuse_conflicts(data, env, criteria)
        sampling = msgspec.structs.replace(GRADER_SAMPLING, max_tokens=max_tokens)
        self._make_grader = partial(
            RubricGrader, format_coef=format_coef, seconds=seconds, tries=tries, sampling=sampling
        )
        self.criteria = None if criteria is None else read_criteria(criteria)
        if self.inner is None:
            source = BUNDLED_DATA if data is None else data
            self.rows = read_prompts(source, RubricRow, columns, split, self._accept)
            self.count = len(self.rows)
        else:
            self.count = self.inner.count
        self._make_grader(self.criteria or self.rows[0].own_criteria)  # raises now if the settings are invalid

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number`."""
        if self.inner is not None:
            criteria = self.criteria or ()
            other = self.inner.builder(number, episodes=episodes, seed=seed)
            task_data = {"criteria": _plain(criteria)}
            return with_grader(other, self.env, self.args, task_data, grader=self._make_grader(criteria))
        row = self.rows[number]
        criteria = self.criteria or row.own_criteria
        return PromptOnlyGroup(
            env=self.env,
            task=str(row.id),
            messages=prompt_of(row),
            episodes=episodes,
            grader=self._make_grader(criteria),
            env_args=self.args,
            task_data={**row.other, "criteria": _plain(criteria)},
        )

    def _accept(self, row: RubricRow) -> RubricRow:
        row = validate_prompt(row)
        if self.criteria is not None:
            if row.criteria is not None:
                raise DataError("expected no `criteria` in a row where criteria=FILE gives them, got some.")
            return row
        if row.criteria is None:
            raise DataError(
                "expected a column `criteria`, got none: name it with criteria_column=COLUMN, or give criteria=FILE."
            )
        validate_criteria(row.own_criteria)
        return row


def _plain(criteria: tuple[Criterion, ...]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(criterion) for criterion in criteria]


def _refuse_conflicts(data: Any, env: str | None, criteria: str | None) -> None:
    if env is not None and criteria is None:
        raise InputError(f"Expected criteria=FILE beside env={env} for rubric, got none: {env} has no criteria.")
    if env is None and criteria is not None and data is None:
        raise InputError(
            "Expected data=FILE or env=NAME beside criteria=FILE for rubric, got criteria alone: "
            "the prompts that ship have criteria of their own."
        )


def read_criteria(path: str | Path) -> tuple[Criterion, ...]:
    """Read criteria from a file: a JSON list, or one JSON object on each line."""
    criteria = read_rows(path, Criterion)
    try:
        validate_criteria(criteria)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return tuple(criteria)


def validate_criteria(criteria: Sequence[Criterion]) -> None:
    """Raise `DataError` if no rubric can be made of these criteria."""
    try:
        criterion_names(criteria)
    except InputError as error:
        reason = str(error)
        raise DataError(f"{reason[:1].lower()}{reason[1:]}") from error
