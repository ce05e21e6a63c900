"""The built-in `preference`: compares responses in pairs, to prompts or to the tasks of another environment."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from rolltrace.envs.dataset_rows import ColumnName, column_arguments
from rolltrace.envs.dataset_sources import describe_data
from rolltrace.envs.env import EnvGroupBuilder
from rolltrace.envs.prompts import PromptsTasks
from rolltrace.envs.tasks import Tasks
from rolltrace.envs.with_grader import EnvArgs, load_inner_tasks, with_grader
from rolltrace.errors import InputError
from rolltrace.graders.judge import PolicyJudge
from rolltrace.graders.preference_grader import PREFERENCE_FORMAT_COEF, TOURNAMENT_CHUNK, PreferenceGrader
from rolltrace.graders.retrying_question import GRADER_SAMPLING, MAX_TOKENS, MAX_TRIES, REPLY_SECONDS
from rolltrace.graders.tournament import TournamentPattern, parse_pattern

BUNDLED_DATA = Path(__file__).parent / "data" / "preference.jsonl"


class PreferenceTasks(Tasks):
    """Answers compared in pairs within their group, by the policy in the role `grader`.

    Without `env`, the tasks are the rows of `data`, a file or dataset of `{id?, prompt | messages}`; with it, they are
    that environment's, made with `env_args`, and the tournament's grade is added to its rewards.
    """

    env = "preference"

    def __init__(
        self,
        data: Any = None,
        env: str | None = None,
        env_args: EnvArgs | None = None,
        pattern: str = TournamentPattern.BOTH_WAYS.value,
        chunk: int = TOURNAMENT_CHUNK,
        format_coef: float = PREFERENCE_FORMAT_COEF,
        seconds: float = REPLY_SECONDS,
        tries: int = MAX_TRIES,
        max_tokens: int = MAX_TOKENS,
        prompt: ColumnName = None,
        messages: ColumnName = None,
        id: ColumnName = None,  # noqa: A002 - the name of the field
        split: str | None = None,
    ) -> None:
        """Read the data. `seconds` and `max_tokens` bound each reply of the grader, `tries` how often it is asked.

        `prompt`, `messages` and `id` name the columns.
        """
        columns = column_arguments(prompt=prompt, messages=messages, id=id)
        self.args = {
            "data": describe_data(data), "env": env, "env_args": env_args, "pattern": pattern, "chunk": chunk,
            "format_coef": format_coef, "seconds": seconds, "tries": tries, "max_tokens": max_tokens,
            **columns, **({"split": split} if split else {}),
        }  # fmt: skip
        inner = load_inner_tasks(self.env, self.args)
        sampling = replace(GRADER_SAMPLING, max_tokens=max_tokens)
        self.grader = PreferenceGrader(
            judge=PolicyJudge(seconds=seconds, tries=tries, sampling=sampling),
            pattern=parse_pattern(pattern),
            chunk=chunk,
            format_coef=format_coef,
        )
        if inner is None:
            source = BUNDLED_DATA if data is None else data
            inner = PromptsTasks(source, prompt=prompt, messages=messages, id=id, split=split)
        self.inner = inner
        self.count = inner.count

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """The group that plays task `number`."""
        builder = self.inner.builder(number, episodes=episodes, seed=seed)
        if builder.seats > 1:
            raise InputError(
                f"Expected an environment of one seat as env of preference, got {builder.env} with {builder.seats}: "
                "the seats of a game have different prompts, so their answers cannot be compared."
            )
        return with_grader(builder, self.env, self.args, group_grader=self.grader)
