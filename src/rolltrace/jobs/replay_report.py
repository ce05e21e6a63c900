"""The result of replaying a run: counts for each environment, and the first rollouts that differ, also as text."""

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rolltrace.jobs.replay_compare import Comparison, ReplayDifference
from rolltrace.query.address import address
from rolltrace.terminal_text import escape_line
from rolltrace.trace.message import Message, encode_hook
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.strict_json import encode_json

MAX_DIFFERENCES = 20
"""How many differences of one rollout a report has."""
_MAX_SHOWN = 6
"""How many differences of one rollout are shown as text."""
_MAX_DIFF_LINES = 12
_MAX_VALUE_CHARS = 200
_CONTEXT_CHARS = 40
"""How much of a long line is shown before its first difference."""


class DifferingRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout whose replay differs."""

    id: str
    address: str
    """SPLIT/ENV/ITERATION/GROUP/INDEX, which `rolltrace show` accepts."""
    attempt: int
    task: str
    differences: tuple[ReplayDifference, ...]
    """The first of them, in the order of the steps."""
    differences_count: int
    """How many there are."""


class EnvReplay(msgspec.Struct, frozen=True, kw_only=True):
    """How the rollouts of one environment were replayed."""

    env: str
    rollouts: int
    """How many were selected."""
    equal: int
    differing: int
    not_replayed: dict[str, int]
    """How many could not be replayed, by reason."""
    ends_left_out: dict[str, int]
    """Of the equal and differing ones, how many were compared only up to their end, by reason."""
    steps: int
    """How many steps were compared."""
    fields: dict[str, int]
    """How many rollouts differ in each field."""


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of replaying a run."""

    path: str
    run: str
    """The run's id."""
    recorded_revision: str | None
    """The code revision that recorded the run."""
    revision: str | None
    """The code revision now."""
    seconds: float
    envs: tuple[EnvReplay, ...]
    differing: tuple[DifferingRollout, ...]
    """The first rollouts that differ."""
    read_errors: tuple[str, ...] = ()
    """Which parts of the run could not be read."""

    @property
    def rollouts(self) -> int:
        """How many rollouts were selected."""
        return sum(env.rollouts for env in self.envs)

    @property
    def compared(self) -> int:
        """How many rollouts were replayed and compared."""
        return sum(env.equal + env.differing for env in self.envs)

    @property
    def differing_count(self) -> int:
        """How many rollouts differ."""
        return sum(env.differing for env in self.envs)

    @property
    def is_equal(self) -> bool:
        """Whether rollouts were compared, and none of them differs."""
        return self.compared > 0 and self.differing_count == 0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=encode_hook)
        counts = {name: getattr(self, name) for name in ("rollouts", "compared", "differing_count", "is_equal")}
        return counts | plain

    def __str__(self) -> str:
        return "\n".join(f"{line.indent}{line.text}" for line in report_lines(self))


