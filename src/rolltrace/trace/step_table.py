"""The steps of a rollout while it is being played. Each is frozen, as it will be written, when it is added."""

import math
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, TypeVar

import msgspec

from rolltrace.trace.codec import to_wire, wire_value
from rolltrace.trace.coerce import (
    coerce_field,
    coerce_record,
    coerce_tokens,
    is_valid_usage,
    matching_char_lengths,
    with_non_numeric,
)
from rolltrace.trace.convert import as_tool
from rolltrace.trace.field_types import FieldKind, Range, record_fields
from rolltrace.trace.freeform import Note, is_flat, to_json_mapping
from rolltrace.trace.json_numbers import FAST_INT_LIMIT
from rolltrace.trace.message import Message, Sampling, ToolSpec
from rolltrace.trace.plain_values import is_encodable_sampling
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.stop_reasons import Termination
from rolltrace.trace.strict_json import encode_fields, json_encoder
from rolltrace.trace.text_transform import TextTransform, text_fields, transform_record, transform_wire_value
from rolltrace.trace.tokens import Tokens, Usage

EMPTY_MAP = msgspec.Raw(b"{}")


def wire_struct(record: type[msgspec.Struct], first: str = "", before: str = "") -> Any:
    """A mutable struct with the fields of a record from `first` up to, not including, `before`, as they are in JSON.

    Its values are what the encoder is given: numbers that are not finite as text, maps as dicts or bytes. An omittable
    field that is not set is left out.
    """
    fields = record_fields(record)
    names = [field.name for field in fields]
    selected = fields[names.index(first) if first else 0 : names.index(before) if before else None]
    defined: list[tuple[str, Any, Any]] = []
    for field in selected:
        default = field.default
        if field.omits_default:
            default = msgspec.UNSET
        elif field.is_required:
            default = None
        elif field.kind in (FieldKind.FREE_FORM, FieldKind.NUMBERS):
            default = EMPTY_MAP
        defined.append((field.written_name, Any, default))
    return msgspec.defstruct(f"{record.__name__}Row", defined, gc=False)


StepRow = wire_struct(Step)
ConversationRow = wire_struct(Rollout, "messages", before="calls")
"""Its conversation and its steps."""
TrailingRow = wire_struct(Rollout, "calls")
"""The fields that are known only when everything else is encoded, such as notes."""


Entry = TypeVar("Entry", tuple[ToolSpec, ...], Sampling)

_FIELDS = {
    field.name: field
    for field in record_fields(Step)
    if field.name not in ("step", "prompt", "response", "tools", "sampling", "tokens")
}
"""The fields that callers pass by name."""
_FREE_FORM, _NUMBERS = FieldKind.FREE_FORM, FieldKind.NUMBERS  # reading a member of an enum takes longer
_LARGEST = sys.float_info.max
_NO_TOKENS = (-2, ())
_VERSION_TYPES = frozenset({int, str, NoneType})
_TEXT_FIELDS = tuple(field for field in text_fields(Step) if field.name != "response")
_text_values = attrgetter(*(field.name for field in _TEXT_FIELDS))
_NO_TEXT = _text_values(StepRow(0, (), 0))
"""The values of these fields in a step without text."""


class InternTable(Generic[Entry]):
    """Distinct values in the order of their first use; a step has the index of its value."""

    __slots__ = ("_indexes", "_last")

    def __init__(self) -> None:
        self._indexes: dict[Entry, int] = {}
        self._last: tuple[Any, int] = (None, -1)

    @property
    def values(self) -> list[Entry]:
        """The distinct values."""
        return list(self._indexes)

    def last_index(self, value: Any) -> int | None:
        """The index of a value if it is the very object that `add` was last called with."""
        return self._last[1] if value is self._last[0] else None

    def add(self, value: Entry, original: Any) -> int:
        """The index of a value, which was converted from `original`."""
        index = self._indexes.setdefault(value, len(self._indexes))
        if type(original) in (tuple, Sampling):  # a list may be changed before it is passed again
            self._last = original, index
        return index


