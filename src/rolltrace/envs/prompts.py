"""Prompts from a file, played without a score: what on-policy distillation samples from."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.envs.rows import read_rows
from rolltrace.envs.tasks import Tasks
from rolltrace.errors import DataError
from rolltrace.trace.convert import as_message
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message

SHIPPED = Path(__file__).parent / "data" / "prompts.jsonl"

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class PromptRow(msgspec.Struct, frozen=True):
    """One row of the file: a prompt's text, or the messages of a conversation."""

    id: NonEmpty | int
    prompt: NonEmpty | None = None
    messages: list[dict[str, Any]] | None = None
    """Chat messages, in the shape of the OpenAI API."""
    other: dict[str, Any] = {}
    """The row's other keys: kept in the record's `task_data`, and shown to no policy."""


class PromptsTasks(Tasks):
    """Prompts without a score, from a JSONL file of `{id, prompt}` or `{id, messages}`."""

    env = "prompts"

    def __init__(self, data: str | None = None, system: str | None = None) -> None:
        """Read the file; None is the shipped one. `system` goes before prompts that have no system message."""
        self.data = data
        self.system = system
        self.rows = read_rows(SHIPPED if data is None else data, PromptRow, unique="id", accept=accept_prompt)
        self.count: int = len(self.rows)

    def builder(self, number: int, *, episodes: int, seed: int) -> PromptOnlyGroup:
        """The group that plays row `number`; nothing in it is left to chance."""
        row = self.rows[number]
        return PromptOnlyGroup(
            env=self.env,
            task=str(row.id),
            messages=prompt_of(row, self.system),
            episodes=episodes,
            env_args={"data": self.data, "system": self.system},
            task_data=row.other,
        )


def accept_prompt(row: PromptRow) -> None:
    """Refuse a row that does not hold exactly one prompt."""
    if (row.prompt is None) == (row.messages is None):
        both = "neither" if row.prompt is None else "both"
        raise DataError(f"expected either `prompt` or `messages`, got {both}.")
    if row.messages is None:
        return
    if not row.messages:
        raise DataError("expected at least one message in `messages`, got none.")
    for number, message in enumerate(row.messages):
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise DataError(f"expected a `role` in `messages[{number}]`, got {message.get('role')!r}.")
    _read(row)


def prompt_of(row: PromptRow, system: str | None = None) -> tuple[Message, ...]:
    """The messages of the row's prompt."""
    messages = (Message("user", row.prompt),) if row.prompt is not None else _read(row)
    if system is None or messages[0].role == "system":
        return messages
    return Message("system", system), *messages


def _read(row: PromptRow) -> tuple[Message, ...]:
    notes: list[Note] = []
    messages = tuple(as_message(given, f"messages[{i}]", notes) for i, given in enumerate(row.messages or ()))
    if notes:
        raise DataError(f"expected chat messages that can be kept as they are, at {notes[0].path}: {notes[0].message}.")
    return messages