class ReplayCounter:
    """Counts the rollouts of a replay as they are compared."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, Counter[str]] = {}
        self._reasons: dict[str, Counter[str]] = {}
        self._left_out: dict[str, Counter[str]] = {}
        self._fields: dict[str, Counter[str]] = {}
        self._differing: list[DifferingRollout] = []
        self.done = 0

    def add_not_replayed(self, env: str, reason: str, count: int = 1) -> None:
        """Count rollouts that cannot be replayed."""
        self._count(env, "rollouts", count)
        self._reasons.setdefault(env, Counter())[reason] += count

    def add(self, rollout: Rollout, comparison: Comparison, steps: int) -> None:
        """Count a rollout that was compared."""
        env, differences = rollout.env, comparison.differences
        self._count(env, "rollouts")
        self._count(env, "steps", steps)
        if comparison.left_out is not None:
            self._left_out.setdefault(env, Counter())[comparison.left_out] += 1
        if not differences:
            self._count(env, "equal")
            return
        self._count(env, "differing")
        names = {difference.field.partition(".")[0].partition("[")[0] for difference in differences}
        self._fields.setdefault(env, Counter()).update(names)
        if len(self._differing) < self._most:
            self._differing.append(
                DifferingRollout(
                    id=rollout.id,
                    address=address(rollout),
                    attempt=rollout.attempt,
                    task=rollout.task,
                    differences=tuple(differences[:MAX_DIFFERENCES]),
                    differences_count=len(differences),
                )
            )

    def envs(self) -> tuple[EnvReplay, ...]:
        """The counts of each environment."""
        return tuple(
            EnvReplay(
                env=env,
                **{name: counts[name] for name in ("rollouts", "equal", "differing", "steps")},
                not_replayed=_plain(self._reasons.get(env)),
                ends_left_out=_plain(self._left_out.get(env)),
                fields=_plain(self._fields.get(env)),
            )
            for env, counts in sorted(self._counts.items())
        )

    @property
    def differing(self) -> tuple[DifferingRollout, ...]:
        """The first rollouts that differ."""
        return tuple(self._differing)

    def _count(self, env: str, name: str, count: int = 1) -> None:
        self._counts.setdefault(env, Counter())[name] += count
        self.done += count if name == "rollouts" else 0


def _plain(counter: Mapping[str, int] | None) -> dict[str, int]:
    """The counts, largest first."""
    return dict(sorted((counter or {}).items(), key=lambda item: (-item[1], item[0])))


class ReportLine(NamedTuple):
    """A line of the report as text, already escaped."""

    text: str
    style: str = ""
    indent: str = ""


def report_lines(report: ReplayReport) -> Iterator[ReportLine]:
    """The report as text."""
    yield ReportLine(escape_line(report.path), "bold")
    yield ReportLine(
        f"{_plural(report.compared, 'rollout')} replayed, {_plural(sum(env.steps for env in report.envs), 'step')} "
        f"compared in {report.seconds:.2f} s",
        "dim",
    )
    if report.recorded_revision is not None and report.revision not in (None, report.recorded_revision):
        yield ReportLine(f"recorded at revision {report.recorded_revision[:12]}, now {report.revision[:12]}", "dim")
    for env in report.envs:
        yield ReportLine("")
        yield from _env_lines(env)
    for rollout in report.differing:
        yield ReportLine("")
        yield from _rollout_lines(rollout)
    yield ReportLine("")
    yield _conclusion(report)


def _env_lines(env: EnvReplay) -> Iterator[ReportLine]:
    counts = (env.equal, "equal"), (env.differing, "differ"), (sum(env.not_replayed.values()), "not replayed")
    known = ", ".join(f"{count} {name}" for count, name in counts if count)
    yield ReportLine(f"{escape_line(env.env)}: {_plural(env.rollouts, 'rollout')}, {known}", "bold")
    details = {"differ in": env.fields, "ends not compared": env.ends_left_out, "not replayed": env.not_replayed}
    for name, values in details.items():
        if values:
            listed = ", ".join(f"{escape_line(reason)} {count}" for reason, count in values.items())
            yield ReportLine(f"{name}: {listed}", "", "  ")


def _rollout_lines(rollout: DifferingRollout) -> Iterator[ReportLine]:
    attempt = f", attempt {rollout.attempt}" if rollout.attempt else ""
    yield ReportLine(f"✗ {escape_line(rollout.address)}{attempt}", "bold red")
    yield ReportLine(f"{rollout.id}, task {escape_line(rollout.task)}", "dim", "  ")
    for difference in rollout.differences[:_MAX_SHOWN]:
        yield from _difference_lines(difference)
    if more := rollout.differences_count - len(rollout.differences[:_MAX_SHOWN]):
        yield ReportLine(f"… and {_plural(more, 'difference')} more", "italic", "  ")


def _difference_lines(difference: ReplayDifference) -> Iterator[ReportLine]:
    place = "rollout" if difference.step is None else f"step {difference.step}"
    name = f"{place}  {escape_line(difference.field)}"
    old, new = difference.recorded, difference.replayed
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > _CONTEXT_CHARS:
        yield ReportLine(f"{name}:", "", "  ")
        yield from _text_diff(old, new)
        return
    yield ReportLine(f"{name}: {_show(old, difference)} → {_show(new, difference)}", "", "  ")


def _text_diff(old: str, new: str) -> Iterator[ReportLine]:
    """The lines that differ, with the text around the first difference if they are long."""
    lines = [
        line
        for line in difflib.unified_diff(old.split("\n"), new.split("\n"), n=1, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    start = max(0, _first_difference(lines) - _CONTEXT_CHARS)
    styles = {"-": "red", "+": "green", " ": "dim"}
    for line in lines[:_MAX_DIFF_LINES]:
        text = line[1:]
        if len(text) > _MAX_VALUE_CHARS and line[0] != " ":
            text = ("…" if start else "") + text[start:]
        yield ReportLine(f"{line[0]} {escape_line(_clip(text))}", styles[line[0]], "    ")
    if more := len(lines[_MAX_DIFF_LINES:]):
        yield ReportLine(f"… {_plural(more, 'line')} more", "italic", "    ")


def _first_difference(lines: Sequence[str]) -> int:
    """The position of the first difference between the first removed and the first added line."""
    old = next((line[1:] for line in lines if line.startswith("-")), "")
    new = next((line[1:] for line in lines if line.startswith("+")), "")
    pairs = enumerate(zip(old, new, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(old), len(new)))


def _show(value: Any, difference: ReplayDifference) -> str:
    if value is None:
        return "goes on" if difference.field == "stop_reason" else "nothing"
    if isinstance(value, Message):
        return escape_line(_clip(f"{value.role}: {value.content!r}"))
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return escape_line(_clip(repr(str(value)) if isinstance(value, str) else encode_json(value).decode()))


def _conclusion(report: ReplayReport) -> ReportLine:
    if report.is_equal:
        return ReportLine(f"✓ the replay is equal: {_plural(report.compared, 'rollout')}", "bold green")
    if not report.compared:
        return ReportLine("✗ no rollout could be replayed", "bold red")
    more = report.differing_count - len(report.differing)
    shown = f"; --most {report.differing_count} shows all" if more else ""
    return ReportLine(f"✗ {report.differing_count} of {_plural(report.compared, 'rollout')} differ{shown}", "bold red")


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