class StepTable:
    """The steps so far, the tools and sampling settings they used, and their rewards."""

    __slots__ = ("_encodes_maps", "_last_tokens", "_notes", "_sampling", "_tools", "keeps_tokens", "rewards", "rows")

    def __init__(self, notes: list[Note], *, keeps_tokens: bool, encodes_maps: bool) -> None:
        self.rows: list[Any] = []
        self.rewards: list[float] = []
        self.keeps_tokens = keeps_tokens
        self._notes = notes
        self._encodes_maps = encodes_maps
        """Whether free-form maps are stored as bytes, or as dicts because their text will be transformed."""
        self._tools: InternTable[tuple[ToolSpec, ...]] | None = None  # made when needed: most rollouts have no tools
        self._sampling: InternTable[Sampling] | None = None
        self._last_tokens: tuple[int, tuple[int, ...]] = _NO_TOKENS
        """The step whose tokens were set last, and the ids of its prompt and response."""

    def add(
        self,
        prompt: tuple[Range, ...],
        response: Message,
        reward: float,
        env_reward: float | None,
        reward_data: Any,
        env_state: Any,
        extra: Any,
        metrics: Any,
        logs: Any,
        termination: Termination | None,
        parse_error: str | None,
        raw: str | None,
        policy_version: int | str | None,
        usage: Usage | None,
        seconds: float | None,
        tools: Sequence[Any],
        sampling: Sampling | None,
        tokens: Tokens | None,
        reward_weights: Any,
        fields: Mapping[str, Any],
    ) -> None:
        """Add a step; `fields` are its other fields, by name."""
        row = StepRow(
            len(self.rows), prompt, response, reward=reward, env_reward=env_reward, termination=termination,
            policy_version=policy_version, usage=usage, seconds=seconds,
        )  # fmt: skip
        non_numeric: dict[str, Any] = {}
        if not _are_plain(reward, env_reward, termination, policy_version, usage, seconds):
            for name in ("reward", "env_reward", "termination", "policy_version", "usage", "seconds"):
                setattr(row, name, self._wire_value(name, getattr(row, name), non_numeric))
            reward = float(row.reward)
        self._set_optional(
            row, reward_data, env_state, metrics, logs, parse_error, raw, reward_weights, non_numeric
        )  # fmt: skip
        for name, value in fields.items():
            self._set(row, name, value, non_numeric)
        if non_numeric:
            extra = with_non_numeric({} if extra is None else extra, non_numeric)
        if extra is not None and (type(extra) is not dict or extra):
            row.extra = self._free_form(extra, "extra")
        if tools:
            row.tools = self._tools_index(tools)
        if sampling is not None:
            row.sampling = self._sampling_index(sampling)
        if tokens is not None:
            self.set_tokens(row, tokens, response)
        self.rows.append(row)
        self.rewards.append(reward)

    @property
    def tools(self) -> list[tuple[ToolSpec, ...]]:
        """The distinct sets of tools that were offered."""
        return [] if self._tools is None else self._tools.values

    @property
    def sampling(self) -> list[Any]:
        """The distinct sampling settings, as they are written."""
        return [] if self._sampling is None else [_wire_sampling(settings) for settings in self._sampling.values]

    def transformed_sampling(self, transform: TextTransform) -> list[Any]:
        """The same with their text transformed."""
        settings = () if self._sampling is None else self._sampling.values
        return [to_wire(transform_record(each, transform)) for each in settings]

    def _set_optional(
        self,
        row: Any,
        reward_data: Any,
        env_state: Any,
        metrics: Any,
        logs: Any,
        parse_error: Any,
        raw: Any,
        reward_weights: Any,
        non_numeric: dict[str, Any],
    ) -> None:
        """Set the fields that most steps lack; one test for each takes less time than a loop."""
        if reward_data is not None:
            self._set(row, "reward_data", reward_data, non_numeric)
        if env_state is not None:
            self._set(row, "env_state", env_state, non_numeric)
        if metrics is not None:
            self._set(row, "metrics", metrics, non_numeric)
        if logs is not None:
            self._set(row, "logs", logs, non_numeric)
        if parse_error is not None:
            self._set(row, "parse_error", parse_error, non_numeric)
        if raw is not None:
            self._set(row, "raw", raw, non_numeric)
        if reward_weights is not None:
            self._set(row, "reward_weights", reward_weights, non_numeric)

    def _set(self, row: Any, name: str, value: Any, non_numeric: dict[str, Any]) -> None:
        """Set an optional field of the next step, unless it is empty."""
        if value is not None and (type(value) is not dict or value):
            setattr(row, name, self._wire_value(name, value, non_numeric))

    def _wire_value(self, name: str, value: Any, non_numeric: dict[str, Any]) -> Any:
        """A value of the next step as it is written, coerced."""
        if (field := _FIELDS.get(name)) is None:
            raise TypeError(f"Expected a field of a step, got {name}.")
        if value is None and field.is_nullable:
            return None
        if field.kind is _FREE_FORM:
            return self._free_form(value, name)
        if field.kind is _NUMBERS and type(value) is dict and _are_finite_numbers(value):
            return value.copy()
        coerced = coerce_field(field, value, self._path(), self._notes, non_numeric)
        is_omitted = field.omits_default and coerced == field.default
        return msgspec.UNSET if is_omitted else wire_value(field, coerced, self._path(name), self._notes)

    def _path(self, field: str = "") -> str:
        """The path of the next step, or of one of its fields."""
        path = f"steps[{len(self.rows)}]"
        return f"{path}.{field}" if field else path

    def _free_form(self, values: Any, field: str) -> Any:
        """A free-form map that does not change when the caller changes the original."""
        if self._encodes_maps and type(values) is dict and is_flat(values):
            return msgspec.Raw(json_encoder.encode(values))
        copied = to_json_mapping(values, self._path(field), self._notes)
        return msgspec.Raw(json_encoder.encode(copied)) if self._encodes_maps else copied

    def _tools_index(self, tools: Sequence[Any]) -> int:
        if self._tools is None:
            self._tools = InternTable()
        index = self._tools.last_index(tools)
        if index is None:
            path = self._path("tools")
            index = self._tools.add(tuple(as_tool(tool, path, self._notes) for tool in tools), tools)
        return index

    def _sampling_index(self, sampling: Sampling) -> int:
        if self._sampling is None:
            self._sampling = InternTable()
        index = self._sampling.last_index(sampling)
        if index is None:
            is_valid = is_encodable_sampling(sampling)
            valid = sampling if is_valid else coerce_record(sampling, self._path("sampling"), self._notes)
            index = self._sampling.add(valid, sampling)
        return index

    def set_tokens(self, row: Any, tokens: Tokens, response: Message) -> None:
        """Set the tokens of a step, if they are recorded; a prompt is stored without what it shares with the last."""
        if not self.keeps_tokens:
            return
        path = f"steps[{row.step}].tokens"
        coerced = coerce_tokens(tokens, path, self._notes)
        if coerced is None:
            return
        step, before = self._last_tokens
        prefix = common_prefix_length(before, coerced.prompt) if step == row.step - 1 else 0
        self._last_tokens = row.step, (*coerced.prompt, *coerced.response)
        text = response.content if row.raw is None else row.raw
        char_lengths = matching_char_lengths(coerced, text, f"{path}.char_lengths", self._notes)
        stored = Tokens(coerced.prompt[prefix:], coerced.response, coerced.logprobs, prefix, char_lengths)
        row.tokens = msgspec.Raw(encode_fields(to_wire(stored), self._notes))


