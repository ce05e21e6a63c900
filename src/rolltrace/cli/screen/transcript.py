"""One rollout as a transcript."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.console import folded
from rolltrace.cli.screen.storyline import Event, Remark, Said, storyline
from rolltrace.cli.screen.visible import compact, duration, number, visible_line, visible_text
from rolltrace.query.address import address
from rolltrace.trace.freeform import Note
from rolltrace.trace.message import Message, Part
from rolltrace.trace.numbers import as_number
from rolltrace.trace.outcome import Status
from rolltrace.trace.rollout import Call, Failure, Rollout, Step
from rolltrace.trace.score import Score

ROLE_STYLES = {"system": "dim bold", "user": "bold blue", "assistant": "bold green", "tool": "bold magenta"}
STATUS_STYLES = {Status.OK: "green", Status.ERROR: "bold red", Status.CANCELLED: "yellow"}
_INDENT = "  "
_BAR = "  │ "
"""Sets facts apart from what was said."""
_LABEL = 15
_MOST_CHARACTERS = 300


class Transcript:
    """Prints rollouts; `full` leaves nothing folded."""

    def __init__(self, console: Console, *, full: bool = False) -> None:
        self._console = console
        self._full = full

    def show(self, rollout: Rollout, reward: float | None, scores: Sequence[Score] = ()) -> None:
        """Print one rollout with its reward as it now stands and the scores that it has."""
        self._identity(rollout, reward)
        for event in storyline(rollout):
            self._event(event)
        self._end(rollout, reward, scores)

    # The beginning

    def _identity(self, rollout: Rollout, reward: float | None) -> None:
        title = Text(visible_line(address(rollout)), "bold")
        if rollout.attempt:
            title.append(f"  attempt {rollout.attempt}", "yellow")
        title.append("  ").append(rollout.status.value, STATUS_STYLES[rollout.status])
        title.append(f"  reward {number(reward)}", "bold")
        self._line(title)
        policy = visible_line(rollout.policy)
        facts = [
            visible_line(rollout.id),
            f"task {visible_line(rollout.task)}",
            policy if rollout.policy_version is None else f"{policy} version {compact(rollout.policy_version)}",
            None if rollout.seed is None else f"seed {rollout.seed}",
            None if rollout.seat is None else f"episode {rollout.episode}, seat {rollout.seat}",
            f"{rollout.started_at:%Y-%m-%d %H:%M:%S}",
            duration(rollout.seconds),
            " ".join(f"#{visible_line(tag)}" for tag in rollout.tags),
        ]
        self._lines(folded(Text(" · ".join(filter(None, facts)), "dim"), self._console, ""))
        self._mapping("env_args", rollout.env_args)
        self._mapping("task_data", rollout.task_data)

    # The conversation

    def _event(self, event: Event) -> None:
        if isinstance(event, Said):
            self._said(event)
        elif isinstance(event, Remark):
            self._line()
            self._lines(folded(Text(event.text, "italic yellow"), self._console, _INDENT))
        else:
            self._step(event.step)

    def _said(self, said: Said) -> None:
        message = said.message
        heading = Text(visible_line(message.role), ROLE_STYLES.get(message.role, "bold cyan"))
        if message.name:
            heading.append(f" {visible_line(message.name)}", "magenta")
        if said.answers is not None:
            heading.append(f" answers call {said.answers}", "magenta")
        elif message.tool_call_id is not None:
            heading.append(f" answers no call of this rollout: {visible_line(message.tool_call_id)}", "yellow")
        place = "not kept in the conversation" if said.index is None else f"[{said.index}]"
        heading.append(f"  {place}", "dim")
        self._line()
        self._line(heading)
        self._message(message, said.calls)

    def _message(self, message: Message, calls: Sequence[int]) -> None:
        if message.reasoning:
            self._text(message.reasoning, "italic dim")
        if message.content:
            self._text(message.content, "dim" if message.role == "system" else "")
        elif not (message.reasoning or message.parts or message.tool_calls):
            self._text("(empty)", "italic dim")
        for part in message.parts:
            if part.type != "text":
                self._text(_part_text(part), "cyan")
        for call_number, call in zip(calls, message.tool_calls, strict=True):
            line = Text(f"→ call {call_number} ", "magenta")
            line.append(visible_line(call.name or "(no name)"), "bold magenta").append(" ")
            line.append(visible_text(call.arguments))
            if call.error:
                line.append(f"  not parsed: {visible_line(call.error)}", "red")
            self._lines(folded(line, self._console, _INDENT))
        if message.other is not None:
            self._mapping("other", message.other.thaw())

    def _step(self, step: Step) -> None:
        reward = Text(number(step.reward), "bold")
        if step.env_reward is not None and not _same(step.env_reward, step.reward):
            reward.append(f"  a limit put it in place of the env's {number(step.env_reward)}", "yellow")
        self._fact(f"step {step.step} reward", reward)
        self._numbers("reward_data", step.reward_data)
        self._numbers("metrics", step.metrics)
        self._mapping("env_state", step.env_state)
        self._mapping("extra", step.extra)
        self._mapping("logs", step.logs)
        if step.parse_error:
            self._fact("parse_error", Text(visible_text(step.parse_error), "red"))
        if step.raw is not None:
            self._fact("raw", self._cut(visible_line(step.raw)))
        if answered := _answer_text(step):
            self._fact("completion", Text(answered, "dim"))

    # The end

    def _end(self, rollout: Rollout, reward: float | None, scores: Sequence[Score]) -> None:
        self._line()
        style = STATUS_STYLES[rollout.status]
        title = Text("■ ", style).append(visible_line(rollout.stop_reason), f"bold {style}")
        self._line(title.append(f", stopped by the {rollout.stopped_by.value}"))
        if rollout.pending_raw is not None:
            self._fact("pending_raw", self._cut(visible_line(rollout.pending_raw)))
        self._fact("reward", Text(number(reward), "bold").append(_reward_text(rollout, reward)))
        if rollout.grade is not None:
            self._fact("grade", Text(number(rollout.grade.reward), "bold"))
            self._numbers("  reward_data", rollout.grade.reward_data)
            self._mapping("  extra", rollout.grade.extra)
        self._numbers("metrics", rollout.metrics)
        for score in scores:
            self._score(score)
        for call in rollout.calls:
            self._call(call)
        if rollout.error is not None:
            self._failure("error", rollout.error)
        for note in rollout.notes:
            self._fact("note", Text(note_text(note), "yellow"))

    def _score(self, score: Score) -> None:
        value = Text(f"{visible_line(score.name)} {number(score.value)}")
        if score.producer:
            value.append(f"  by {visible_line(score.producer)}", "dim")
        self._fact("score", value)
        rest = dict(score.data)
        if isinstance(numbers := rest.get("reward_data"), dict) and None not in map(as_number, numbers.values()):
            self._numbers("  reward_data", rest.pop("reward_data"))
        if isinstance(extra := rest.get("extra"), dict):
            del rest["extra"]
            self._mapping("  extra", extra)
        self._mapping("  data", {name: value for name, value in rest.items() if value is not None})
        if score.error is not None:
            self._failure("  error", score.error)

    def _call(self, call: Call) -> None:
        when = "after the end" if call.step is None else f"in step {call.step}"
        about = "" if call.about is None else f" about {visible_line(call.about)}"
        self._fact("call", Text(f"of the {visible_line(call.role)}{about}, {visible_line(call.policy)}, {when}"))
        if call.continues is not None:
            self._fact("  continues", Text(f"call {call.continues}"))
        if self._full:
            for message in call.prompt:
                self._fact(f"  {visible_line(message.role)}", Text(visible_text(message.content)))
        if call.reply is not None:
            self._fact("  reply", self._cut(visible_line(call.reply.content)))
        if call.error is not None:
            self._failure("  error", call.error)

    def _failure(self, label: str, failure: Failure) -> None:
        what = f"{failure.layer.value} · {visible_line(failure.type)}: {visible_text(failure.message)}"
        self._fact(label, Text(what, "red"))
        lines = failure.traceback.strip().splitlines()
        if lines and self._full:
            self._fact("traceback", Text(visible_text(failure.traceback.strip()), "dim"))
        elif lines:
            last = Text(visible_line(lines[-1].strip()), "dim")
            self._fact("traceback", last.append(f"  ({len(lines)} lines; --full shows all)", "italic"))

    # How lines are set

    def _line(self, line: Text | None = None) -> None:
        self._console.print(line or Text(), soft_wrap=True)

    def _lines(self, lines: Iterable[Text]) -> None:
        for line in lines:
            self._line(line)

    def _text(self, text: str, style: str = "") -> None:
        self._lines(folded(Text(visible_text(text), style), self._console, _INDENT))

    def _fact(self, label: str, value: Text) -> None:
        """A label and what it says, with the lines after the first set below the first."""
        lines = folded(value, self._console, "", self._console.width - len(_BAR) - _LABEL)
        for heading, line in zip((label, *("" for _ in lines[1:])), lines, strict=True):
            self._line(Text(f"{_BAR}{heading:{_LABEL}}", "dim").append_text(line))

    def _numbers(self, label: str, values: Mapping[str, Any]) -> None:
        if values:
            self._fact(
                label, Text("  ".join(f"{visible_line(name)} {number(value)}" for name, value in values.items()))
            )

    def _mapping(self, label: str, values: Mapping[str, Any]) -> None:
        if values:
            pairs = (f"{visible_line(str(name))}={compact(value)}" for name, value in values.items())
            self._fact(label, self._cut("  ".join(pairs)))

    def _cut(self, text: str) -> Text:
        if self._full or len(text) <= _MOST_CHARACTERS:
            return Text(text)
        more = len(text) - _MOST_CHARACTERS
        return Text(text[:_MOST_CHARACTERS]).append(f"… {more} characters more: --full shows all", "italic yellow")


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)


def _reward_text(rollout: Rollout, reward: float | None) -> str:
    parts = []
    if reward is None or not _same(rollout.reward_so_far, reward):
        parts.append(f"reward_so_far {number(rollout.reward_so_far)}")
    if rollout.unclamped_reward is not None:
        parts.append(f"unclamped_reward {number(rollout.unclamped_reward)}")
    return f"  ({', '.join(parts)})" if parts else ""


def _answer_text(step: Step) -> str:
    facts = [
        step.termination.value if step.termination else None,
        f"{step.usage.prompt_tokens} + {step.usage.completion_tokens} tokens" if step.usage else None,
        duration(step.seconds) if step.seconds is not None else None,
        f"version {compact(step.policy_version)}" if step.policy_version is not None else None,
    ]
    return " · ".join(filter(None, facts))


def note_text(note: Note) -> str:
    """What is noted, and where in the record it belongs."""
    return visible_line(f"{note.path}: {note.message}" if note.path else note.message)


def _part_text(part: Part) -> str:
    facts = [
        part.type,
        part.media_type,
        part.text,
        part.url,
        part.blob.name if part.blob else None,
        compact(part.other.thaw()) if part.other else None,
    ]
    return f"[{' · '.join(filter(None, facts))}]"
