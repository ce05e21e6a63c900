"""Lines of a run as rows of tables: flat JSON with the types that the tables have."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import Annotated, Any, Literal

import msgspec

from rolltrace.errors import RecordError
from rolltrace.query.score_order import write_position
from rolltrace.store.cursor import LineLocation
from rolltrace.trace.codec import decode_rollout, decode_score, json_encoder
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.rollout import FORMAT_VERSION, Call, Timestamp
from rolltrace.trace.score import Score

Integer = Annotated[int, msgspec.Meta(ge=-INT64_LIMIT, le=INT64_LIMIT - 1)] | None
"""What a column of 64 bits can hold; a larger one is left out of the table, and stays in the record."""
Real = float | Literal["NaN", "Infinity", "-Infinity"] | None
Numbers = dict[str, float | bool | Literal["NaN", "Infinity", "-Infinity"]]
Version = Annotated[int, msgspec.Meta(ge=FORMAT_VERSION, le=FORMAT_VERSION)]

DecodeScore = Callable[[bytes], Score]

_EMPTY = msgspec.Raw(b"{}")
_NULL = msgspec.Raw(b"null")
_encoder = msgspec.json.Encoder()


class _Failure(msgspec.Struct):
    layer: str
    type: str
    message: str


class _Usage(msgspec.Struct):
    prompt_tokens: Integer = 0
    completion_tokens: Integer = 0


class _Grade(msgspec.Struct):
    reward: Real
    reward_data: Numbers = {}
    extra: msgspec.Raw = _EMPTY


class _StepUsage(msgspec.Struct):
    usage: _Usage | None = None


class _Ignored(msgspec.Struct):
    pass


class _RolloutLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    split: str = "train"
    iteration: Integer = 0
    env: str
    env_args: msgspec.Raw = _EMPTY
    seed: Integer = None
    task: str
    task_data: msgspec.Raw = _EMPTY
    group: str
    index: Integer
    attempt: Integer = 0
    episode: Integer = None
    seat: Integer = None
    policy: str = ""
    policy_version: int | str | None = None
    tags: list[str] = []
    session: str = ""
    started_at: Timestamp
    ended_at: Timestamp
    status: str
    stop_reason: str
    stopped_by: str
    error: _Failure | None = None
    reward: Real
    reward_so_far: Real
    unclamped_reward: Real = None
    grade: _Grade | None = None
    steps: list[_StepUsage] = []
    calls: list[_Ignored] = []
    metrics: Numbers = {}
    notes: list[_Ignored] = []


class _TextOnly(msgspec.Struct):
    content: str


class _Step(msgspec.Struct, kw_only=True):
    step: Integer
    prompt: list[tuple[int, int]] = []
    response: int | _TextOnly
    sampling: int | None = None
    reward: Real
    env_reward: Real = None
    env_failure: str | None = None
    reward_data: Numbers = {}
    env_state: msgspec.Raw = _EMPTY
    extra: msgspec.Raw = _EMPTY
    metrics: Numbers = {}
    logs: msgspec.Raw = _EMPTY
    termination: str | None = None
    parse_error: str | None = None
    raw: str | None = None
    policy_version: int | str | None = None
    usage: _Usage | None = None
    seconds: Real = None
    reward_weights: Numbers = {}


class _StepsLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    split: str = "train"
    iteration: Integer = 0
    env: str
    messages: list[_TextOnly] = []
    sampling: list[msgspec.Raw] = []
    steps: list[_Step] = []


class _Message(msgspec.Struct, kw_only=True):
    role: str
    content: str
    reasoning: str | None = None
    tool_calls: msgspec.Raw = _NULL
    tool_call_id: str | None = None
    name: str | None = None
    parts: msgspec.Raw = _NULL
    other: msgspec.Raw = _NULL


class _StepResponse(msgspec.Struct):
    step: Integer
    response: int | _Ignored


class _MessagesLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    messages: list[_Message] = []
    steps: list[_StepResponse] = []


class _Call(msgspec.Struct, kw_only=True):
    role: str
    policy: str
    prompt: msgspec.Raw = _NULL
    reply: _TextOnly | None = None
    step: Integer = None
    policy_version: int | str | None = None
    raw: str | None = None
    error: _Failure | None = None
    usage: _Usage | None = None
    seconds: Real = None
    continues_call: Integer = None
    about: str | None = None
    termination: str | None = None
    quotes: list[_Ignored] = []


class _CallsLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    split: str = "train"
    iteration: Integer = 0
    env: str
    group: str
    calls: list[_Call] = []


class _GroupKey(msgspec.Struct):
    split: str
    iteration: Integer
    env: str
    group: str


class _ScoreLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    session: str = ""
    rollout: str | None = None
    group: _GroupKey | None = None
    name: str
    value: Real
    data: msgspec.Raw = _EMPTY
    producer: str = ""
    created_at: Timestamp
    error: _Failure | None = None


class _ScoreCallsLine(msgspec.Struct, kw_only=True):
    v: Version
    id: str
    run: str
    rollout: str | None = None
    group: _GroupKey | None = None
    calls: list[_Call] = []


class RowStats(msgspec.Struct):
    """What was met on the way that saves work later."""

    rows: int = 0
    sessions: set[str] = msgspec.field(default_factory=set)
    """The sessions of the rollouts."""
    has_retries: bool = False
    """Whether any rollout was played anew."""
    shared_slots: int = 0
    """How many rollouts are of a place in a group that another session recorded, too."""
    rewards: int = 0
    """How many scores are rewards of rollouts."""

    def merge(self, other: "RowStats") -> None:
        """Add what another part met."""
        self.rows += other.rows
        self.sessions |= other.sessions
        self.has_retries |= other.has_retries
        self.shared_slots += other.shared_slots
        self.rewards += other.rewards


def rollout_rows(line: bytes, place: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for a rollout."""
    record = _read(_rollout_decoder, line)
    error, grade = record.error, record.grade
    usages = [step.usage for step in record.steps if step.usage is not None]
    facts.rows += 1
    facts.sessions.add(record.session)
    facts.has_retries |= bool(record.attempt)
    yield _encoder.encode({
        "id": record.id, "run": record.run, "split": record.split, "iteration": record.iteration, "env": record.env,
        "env_args": record.env_args, "seed": record.seed, "task": record.task, "task_data": record.task_data,
        "group": record.group, "index": record.index, "attempt": record.attempt, "episode": record.episode,
        "seat": record.seat, "policy": record.policy, "policy_version": _text(record.policy_version),
        "tags": record.tags, "session": record.session, "started_at": _moment(record.started_at),
        "ended_at": _moment(record.ended_at), "status": record.status, "stop_reason": record.stop_reason,
        "stopped_by": record.stopped_by,
        "error_layer": error and error.layer, "error_type": error and error.type,
        "error_message": error and error.message,
        "line_reward": record.reward, "reward_so_far": record.reward_so_far,
        "unclamped_reward": record.unclamped_reward,
        "grade_reward": grade and grade.reward, "grade_reward_data": grade and grade.reward_data,
        "grade_extra": grade and grade.extra,
        "steps": len(record.steps),
        "prompt_tokens": _sum([usage.prompt_tokens for usage in usages]),
        "completion_tokens": _sum([usage.completion_tokens for usage in usages]),
        "calls": len(record.calls), "metrics": record.metrics, "notes": len(record.notes),
        "_file": place.file, "_offset": place.offset, "_length": place.length,
    })  # fmt: skip