def transform_row(row: Any, transform: TextTransform) -> Any:
    """A step with its text transformed."""
    values = _text_values(row)
    if values == _NO_TEXT and type(row.response) is int:
        return row
    changes = {}
    for field, value, empty in zip(_TEXT_FIELDS, values, _NO_TEXT, strict=True):
        if value is not empty:
            changes[field.name] = transform_wire_value(field, value, transform)
    if type(row.response) is Message:
        changes["response"] = transform.message(row.response)
    return msgspec.structs.replace(row, **changes)


def _are_plain(reward: Any, env_reward: Any, termination: Any, policy_version: Any, usage: Any, seconds: Any) -> bool:
    """Whether the fields that every step has can be written as they are: one look instead of six coercions."""
    return (
        type(reward) is float
        and -_LARGEST <= reward <= _LARGEST  # NaN is not
        and (env_reward is None or (type(env_reward) is float and -_LARGEST <= env_reward <= _LARGEST))
        and (seconds is None or (type(seconds) is float and 0.0 <= seconds <= _LARGEST))
        and (termination is None or type(termination) is Termination)
        and type(policy_version) in _VERSION_TYPES
        and (type(policy_version) is not int or -FAST_INT_LIMIT < policy_version < FAST_INT_LIMIT)
        and (usage is None or is_valid_usage(usage))
    )


def _are_finite_numbers(values: dict[Any, Any]) -> bool:
    """Whether a map has only numbers that JSON has, under names."""
    for name, value in values.items():
        kind = type(value)
        if kind is float:
            if not math.isfinite(value):
                return False
        elif kind is not bool and (kind is not int or not -FAST_INT_LIMIT < value < FAST_INT_LIMIT):
            return False
        if type(name) is not str:
            return False
    return True


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many items two sequences begin with in common. It compares slices, which is fast."""
    known, unknown = 0, min(len(first), len(second))
    if first[:unknown] == second[:unknown]:
        return unknown
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if first[known:middle] == second[known:middle]:
            known = middle
        else:
            unknown = middle
    return known


@lru_cache(maxsize=64)
def _wire_sampling(sampling: Sampling) -> msgspec.Raw | dict[str, Any]:
    """Sampling settings as they are written; a run has few, and each of its rollouts names one."""
    fields = to_wire(sampling)
    try:
        return msgspec.Raw(json_encoder.encode(fields))
    except Exception:  # noqa: BLE001 - text that is not UTF-8 is replaced, and noted, when the rollout is encoded
        return fields
