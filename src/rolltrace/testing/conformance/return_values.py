"""Whether what an environment returns has the types that the contract says."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.envs.env import Observation, StepResult
from rolltrace.testing.conformance.violations import Rule, ViolationLog, short_repr
from rolltrace.trace.convert import as_message, as_tool
from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import as_number
from rolltrace.trace.message import Message, ToolSpec

_FREE_FORM = ("env_state", "extra", "logs")
_NUMBERS = ("reward_data", "metrics")


class FrozenObservation(msgspec.Struct, frozen=True):
    """An observation as the policy sees it."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    stop: tuple[str, ...]
    replaces_history: bool


class ReturnValueCheck:
    """Checks what an environment returns, and reports what does not match the contract."""

    def __init__(self, report: ViolationLog) -> None:
        self._report = report

    def observation(self, value: Any, where: str, *, first: bool = False) -> FrozenObservation | None:
        """The observation, frozen, or None if the value is not an observation."""
        if not isinstance(value, Observation):
            self._wrong(f"{where} gave {_what(value)} where an observation belongs", "return an `Observation`")
            return None
        messages = self._messages(value.messages, where)
        replaces: Any = value.replaces_history
        if not messages and (first or replaces is True) and _is_list(value.messages):
            self._wrong(f"{where} left the prompt without any message", "show the policy at least one message")
        if not isinstance(replaces, bool):
            self._wrong(
                f"{where} gave {_what(replaces)} as `replaces_history`",
                "set `replaces_history` to True or False",
            )
        return FrozenObservation(messages, self._tools(value.tools, where), self._stop(value.stop, where), replaces)

    def result(self, value: Any, where: str, *, finished: bool = True) -> StepResult | None:
        """The result of a step, or None if it is not a result; an unfinished one needs no observation."""
        if not isinstance(value, StepResult):
            self._wrong(f"{where} gave {_what(value)}", "return a `StepResult` from `step`")
            return None
        if not is_bool(value.done):
            self._wrong(f"{where} gave {_what(value.done)} as `done`", "set `done` to True or False")
        if finished and not value.done and value.observation is None:
            self._wrong(
                f"{where} is not done but gave no observation",
                "return an `Observation` with every `StepResult` whose `done` is False",
            )
        if value.stop_reason is not None and not _is_name(value.stop_reason):
            self._wrong(
                f"{where} gave {_what(value.stop_reason)} as `stop_reason`", "name the reason in a text, or leave None"
            )
        self._numbers(value, where)
        for field in _FREE_FORM:
            if not isinstance(field_value := getattr(value, field), Mapping):
                self._wrong(f"{where} gave {_what(field_value)} as `{field}`", f"make `{field}` a dict")
        return value

    def _numbers(self, result: StepResult, where: str) -> None:
        if not is_reward(result.reward):
            self._report.add(
                Rule.NUMBERS,
                f"{where} gave {_what(result.reward)} as `reward`",
                "make `reward` a number, and put what is not one into `extra`",
            )
        elif not is_finite(result.reward):
            self._report.add(
                Rule.NUMBERS,
                f"{where} gave {_what(result.reward)} as `reward`",
                "make `reward` a finite number: one that is not spoils the mean and the advantages of its whole group",
            )
        self.number_maps(result, where, _NUMBERS)

    def number_maps(self, result: Any, where: str, fields: Sequence[str]) -> None:
        """Report values that are not numbers in the fields that map names to numbers."""
        for field in fields:
            field_value = getattr(result, field)
            if not isinstance(field_value, Mapping):
                self._report.add(
                    Rule.NUMBERS, f"{where} gave {_what(field_value)} as `{field}`", f"make `{field}` a dict"
                )
                continue
            for name, number in field_value.items():
                if not isinstance(name, str) or as_number(number) is None:
                    self._report.add(
                        Rule.NUMBERS,
                        f"{where} gave {_what(number)} as `{field}[{short_repr(name)}]`",
                        f"make `{field}` a flat map from name to number, and put what is not a number into `extra`",
                    )

    def _messages(self, messages: Any, where: str) -> tuple[Message, ...]:
        if not _is_list(messages):
            self._wrong(f"{where} gave {_what(messages)} as `messages`", "make `messages` a list or tuple of messages")
            return ()
        notes: list[Note] = []
        frozen = tuple(as_message(message, f"messages[{position}]", notes) for position, message in enumerate(messages))
        if notes:
            self._wrong(
                f"{where} gave a message that a record cannot hold as it is: {notes[0].path}: {notes[0].message}",
                "make each message a `Message`, or a chat dict with a text role and text or parts as content",
            )
        return frozen

    def _tools(self, tools: Any, where: str) -> tuple[ToolSpec, ...]:
        fix = "make `tools` a list of `ToolSpec`, or of dicts with `name`, `description` and `parameters`"
        if not _is_list(tools):
            self._wrong(f"{where} gave {_what(tools)} as `tools`", fix)
            return ()
        notes: list[Note] = []
        frozen = [as_tool(tool, f"tools[{position}]", notes) for position, tool in enumerate(tools)]
        for tool, spec in zip(tools, frozen, strict=True):
            if notes or not _is_name(spec.name):
                self._wrong(f"{where} gave {_what(tool)} as a tool", fix)
        return tuple(spec for spec in frozen if _is_name(spec.name))

    def _stop(self, stop: Any, where: str) -> tuple[str, ...]:
        if _is_list(stop) and all(isinstance(sequence, str) for sequence in stop):
            return tuple(stop)
        self._wrong(f"{where} gave {_what(stop)} as `stop`", "make `stop` a list or tuple of texts")
        return ()

    def _wrong(self, message: str, fix: str) -> None:
        self._report.add(Rule.TYPES, message, fix)


def is_reward(value: Any) -> bool:
    """Whether it is a number that fits a float."""
    number = as_number(value)
    try:
        return number is not None and float(number) is not None
    except OverflowError:
        return False


def is_finite(value: Any) -> bool:
    """Whether it is a number that fits a float, neither infinite nor NaN."""
    return is_reward(value) and math.isfinite(float(as_number(value) or 0))


def is_bool(value: Any) -> bool:
    """Whether it is True or False, perhaps numpy's."""
    return isinstance(as_number(value), bool)


def _what(value: Any) -> str:
    return "None" if value is None else f"the {type(value).__name__} {short_repr(value)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