def step_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each step of a rollout."""
    record = _read(_steps_decoder, line)
    for step in record.steps:
        facts.rows += 1
        usage = step.usage
        yield _encoder.encode({
            "rollout": record.id, "run": record.run, "split": record.split, "iteration": record.iteration,
            "env": record.env, "step": step.step, "reward": step.reward,
            "env_reward": step.env_reward, "env_failure": step.env_failure,
            "reward_data": step.reward_data, "reward_weights": step.reward_weights,
            "env_state": step.env_state, "extra": step.extra,
            "metrics": step.metrics, "logs": step.logs, "termination": step.termination,
            "parse_error": step.parse_error, "raw": step.raw, "policy_version": _text(step.policy_version),
            "prompt_tokens": usage and usage.prompt_tokens, "completion_tokens": usage and usage.completion_tokens,
            "seconds": step.seconds, "sampling": _at(record.sampling, step.sampling),
            "prompt_messages": _sum([last - first for first, last in step.prompt]),
            "response": _said(record.messages, step.response),
        })  # fmt: skip


def message_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each message of a rollout."""
    record = _read(_messages_decoder, line)
    said = {step.response: step.step for step in record.steps if isinstance(step.response, int)}
    for position, message in enumerate(record.messages):
        facts.rows += 1
        yield _encoder.encode({
            "rollout": record.id, "run": record.run, "position": position, "step": said.get(position),
            "role": message.role, "content": message.content, "reasoning": message.reasoning,
            "tool_calls": message.tool_calls, "tool_call_id": message.tool_call_id, "name": message.name,
            "parts": message.parts, "other": message.other,
        })  # fmt: skip


