"""The built-in `prompts`: prompts from a file or dataset, without a score, as for on-policy distillation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolltrace.envs.dataset_rows import ColumnName, NonEmpty, column_arguments, read_rows
from rolltrace.envs.dataset_sources import describe_data
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message

BUNDLED_DATA = Path(__file__).parent / "data" / "prompts.jsonl"

Row = TypeVar("Row", bound="PromptRow")


class PromptRow(msgspec.Struct, frozen=True):
    """One row of the data: a prompt's text, or the messages of a conversation."""

    id: NonEmpty | int | None = None
    """None: derived from the prompt."""
    prompt: NonEmpty | list[dict[str, Any]] | None = None
    """Text, or messages."""
    messages: list[dict[str, Any]] | None = None
    """Chat messages, in the shape of the OpenAI API."""
    other: dict[str, Any] = {}
    """The row's other columns: recorded in `task_data`, never shown to a policy."""


class PromptsTasks(Tasks):
    """Prompts without a score, from a file or dataset of `{id?, prompt}` or `{id?, messages}`."""

    env = "prompts"

    def __init__(
        self,
        data: Any = None,
        system: str | None = None,
        prompt: ColumnName = None,
        messages: ColumnName = None,
        id: ColumnName = None,  # noqa: A002 - the name of the field
        split: str | None = None,
    ) -> None:
        """Read the data: a JSONL, CSV or Parquet file, a `Dataset` or a directory that it was saved to.

        None is the file that ships with the package. `prompt`, `messages` and `id` name the columns. `system` is added
        to prompts that have no system message.
        """
        columns = column_arguments(prompt=prompt, messages=messages, id=id)
        self.system = system
        self.args = {"data": describe_data(data), "system": system, **columns, **({"split": split} if split else {})}
        self.rows = read_prompts(BUNDLED_DATA if data is None else data, PromptRow, columns, split, validate_prompt)
        self.count: int = len(self.rows)

    def builder(self, number: int, *, episodes: int, seed: int) -> PromptOnlyGroup:
        """The group that plays row `number`; nothing depends on `seed`."""
        row = self.rows[number]
        return PromptOnlyGroup(
            env=self.env,
            task=str(row.id),
            messages=prompt_of(row, self.system),
            episodes=episodes,
            env_args=self.args,
            task_data=row.other,
        )


def read_prompts(
    data: Any, row_type: type[Row], columns: Mapping[str, ColumnName], split: str | None, accept: Callable[[Row], Row]
) -> list[Row]:
    """The rows of prompts. If only one of `prompt` and `messages` is mapped to a column, the other is not read."""
    mapped = [name for name in ("prompt", "messages") if name in columns]
    unread = {name: () for name in ("prompt", "messages") if mapped and name not in mapped}
    return read_rows(
        data,
        row_type,
        columns={**columns, **unread},
        any_of=("prompt", "messages"),
        split=split,
        unique="id",
        content=_content,
        accept=accept,
    )


def validate_prompt(row: Row) -> Row:
    """Raise `DataError` unless a row has exactly one prompt; messages in the column `prompt` are a conversation."""
    if row.prompt is not None and row.messages is not None:
        raise DataError("expected either `prompt` or `messages`, got both: name the one to read, as in prompt=prompt.")
    if isinstance(row.prompt, list):
        row = msgspec.structs.replace(row, messages=row.prompt, prompt=None)
    if row.messages is None:
        return row
    if not row.messages:
        raise DataError("expected at least one message in `messages`, got none.")
    for number, message in enumerate(row.messages):
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise DataError(f"expected a `role` in `messages[{number}]`, got {message.get('role')!r}.")
    _read(row)
    return row


def prompt_of(row: PromptRow, system: str | None = None) -> tuple[Message, ...]:
    """The messages of the row's prompt."""
    messages = (Message("user", row.prompt),) if isinstance(row.prompt, str) else _read(row)
    if system is None or messages[0].role == "system":
        return messages
    return Message("system", system), *messages


def _content(row: PromptRow) -> str:
    """The content that a row's id is derived from."""
    return row.prompt if isinstance(row.prompt, str) else msgspec.json.encode(row.messages, order="sorted").decode()


def _read(row: PromptRow) -> tuple[Message, ...]:
    notes: list[Note] = []
    messages = tuple(as_message(given, f"messages[{i}]", notes) for i, given in enumerate(row.messages or ()))
    if notes:
        raise DataError(f"expected chat messages that can be kept as they are, at {notes[0].path}: {notes[0].message}.")
    return messages
