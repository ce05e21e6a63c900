"""One rollout as a transcript."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from rolltrace.cli.screen.detail_printer import INDENT, DetailPrinter, format_pair
from rolltrace.cli.screen.number_format import format_duration, plural, short_number, to_one_line
from rolltrace.cli.screen.run_summary import sparkline
from rolltrace.cli.screen.styles import ROLE_STYLES, STATUS_STYLES
from rolltrace.query.address import address
from rolltrace.query.reward_breakdown import same_reward
from rolltrace.query.rubric_grid import rubric_scores
from rolltrace.terminal_text import escape_line, escape_text
from rolltrace.trace.call import Call
from rolltrace.trace.freeform import Note
from rolltrace.trace.json_numbers import as_float, as_number
from rolltrace.trace.message import Message, Part
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.score import Score
from rolltrace.trace.stop_reasons import EnvFailure
from rolltrace.trace.transcript import (
    TranscriptEvent,
    TranscriptMessage,
    TranscriptNote,
    TranscriptStep,
    transcript_events,
)

_REASONING = "┊ "
_MAX_TEXT_CHARS = 20_000
_MAX_SYSTEM_CHARS = 2_000
"""Longer texts are folded, unless `--full` is given."""
_MAX_EVENTS = 1_000
"""Of more messages and steps, only the first and the last are shown, unless `--full` is given."""
_END = 2_000
"""How much of the end of a folded text is shown."""
_MAX_OLD_VALUE_CHARS = 60
"""How much is shown of a value that another replaced."""
_MAX_VERDICT_CHARS = 200


_ENV_FAILURES = {
    EnvFailure.RAISED: "raised: the env failed on this turn, and gave no reward",
    EnvFailure.TIMED_OUT: "timed_out: the rollout's time ran out while the env was at work, so there is no reward",
    EnvFailure.CANCELLED: "cancelled: the rollout was cancelled while the env was at work, so there is no reward",
    EnvFailure.ABORTED: "aborted: another seat ended the episode while the env was at work, so there is no reward",
}


class RolloutTranscript(DetailPrinter):
    """Prints rollouts; texts longer than `max_text` are folded."""

    def __init__(self, console: Console, *, full: bool = False, max_text: int = _MAX_TEXT_CHARS) -> None:
        super().__init__(console, full=full)
        self._max_text = max_text

    def show(self, rollout: Rollout) -> None:
        """Print one rollout with its reward as it stands now and the scores that it has."""
        self._identity(rollout)
        calls: dict[int | None, list[Call]] = {}
        for call in rollout.calls:
            calls.setdefault(call.step, []).append(call)
        events = transcript_events(rollout)
        half = len(events) if self.full or len(events) <= _MAX_EVENTS else _MAX_EVENTS // 2
        state = self._events(events[:half], {}, calls)
        if half < len(events):
            omitted = events[half:-half]
            steps = [event.step for event in omitted if isinstance(event, TranscriptStep)]
            messages = sum(isinstance(event, TranscriptMessage) for event in omitted)
            text = f"… {plural(messages, 'message')} and {plural(len(steps), 'step')}: --full shows all …"
            self.line()
            self.wrapped(Text(text, "italic yellow"), INDENT)
            for step in steps:
                calls.pop(step.step, None)
            self._events(events[-half:], steps[-1].env_state if steps else state, calls)
        self._end(rollout, [call for call in rollout.calls if call.step in calls])

    def _events(
        self, events: Sequence[TranscriptEvent], state: Mapping[str, Any], calls: dict[int | None, list[Call]]
    ) -> Mapping[str, Any]:
        """Print events, each step with its calls, which are removed; returns the state after the last step."""
        for event in events:
            if isinstance(event, TranscriptMessage):
                self._said(event)
            elif isinstance(event, TranscriptNote):
                self.line()
                self.wrapped(Text(event.text, "italic yellow"), INDENT)
            else:
                self._step(event.step, state)
                state = event.step.env_state
                for call in calls.pop(event.step.step, ()):
                    self._call(call, "")
        return state

    # The beginning

    def _identity(self, rollout: Rollout) -> None:
        title = Text(escape_line(address(rollout)), "bold")
        if rollout.attempt:
            title.append(f"  attempt {rollout.attempt}", "yellow")
        title.append("  ").append(rollout.status.value, STATUS_STYLES[rollout.status])
        title.append(f"  reward {short_number(rollout.reward)}", "bold")
        self.line(title)
        policy = escape_line(rollout.policy)
        facts = [
            escape_line(rollout.id),
            f"task {escape_line(rollout.task)}",
            policy if rollout.policy_version is None else f"{policy} version {to_one_line(rollout.policy_version)}",
            None if rollout.seed is None else f"seed {rollout.seed}",
            None if rollout.seat is None else f"episode {rollout.episode}, seat {rollout.seat}",
            f"{rollout.started_at:%Y-%m-%d %H:%M:%S}",
            format_duration(rollout.seconds),
            " ".join(f"#{escape_line(tag)}" for tag in rollout.tags),
        ]
        self.wrapped(Text(" · ".join(filter(None, facts)), "dim"))
        self.mapping("env_args", rollout.env_args)
        self.mapping("task_data", rollout.task_data)

    # The conversation

    def _said(self, said: TranscriptMessage) -> None:
        message = said.message
        heading = role_heading(message)
        if said.answers_call is not None:
            heading.append(f" answers call {said.answers_call}", "magenta")
        elif message.tool_call_id is not None:
            heading.append(f" answers no call of this rollout: {escape_line(message.tool_call_id)}", "yellow")
        place = "not kept in the conversation" if said.index is None else f"[{said.index}]"
        heading.append(f"  {place}", "dim")
        self.line()
        self.line(heading)
        self.message(message, said.call_numbers)

    def message(self, message: Message, call_numbers: Sequence[int], indent: str = INDENT) -> None:
        """Print what a message says, without its role."""
        if message.reasoning:
            self._text(message.reasoning, "italic dim", f"{indent}{_REASONING}")
        if message.content:
            self._text(message.content, "dim" if message.role == "system" else "", indent, message.role)
        elif not (message.reasoning or message.parts or message.tool_calls):
            self._text("(empty)", "italic dim", indent)
        for part in message.parts:
            if part.type != "text":
                self._text(_part_text(part), "cyan", indent)
        for call_number, call in zip(call_numbers, message.tool_calls, strict=True):
            line = Text().append(f"→ call {call_number} ", "magenta")
            line.append(escape_line(call.name or "(no name)"), "bold magenta").append(" ")
            line.append_text(self.cut(escape_text(call.arguments), self._max_text))
            if call.error:
                line.append(f"  not parsed: {escape_line(call.error)}", "red")
            self.wrapped(line, indent)
        if message.other is not None:
            self.mapping("other", message.other.to_dict())

    def _step(self, step: Step, state: Mapping[str, Any]) -> None:
        reward = Text(short_number(step.reward), "bold")
        if step.env_reward is not None and not same_reward(step.env_reward, step.reward):
            reward.append(f"  a limit put it in place of the env's {short_number(step.env_reward)}", "yellow")
        self.labelled(f"step {step.step} reward", reward)
        if step.env_failure is not None:
            self.labelled("env_failure", Text(_ENV_FAILURES[step.env_failure], "bold red"))
        self.numbers("reward_data", step.reward_data)
        self.numbers("metrics", step.metrics, "dim")
        if state and not self.full:
            self.changes("env_state", state_changes(state, step.env_state))
        else:
            self.mapping("env_state", step.env_state)
        self.mapping("extra", step.extra)
        self.mapping("logs", step.logs)
        if step.parse_error:
            self.labelled("parse_error", Text(escape_text(step.parse_error), "red"))
        if step.raw is not None:
            self.labelled("raw", self.cut(escape_line(step.raw)))
        if answered := _answer_text(step):
            self.labelled("completion", Text(answered, "dim"))

    # The end

    def _end(self, rollout: Rollout, calls: Sequence[Call]) -> None:
        self.line()
        style = STATUS_STYLES[rollout.status]
        title = Text().append("■ ", style).append(escape_line(rollout.stop_reason), f"bold {style}")
        self.line(title.append(f", stopped by the {rollout.stopped_by.value}"))
        if rollout.pending_raw is not None:
            self.labelled("pending_raw", self.cut(escape_line(rollout.pending_raw)))
        self.labelled("reward", Text(short_number(rollout.reward), "bold").append(_reward_text(rollout)))
        if len(rollout.steps) > 1:
            self.labelled("steps", _steps_text(rollout))
        self._grade(rollout)
        self.numbers("metrics", rollout.metrics)
        for score in rollout.scores:
            self._score(score)
        for call in calls:
            self._call(call, ", after the end" if call.step is None else f", in step {call.step}")
        if rollout.error is not None:
            self.failure("error", rollout.error)
        for note in rollout.notes:
            self.labelled("note", Text(note_text(note), "yellow"))

    def _grade(self, rollout: Rollout) -> None:
        if rollout.grade is None:
            return
        self.labelled("grade", Text(short_number(rollout.grade.reward), "bold"))
        self.numbers("  reward_data", rollout.grade.reward_data)
        extra = dict(rollout.grade.extra)
        if not self.full and (lines := _rubric_lines(rollout)):
            extra.pop("criteria")
            for label, line in zip(("  rubric", *("" for _ in lines[1:])), lines, strict=True):
                self.labelled(label, line)
        self.mapping("  extra", extra)

    def _score(self, score: Score) -> None:
        value = Text(f"{escape_line(score.name)} {short_number(score.value)}")
        if score.producer:
            value.append(f"  by {escape_line(score.producer)}", "dim")
        self.labelled("score", value)
        rest = dict(score.data)
        if isinstance(numbers := rest.get("reward_data"), dict) and None not in map(as_number, numbers.values()):
            self.numbers("  reward_data", rest.pop("reward_data"))
        if isinstance(extra := rest.get("extra"), dict):
            del rest["extra"]
            if not self.full and (matchups := _matchups_text(extra)):
                self.labelled("  matchups", matchups)
                extra = {name: item for name, item in extra.items() if name != "matchups"}
            self.mapping("  extra", extra)
        self.mapping("  data", {name: value for name, value in rest.items() if value is not None})
        if score.error is not None:
            self.failure("  error", score.error)

    def _call(self, call: Call, when: str) -> None:
        about = "" if call.about is None else f" about {escape_line(call.about)}"
        self.labelled("call", Text(f"of the {escape_line(call.role)}{about}, {escape_line(call.policy)}{when}"))
        if call.continues_call is not None:
            self.labelled("  continues", Text(f"call {call.continues_call}"))
        if self.full:
            for message in call.prompt:
                self.labelled(f"  {escape_line(message.role)}", Text(escape_text(message.content)))
        if call.reply is not None:
            self.labelled("  reply", self.cut(escape_text(call.reply.content)))
        if call.error is not None:
            self.failure("  error", call.error)

    def _text(self, text: str, style: str = "", indent: str = INDENT, role: str = "") -> None:
        """Print a text; of one that is too long, only the beginning and the end."""
        longest = min(self._max_text, _MAX_SYSTEM_CHARS) if role == "system" else self._max_text
        if self.full or len(text) <= longest:
            self.wrapped(Text(escape_text(text), style), indent)
            return
        end = min(_END, longest // 4)
        left_out = len(text) - longest
        self.wrapped(Text(escape_text(text[: longest - end]), style), indent)
        self.wrapped(Text(f"… {left_out:,} characters: --full shows all …", "italic yellow"), indent)
        self.wrapped(Text(escape_text(text[-end:]), style), indent)


def _reward_text(rollout: Rollout) -> str:
    parts = []
    if rollout.reward is None or not same_reward(rollout.reward_so_far, rollout.reward):
        parts.append(f"reward_so_far {short_number(rollout.reward_so_far)}")
    if rollout.unclamped_reward is not None:
        parts.append(f"unclamped_reward {short_number(rollout.unclamped_reward)}")
    return f"  ({', '.join(parts)})" if parts else ""


def _steps_text(rollout: Rollout) -> Text:
    """The rewards of the steps, as a sparkline and as numbers."""
    rewards = [step.reward for step in rollout.steps]
    earning = [step for step in rollout.steps if step.reward]
    text = Text().append(f"{sparkline(rewards)}  " if earning else "", "cyan").append(plural(len(rewards), "step"))
    rewarded = ", ".join(f"{short_number(step.reward)} in step {step.step}" for step in earning[:5])
    more = ", …" if len(earning) > 5 else ""
    return text.append(f": {rewarded}{more}" if rewarded else ", none with a reward", "dim")


def _answer_text(step: Step) -> str:
    facts = [
        step.termination.value if step.termination else None,
        f"{step.usage.prompt_tokens} + {step.usage.completion_tokens} tokens" if step.usage else None,
        format_duration(step.seconds) if step.seconds is not None else None,
        f"version {to_one_line(step.policy_version)}" if step.policy_version is not None else None,
    ]
    return " · ".join(filter(None, facts))


def role_heading(message: Message) -> Text:
    """The role of a message, and its name if it has one."""
    heading = Text().append(escape_line(message.role), ROLE_STYLES.get(message.role, "bold cyan"))
    return heading.append(f" {escape_line(message.name)}" if message.name else "", "magenta")


def note_text(note: Note) -> str:
    """The message of a note, after the path in the record that it is about."""
    return escape_line(f"{note.path}: {note.message}" if note.path else note.message)


def _part_text(part: Part) -> str:
    facts = [
        part.type,
        part.media_type,
        part.text,
        part.url,
        part.blob.name if part.blob else None,
        to_one_line(part.other.to_dict()) if part.other else None,
    ]
    return f"[{' · '.join(filter(None, facts))}]"


def state_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Text:
    """The entries of a state that are new, changed (with the old value) or gone."""
    changes: list[Text] = []
    same = 0
    for name, value in now.items():
        if name not in before:
            changes.append(Text(format_pair(name, value)))
        elif _same_value(before[name], value):
            same += 1
        else:
            changes.append(Text(format_pair(name, value)).append(f" (was {_short_value(before[name])})", "dim"))
    changes.extend(Text(f"{escape_line(str(name))} is gone", "dim") for name in before if name not in now)
    if same:
        changes.append(Text("nothing changed" if not changes else f"{same:,} unchanged", "dim"))
    return Text("  ").join(changes)


def _same_value(one: Any, other: Any) -> bool:
    """Whether two values of a record are equal; NaN equals NaN, and 1 does not equal true."""
    return type(one) is type(other) and (one == other or to_one_line(one) == to_one_line(other))


def _short_value(value: Any) -> str:
    text = to_one_line(value)
    return f"{text[:_MAX_OLD_VALUE_CHARS]}…" if len(text) > _MAX_OLD_VALUE_CHARS else text


def _rubric_lines(rollout: Rollout) -> list[Text]:
    """A line for each criterion of a rubric: its score, its weight and its text."""
    lines = []
    for criterion, cell in rubric_scores(rollout):
        line = Text().append(f"{escape_line(criterion.name)} {short_number(cell.value)}", "bold")
        line.append("" if criterion.weight is None else f" × {short_number(criterion.weight)}")
        lines.append(line.append(f"  {escape_line(criterion.text or '')[:_MAX_VERDICT_CHARS]}", "dim"))
    return lines


def _matchups_text(extra: Mapping[str, Any]) -> Text:
    """The opponents of a rollout in a tournament and the scores against them; empty if they are not recorded."""
    matchups = extra.get("matchups")
    if not isinstance(matchups, list) or not all(isinstance(matchup, Mapping) for matchup in matchups):
        return Text()
    return Text("  ").join(_matchup(matchup) for matchup in matchups)


def _matchup(matchup: Mapping[str, Any]) -> Text:
    index, score = matchup.get("opponent_index"), as_float(matchup.get("score"))
    name = f"#{index}" if type(index) is int else escape_line(str(matchup.get("opponent")))[:_MAX_VERDICT_CHARS]
    text = Text().append(f"{name} ", "dim")
    if score is None:
        return text.append(f"not judged: {escape_line(str(matchup.get('error')))[:_MAX_VERDICT_CHARS]}", "red")
    text.append(f"{score:+.2f}" if score else "0", "green" if score > 0 else "red" if score < 0 else "")
    return text.append({True: " as first", False: " as second"}.get(matchup.get("first") is True, ""), "dim")