def call_rows(line: bytes, _: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for each model call of a rollout that is not a turn of the policy."""
    record = _read(_calls_decoder, line)
    if any(call.quotes for call in record.calls):
        _restore(record.calls, decode_rollout(line).calls)
    about = {
        "rollout": record.id, "run": record.run, "split": record.split, "iteration": record.iteration,
        "env": record.env, "group": record.group,
    }  # fmt: skip
    yield from _call_rows(about, record.calls, facts)


def score_call_rows(
    line: bytes, _: LineLocation, facts: RowStats, decode: DecodeScore = decode_score
) -> Iterator[bytes]:
    """One row for each model call that was made for a score; `decode` knows the rollouts that they quote."""
    if b'"calls":' not in line:  # most scores are made without any
        return
    record = _read(_score_calls_decoder, line)
    if any(call.quotes for call in record.calls):
        _restore(record.calls, decode(line).calls)
    group = record.group
    about = {
        "rollout": record.rollout, "score": record.id, "run": record.run, "split": group and group.split,
        "iteration": group and group.iteration, "env": group and group.env, "group": group and group.group,
    }  # fmt: skip
    yield from _call_rows(about, record.calls, facts)


def _restore(calls: Sequence[_Call], whole: Sequence[Call]) -> None:
    """Give calls the text that they have in place of quotes."""
    for call, one in zip(calls, whole, strict=True):
        call.prompt = msgspec.Raw(json_encoder.encode(one.prompt))
        if call.reply is not None and one.reply is not None:
            call.reply.content = one.reply.content


def _call_rows(about: dict[str, Any], calls: Sequence[_Call], facts: RowStats) -> Iterator[bytes]:
    for position, call in enumerate(calls):
        facts.rows += 1
        usage, error = call.usage, call.error
        yield _encoder.encode({
            **about, "position": position, "continues_call": call.continues_call,
            "step": call.step, "role": call.role, "about": call.about, "policy": call.policy,
            "policy_version": _text(call.policy_version), "prompt": call.prompt,
            "reply": call.reply and call.reply.content, "termination": call.termination, "raw": call.raw,
            "prompt_tokens": usage and usage.prompt_tokens, "completion_tokens": usage and usage.completion_tokens,
            "seconds": call.seconds,
            "error_layer": error and error.layer, "error_type": error and error.type,
            "error_message": error and error.message,
        })  # fmt: skip


def score_rows(line: bytes, place: LineLocation, facts: RowStats) -> Iterator[bytes]:
    """One row for a score."""
    record = _read(_score_decoder, line)
    group, error = record.group, record.error
    facts.rows += 1
    facts.rewards += record.name == "reward" and record.rollout is not None
    written = write_position(place)
    yield _encoder.encode({
        "id": record.id, "run": record.run, "session": record.session, "rollout": record.rollout,
        "split": group and group.split, "iteration": group and group.iteration, "env": group and group.env,
        "group": group and group.group, "name": record.name, "value": record.value, "data": record.data,
        "producer": record.producer, "created_at": _moment(record.created_at),
        "error_layer": error and error.layer, "error_type": error and error.type,
        "error_message": error and error.message,
        "_file": place.file, "_offset": place.offset, "_length": place.length,
        "_writer": written.writer, "_sequence": written.sequence,
    })  # fmt: skip


MAKE_ROWS: dict[str, Callable[[bytes, LineLocation, RowStats], Iterator[bytes]]] = {
    "rollouts": rollout_rows,
    "steps": step_rows,
    "messages": message_rows,
    "calls": call_rows,
    "scores": score_rows,
    "score_calls": score_call_rows,
}

_rollout_decoder = msgspec.json.Decoder(_RolloutLine)
_steps_decoder = msgspec.json.Decoder(_StepsLine)
_messages_decoder = msgspec.json.Decoder(_MessagesLine)
_calls_decoder = msgspec.json.Decoder(_CallsLine)
_score_calls_decoder = msgspec.json.Decoder(_ScoreCallsLine)
_score_decoder = msgspec.json.Decoder(_ScoreLine)


def _read(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except (ValueError, RecursionError):
        try:  # numbers that a record may hold and a column cannot
            return decoder.decode(_encoder.encode(_with_fitting_integers(msgspec.json.decode(line), "")))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"Expected a record: {error}.") from error


_FREE_FORM = {"env_args", "task_data", "env_state", "extra", "logs", "data", "other", "parameters"}
_MAPS = {"reward_data", "reward_weights", "metrics"}
_KEPT = {"v", "response", "policy_version"}


def _with_fitting_integers(value: Any, name: str) -> Any:
    """The record with integers that fit: in maps of numbers as floats, elsewhere left out."""
    if name in _FREE_FORM or (name in _KEPT and isinstance(value, int | str)):
        return value
    if isinstance(value, dict):
        return {key: _with_fitting_integers(item, name if name in _MAPS else key) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_fitting_integers(item, name) for item in value]
    if type(value) is not int or -INT64_LIMIT <= value < INT64_LIMIT:
        return value
    if name not in _MAPS:
        return None
    try:
        return float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"


def _moment(moment: Timestamp) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat()


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)


def _sum(values: list[Any]) -> int | None:
    total = sum(value for value in values if value is not None)
    return total if -INT64_LIMIT <= total < INT64_LIMIT else None


def _at(items: list[Any], index: int | None) -> Any:
    return items[index] if index is not None and 0 <= index < len(items) else None


def _said(messages: list[_TextOnly], response: int | _TextOnly) -> str | None:
    said = _at(messages, response) if isinstance(response, int) else response
    return None if said is None else said.content
