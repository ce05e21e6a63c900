"""The summary of one run."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.hints import command
from rolltrace.cli.screen.console import print_wrapped
from rolltrace.cli.screen.number_format import format_duration, plural, short_number
from rolltrace.cli.screen.styles import append_repeats, state_line
from rolltrace.query.number_stats import NumberStats
from rolltrace.query.run_state import RunState
from rolltrace.query.run_summary import IterationStats, RunSummary
from rolltrace.terminal_text import escape_line

_BARS = "▁▂▃▄▅▆▇█"
_WIDEST = 60
"""The maximum number of bars in a sparkline."""
_MAX_ROWS = 12
_MAX_REASONS = 12
_LABEL = 12
_SOUND = {"dispatched", "recorded", "scores_recorded", "in_flight"}
"""Counts of a ledger that are not losses."""


def show_run_summary(console: Console, run: RunSummary) -> None:
    """Print the summary of a run."""
    print_wrapped(console, Text(escape_line(run.path), "bold"))
    print_wrapped(console, Text(f"{escape_line(run.run)} · {run.created_at:%Y-%m-%d %H:%M:%S} UTC", "dim"))
    console.print()
    _fact(console, "state", state_line(run.state, run.planned, run.finished))
    _fact(console, "rollouts", _rollouts_text(run))
    _fact(console, "envs", Text(_shares(run.envs, run.rollouts)))
    _fact(console, "policies", Text(_shares(run.policies, run.rollouts)))
    _fact(console, "groups", _groups_text(run))
    _fact(console, "reward", _rewards_text(run.rewards))
    _fact(console, "stopped", Text(_shares(run.stop_reasons, run.rollouts)))
    _fact(console, "status", Text(_shares(run.statuses, run.rollouts), "" if run.statuses.keys() <= {"ok"} else "red"))
    _fact(console, "tokens", Text(_tokens_text(run)))
    _fact(console, "time", Text(_time_text(run)))
    _fact(console, "ledger", _ledger_text(run))
    _show_errors(console, run)
    _show_iterations(console, run.iterations)
    _show_problems(console, run)


def sparkline(values: Sequence[float | None]) -> str:
    """Draw values as bars. Neighbours are averaged if there are too many, and a missing value is a space."""
    width = min(len(values), _WIDEST)
    pieces = [values[place * len(values) // width : (place + 1) * len(values) // width] for place in range(width)]
    means = [_mean([value for value in piece if value is not None and math.isfinite(value)]) for piece in pieces]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(" " if mean is None else _BARS[_height(mean, low, high)] for mean in means)


def _height(value: float, low: float, high: float) -> int:
    if low == high:
        return len(_BARS) // 2
    return min(len(_BARS) - 1, int((value / 2 - low / 2) / (high / 2 - low / 2) * len(_BARS)))  # halves cannot overflow


def _mean(values: Sequence[float]) -> float | None:
    return sum(value / len(values) for value in values) if values else None


def _rollouts_text(run: RunSummary) -> Text:
    text = Text(f"{run.rollouts:,}", "bold")
    if run.iterations:
        splits = len({one.split for one in run.iterations})
        text.append(f" in {plural(len(run.iterations), 'iteration')}", "not bold")
        text.append(f" of {splits} splits" if splits > 1 else "", "not bold")
    text.append(f", {plural(run.steps, 'step')}", "not bold")
    append_repeats(text, run)
    return text


def _groups_text(run: RunSummary) -> Text:
    text = Text(f"{run.groups:,}")
    if run.groups:
        text.append(f" · {_share(run.groups_with_signal, run.groups)} with signal")
    if run.groups_without_signal:
        share = f" · {_share(run.groups_without_signal, run.groups)} without: all members have the same reward"
        text.append(share, "yellow")
    return text


def _rewards_text(rewards: NumberStats) -> Text:
    if not rewards.n:
        text = Text("none")
    else:
        text = Text(f"{short_number(rewards.mean)} ± {short_number(rewards.std)}", "bold")
        text.append(f" from {short_number(rewards.min)} to {short_number(rewards.max)} (n = {rewards.n:,})", "not bold")
    if rewards.missing:
        text.append(f" · {rewards.missing:,} without", "yellow")
    if rewards.non_finite:
        text.append(f" · {rewards.non_finite:,} not finite, left out", "red")
    return text


def _tokens_text(run: RunSummary) -> str:
    if not run.prompt_tokens and not run.completion_tokens:
        return "not recorded"
    each = f", {run.completion_tokens / run.rollouts:,.1f} sampled in a rollout" if run.rollouts else ""
    return f"{run.prompt_tokens:,} of prompts, {run.completion_tokens:,} sampled{each}"


def _time_text(run: RunSummary) -> str:
    if run.started_at is None or run.ended_at is None or run.mean_seconds is None:
        return "–"
    whole = (run.ended_at - run.started_at).total_seconds()
    return f"{format_duration(whole)} from first to last, {format_duration(run.mean_seconds)} a rollout"


def _ledger_text(run: RunSummary) -> Text:
    text = Text(f"{plural(run.sessions, 'session')}: ")
    text.append(", ".join(f"{run.ledger.get(name, 0):,} {name}" for name in ("dispatched", "recorded")))
    for name, count in run.ledger.items():
        if count and name not in _SOUND:
            text.append(f" · {count:,} {name.replace('_', ' ')}", "red")
    if run.lost:
        text.append(f" · {plural(run.lost, 'rollout')} lost", "red")
    if run.maybe_lost:
        is_running = run.state is RunState.RUNNING
        what = "being played, or lost with a session that died" if is_running else "lost with a session that died"
        text.append(f" · {run.maybe_lost:,} {what}", "yellow")
    if run.open_sessions:
        text.append(f" · {run.open_sessions:,} not closed", "yellow")
    return text


def _show_errors(console: Console, run: RunSummary) -> None:
    if not run.errors:
        return
    console.print()
    for error in run.errors:
        line = Text(f"{_share(error.count, run.attempts)} ", "red")
        line.append(escape_line(f"{error.layer} · {error.type}: {error.example}"))
        print_wrapped(console, line)


def _show_iterations(console: Console, iterations: Sequence[IterationStats]) -> None:
    for split in dict.fromkeys(one.split for one in iterations):
        own = [one for one in iterations if one.split == split]
        console.print()
        line = Text(f"{escape_line(split)} ", "bold")
        line.append(sparkline([one.rewards.mean for one in own]), "cyan")
        line.append(f"  mean reward, {plural(len(own), 'iteration')}", "dim")
        console.print(line, soft_wrap=True)
        _show_table(console, own)


def _show_table(console: Console, iterations: Sequence[IterationStats]) -> None:
    shown = _some(iterations)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("iteration", "reward", "±", "rollouts", "failed", "groups", "with signal", "mean steps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in shown:
        table.add_row(
            f"{one.iteration}",
            Text(short_number(one.rewards.mean), "bold"),
            Text(short_number(one.rewards.std), "dim"),
            f"{one.rollouts:,}",
            Text(f"{one.failed:,}", "red" if one.failed else "dim"),
            f"{one.groups:,}",
            f"{one.groups_with_signal:,}",
            short_number(one.mean_steps),
        )
    console.print(table)
    if len(shown) < len(iterations):
        console.print(Text(f"{len(shown)} of {len(iterations):,} iterations; --json has all", "italic dim"))


def _some(iterations: Sequence[IterationStats]) -> list[IterationStats]:
    """All items, or if there are too many some at equal distances, the first and the last included."""
    if len(iterations) <= _MAX_ROWS:
        return list(iterations)
    last = len(iterations) - 1
    return [iterations[place * last // (_MAX_ROWS - 1)] for place in range(_MAX_ROWS)]


def _show_problems(console: Console, run: RunSummary) -> None:
    if not run.problem_count:
        return
    console.print()
    unread = f"{plural(run.problem_count, 'place')} could not be read: {command('check', run.path)}"
    print_wrapped(console, Text(unread, "red"))
    for problem in run.problems[:3]:
        print_wrapped(console, Text(escape_line(problem), "dim"), "  ")


def _shares(counts: Mapping[str, int], total: int) -> str:
    """Names with their counts and fractions, the most frequent first."""
    shares = [f"{escape_line(name)} {_share(count, total)}" for name, count in list(counts.items())[:_MAX_REASONS]]
    if len(counts) > _MAX_REASONS:
        shares.append(f"and {len(counts) - _MAX_REASONS} others")
    return ", ".join(shares) or "–"


def _share(count: int, total: int) -> str:
    return f"{count:,} ({100 * count / total:.3g} %)" if total else f"{count:,}"


def _fact(console: Console, label: str, value: Text) -> None:
    print_wrapped(console, Text(f"{label:{_LABEL}}", "dim").append_text(value))
