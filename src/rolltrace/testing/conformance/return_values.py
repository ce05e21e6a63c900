"""Reports what an environment returns with other types than the contract says."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolltrace.envs.env import STEP_MAP_FIELDS, Observation, StepResult
from rolltrace.rollout.contract import is_name
from rolltrace.testing.conformance.violations import Rule, short_repr
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import as_float, as_number
from rolltrace.trace.message import Message

_NUMBER_MAPS = ("reward_data", "metrics")


class ReturnValueCheck:
    """Reports every field that does not fit; the runner stops at the first one, and coerces what it can."""

    def __init__(self, report: Callable[[Rule, str, str], None]) -> None:
        self._report = report

    def observation(self, value: Any, where: str, *, first: bool = False) -> tuple[Message, ...]:
        """Check an observation. Returns its messages, or () if they cannot be read."""
        if not isinstance(value, Observation):
            self._wrong_type(f"{where} gave {_what(value)} where an observation belongs", "return an `Observation`")
            return ()
        replaces: Any = value.replaces_history
        messages = self._messages(value.messages, where, required=first or replaces is True)
        if not isinstance(replaces, bool):
            fix = "set `replaces_history` to True or False"
            self._wrong_type(f"{where} gave {_what(replaces)} as `replaces_history`", fix)
        self._tools(value.tools, where)
        if not isinstance(value.stop, list | tuple) or not all(isinstance(text, str) for text in value.stop):
            self._wrong_type(f"{where} gave {_what(value.stop)} as `stop`", "make `stop` a list or tuple of texts")
        return messages

    def result(self, value: Any, where: str, *, finished: bool = True) -> bool:
        """Check a step result; an unfinished one needs no observation. Returns whether it is one at all."""
        if not isinstance(value, StepResult):
            self._wrong_type(f"{where} gave {_what(value)}", "return a `StepResult` from `step`")
            return False
        if not is_bool(value.done):
            self._wrong_type(f"{where} gave {_what(value.done)} as `done`", "set `done` to True or False")
        if finished and not value.done and value.observation is None:
            self._wrong_type(
                f"{where} is not done but gave no observation",
                "return an `Observation` with every `StepResult` whose `done` is False",
            )
        if value.stop_reason is not None and not is_name(value.stop_reason):
            fix = "name the reason in a text, or leave None"
            self._wrong_type(f"{where} gave {_what(value.stop_reason)} as `stop_reason`", fix)
        self._reward(value.reward, where)
        self.number_maps(value, where, _NUMBER_MAPS)
        for field in STEP_MAP_FIELDS:
            if field not in _NUMBER_MAPS and not isinstance(given := getattr(value, field), Mapping):
                self._wrong_type(f"{where} gave {_what(given)} as `{field}`", f"make `{field}` a dict")
        return True

    def _reward(self, reward: Any, where: str) -> None:
        if (number := as_float(reward)) is None:
            fix = "make `reward` a number, and put what is not one into `extra`"
        elif not math.isfinite(number):
            fix = "make `reward` a finite number: one that is not spoils the mean and the advantages of its whole group"
        else:
            return
        self._report(Rule.NUMBERS, f"{where} gave {_what(reward)} as `reward`", fix)

    def number_maps(self, result: Any, where: str, fields: Sequence[str]) -> None:
        """Report values that are not numbers in the fields that map names to numbers."""
        for field in fields:
            given = getattr(result, field)
            if not isinstance(given, Mapping):
                message = f"{where} gave {_what(given)} as `{field}`"
                self._report(Rule.NUMBERS, message, f"make `{field}` a dict")
                continue
            for name, number in given.items():
                if not isinstance(name, str) or as_number(number) is None:
                    self._report(
                        Rule.NUMBERS,
                        f"{where} gave {_what(number)} as `{field}[{short_repr(name)}]`",
                        f"make `{field}` a flat map from name to number, and put what is not a number into `extra`",
                    )

    def _messages(self, messages: Any, where: str, *, required: bool) -> tuple[Message, ...]:
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            fix = "make `messages` a list or tuple of messages"
            self._wrong_type(f"{where} gave {_what(messages)} as `messages`", fix)
            return ()
        if required and len(messages) == 0:
            self._wrong_type(f"{where} left the prompt without any message", "show the policy at least one message")
        notes: list[Note] = []
        frozen = tuple(as_message(message, f"messages[{position}]", notes) for position, message in enumerate(messages))
        if notes:
            self._wrong_type(
                f"{where} gave a message that a record cannot hold as it is: {notes[0].path}: {notes[0].message}",
                "make each message a `Message`, or a chat dict with a text role and text or parts as content",
            )
        return frozen

    def _tools(self, tools: Any, where: str) -> None:
        fix = "make `tools` a list of `ToolSpec`, or of dicts with `name`, `description` and `parameters`"
        if not isinstance(tools, list | tuple):
            self._wrong_type(f"{where} gave {_what(tools)} as `tools`", fix)
            return
        for tool in tools:
            notes: list[Note] = []
            if not is_name(as_tool(tool, "", notes).name) or notes:
                self._wrong_type(f"{where} gave {_what(tool)} as a tool", fix)

    def _wrong_type(self, message: str, fix: str) -> None:
        self._report(Rule.TYPES, message, fix)


def is_bool(value: Any) -> bool:
    """Whether it is True or False, perhaps numpy's."""
    return isinstance(as_number(value), bool)


def _what(value: Any) -> str:
    return "None" if value is None else f"the {type(value).__name__} {short_repr(value)}"
