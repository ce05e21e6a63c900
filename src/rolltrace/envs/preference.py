"""Answers scored against one another: prompts of their own, or the tasks of any other environment."""

import copy
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rolltrace.envs.base import EnvGroupBuilder
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.envs.prompts import PromptRow, accept_prompt, prompt_of
from rolltrace.envs.registry import load_env
from rolltrace.envs.rows import read_rows
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import InputError
from rolltrace.graders.judge import SAMPLING, SECONDS, TRIES, PolicyJudge
from rolltrace.graders.preference import CHUNK, FORMAT_COEF, PreferenceGrader
from rolltrace.graders.tournament import Pattern, pattern_of

SHIPPED = Path(__file__).parent / "data" / "preference.jsonl"


class PreferenceTasks(Tasks):
    """Answers compared in pairs within their group, by the policy in the role `grader`.

    Without `env`, the tasks are the rows of `data`, a JSONL file of `{id, prompt | messages}`; with it, they are that
    environment's, and the tournament's grade is added to its rewards.
    """

    env = "preference"

    def __init__(
        self,
        data: str | None = None,
        env: str | None = None,
        env_args: dict[str, Any] | None = None,
        pattern: str = Pattern.BOTH_WAYS.value,
        chunk: int = CHUNK,
        format_coef: float = FORMAT_COEF,
        seconds: float = SECONDS,
        tries: int = TRIES,
        max_tokens: int | None = SAMPLING.max_tokens,
    ) -> None:
        """Read the file. `seconds` and `max_tokens` bound each reply of the grader, `tries` how often it is asked."""
        self.args = {
            "data": data, "env": env, "env_args": env_args, "pattern": pattern, "chunk": chunk,
            "format_coef": format_coef, "seconds": seconds, "tries": tries, "max_tokens": max_tokens,
        }  # fmt: skip
        _refuse_conflicts(data, env, env_args)
        sampling = replace(SAMPLING, max_tokens=max_tokens)
        self.grader = PreferenceGrader(
            judge=PolicyJudge(seconds=seconds, tries=tries, sampling=sampling),
            pattern=pattern_of(pattern),
            chunk=chunk,
            format_coef=format_coef,
        )
        self.inner = None if env is None else load_env(env, env_args)
        if self.inner is None:
            self.rows = read_rows(SHIPPED if data is None else data, PromptRow, unique="id", accept=accept_prompt)
            self.count = len(self.rows)
        else:
            self.count = self.inner.count
            self.env = f"preference:{self.inner.env}"

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number`."""
        if self.inner is not None:
            return self._compared(self.inner.builder(number, episodes=episodes, seed=seed))
        row = self.rows[number]
        return PromptOnlyGroup(
            env=self.env,
            task=str(row.id),
            messages=prompt_of(row),
            episodes=episodes,
            group_grader=self.grader,
            env_args=self.args,
            task_data=row.other,
        )

    def _compared(self, builder: EnvGroupBuilder) -> EnvGroupBuilder:
        """A copy of another environment's builder whose group this tournament grades."""
        if builder.grades_groups:
            raise InputError(
                f"Expected an environment that does not grade groups as env of preference, got {builder.env}, "
                f"whose {type(builder).__name__} does: a group is graded once."
            )
        if builder.seats > 1:
            raise InputError(
                f"Expected an environment of one seat as env of preference, got {builder.env} with {builder.seats}: "
                "those who play one game together do not answer one prompt."
            )
        compared = copy.copy(builder)
        try:
            compared.env = self.env
            compared.group_grader = self.grader
            compared.env_args = {**self.args, "env_args": dict(builder.env_args)}
        except (AttributeError, TypeError) as error:
            raise InputError(
                f"Expected a group builder as env of preference whose `env`, `group_grader` and `env_args` can be set, "
                f"got {type(builder).__name__}: {error}. Let it be neither frozen nor a property."
            ) from error
        return compared


def _refuse_conflicts(data: str | None, env: str | None, env_args: object) -> None:
    if env is None and env_args is not None:
        raise InputError("Expected env=NAME beside env_args for preference, got env_args alone.")
    if env is not None and data is not None:
        raise InputError(
            f"Expected either data=FILE or env=NAME for preference, got both: data of {env} goes into "
            'env_args={"data": "FILE"}.'
        )
