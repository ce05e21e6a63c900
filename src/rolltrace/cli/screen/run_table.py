"""A run: its totals, a histogram of its rewards, and a table of its rollouts."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import asdict
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.hints import command
from rolltrace.cli.screen.console import print_wrapped, table_cell
from rolltrace.cli.screen.number_format import plural, short_number, to_one_line
from rolltrace.cli.screen.styles import STATUS_STYLES, append_repeats, state_line
from rolltrace.cli.screen.transcript import note_text
from rolltrace.query.address import short_addresses
from rolltrace.query.histogram import Histogram
from rolltrace.query.run_state import RunState, SessionState, continued_sessions, session_state
from rolltrace.query.run_totals import RunTotals
from rolltrace.store.layout import RUN_FILE, RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.terminal_text import escape_line
from rolltrace.trace.failure import Failure
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import Score

_SHORT_ID = 8
_MAX_NOTES = 3
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 5
_WIDEST = 76
"""The maximum width of a chart, and its width if the output is not a terminal."""
_BAR = 2
_NARROW = 30
"""On a terminal with fewer columns there is no chart."""


def show_header(console: Console, path: str, info: RunInfo) -> None:
    """Print where the run is, when it was created, and its settings."""
    console.print(Text(escape_line(path), "bold"), soft_wrap=True)
    facts = [
        escape_line(info.id),
        f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC",
        f"rolltrace {escape_line(info.package_version)}",
    ]
    if info.code_revision:
        facts.append(f"code {escape_line(info.code_revision)[:12]}")
    print_wrapped(console, Text(" · ".join(facts), "dim"))
    maps = [escape_line(str(name)) for name, value in info.config.items() if isinstance(value, dict) and value]
    settings = [
        f"{escape_line(str(name))}={to_one_line(value)}"
        for name, value in info.config.items()
        if value is not None and not isinstance(value, dict)
    ]
    if maps:
        settings.append(f"({', '.join(maps)}: see {RUN_FILE})")
    if settings:
        print_wrapped(console, Text("  ".join(settings), "dim"))


def show_totals(console: Console, totals: RunTotals, state: RunState, planned: int | None) -> None:
    """Print the state of the run, how many rollouts it has, their mean reward and how they ended."""
    known = totals.mean_reward is not None
    mean = f"mean reward {short_number(totals.mean_reward)} (n = {totals.rewarded})" if known else "no rewards"
    line = Text(f"{plural(totals.rollouts, 'rollout')} in {plural(totals.groups, 'group')} · {mean}", "bold")
    reasons = ", ".join(f"{table_cell(escape_line(name)).plain} {count}" for name, count in totals.stop_reasons.items())
    line.append(f" · {reasons}" if reasons else "", "not bold")
    append_repeats(line, totals)
    console.print()
    print_wrapped(console, state_line(state, planned, totals.finished))
    print_wrapped(console, line)


def show_rewards(console: Console, rewards: Histogram) -> None:
    """Print a histogram of the rewards, and how many are not in it."""
    if len(rewards.bins) < 2:
        return
    console.print()
    width = min(console.width, _WIDEST)
    if width >= _NARROW:
        for line in _chart_lines(rewards, "reward", width):
            line.rstrip()
            console.print(line, soft_wrap=True)
    left_out = {"without a reward": rewards.missing, "not finite": rewards.non_finite}
    omitted = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
    if omitted:
        print_wrapped(console, Text(f"not drawn: {omitted}", "yellow"))


def show_next_commands(console: Console, path: str, group: str) -> None:
    """On a terminal, print the command that shows a group."""
    if console.is_terminal:
        console.print()
        hint = f"{command('show', path, group)} shows a group; with /INDEX it shows a rollout"
        print_wrapped(console, Text(hint, "dim"))


def show_omitted_count(console: Console, shown: int, total: int) -> None:
    """Print how many rollouts are not in the table, if there are any."""
    if total > shown:
        print_wrapped(console, Text(f"… the first {shown} of {total}; --limit shows more", "dim"))


def show_rollouts(console: Console, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
    """Print a line for each rollout, by group, and one for each failure of a whole group."""
    failures = {score.rollout: score.error for score in scores if score.error is not None}
    addresses = short_addresses(rollouts)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("rollout", overflow="fold")
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("stopped", overflow="fold")
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("remarks" if failures or any(map(_has_remarks, rollouts)) else "", overflow="fold")
    group = None
    for rollout in sorted(rollouts, key=_place):
        if group not in (None, rollout.group_key.address):
            table.add_row()
        group = rollout.group_key.address
        reward = rollout.reward
        table.add_row(
            table_cell(escape_line(addresses[rollout.id])),
            Text(short_number(reward), "bold" if reward is not None else "dim"),
            table_cell(escape_line(rollout.stop_reason), STATUS_STYLES[rollout.status]),
            Text(str(len(rollout.steps))),
            Text(f"…{escape_line(rollout.id[-_SHORT_ID:])}", "dim"),
            _remarks(rollout, failures.get(rollout.id)),
        )
    console.print()
    console.print(table)
    for score in scores:
        if score.group is not None and score.error is not None:
            place = f"{score.group.env}/{score.group.iteration}/{score.group.group}"
            print_wrapped(console, Text(escape_line(f"{place}: {score.name}: {_failure_text(score.error)}"), "red"))


def show_ledgers(console: Console, ledgers: Collection[Ledger]) -> None:
    """Print a line for each session that lost rollouts or is not closed."""
    continued = continued_sessions(ledgers)
    for ledger in ledgers:
        if not ledger.complete or not ledger.closed or ledger.lost:
            text = f"session {escape_line(ledger.session)}: {ledger_text(ledger, continued)}"
            print_wrapped(console, Text(text, "yellow"))


def _place(rollout: Rollout) -> tuple[Any, ...]:
    """Sort key that puts group 10 after group 2."""
    group = [int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", rollout.group)]
    return rollout.split, rollout.env, rollout.iteration, group, rollout.session, rollout.index, rollout.attempt


def _has_remarks(rollout: Rollout) -> bool:
    return bool(rollout.attempt or rollout.error or rollout.notes)


def _remarks(rollout: Rollout, late_failure: Failure | None) -> Text:
    remarks = [Text(f"attempt {rollout.attempt}", "yellow")] if rollout.attempt else []
    failures = filter(None, (rollout.error, late_failure))
    remarks.extend(table_cell(escape_line(_failure_text(failure)), "red") for failure in failures)
    remarks.extend(table_cell(note_text(note), "yellow") for note in rollout.notes[:_MAX_NOTES])
    if len(rollout.notes) > _MAX_NOTES:
        remarks.append(Text(f"{len(rollout.notes) - _MAX_NOTES:,} more notes", "yellow"))
    return Text("; ").join(remarks)


def _failure_text(failure: Failure) -> str:
    return f"{failure.layer.value} · {failure.type}: {failure.message}"


def ledger_text(ledger: Ledger, continued: Collection[str] = frozenset()) -> str:
    """The counts of a ledger, with losses by cause; `continued` are the sessions that others continue."""
    parts = [f"{ledger.dispatched} dispatched", f"{ledger.recorded} recorded"]
    for name, counts in asdict(ledger).items():
        if isinstance(counts, dict):
            what = name.replace("_", " ")
            parts.extend(f"{count} {what} ({escape_line(reason)})" for reason, count in counts.items())
    state = session_state(ledger, continued=continued)
    if ledger.in_flight:
        parts.append(f"{ledger.in_flight} {_IN_FLIGHT[state]}")
    if state is not SessionState.CLOSED:
        parts.append(state.value)
    return ", ".join(parts)


_IN_FLIGHT = {
    SessionState.RUNNING: "being played",
    SessionState.CLOSED: "lost when it was closed",
    SessionState.DIED: "lost when it died",
    SessionState.CONTINUED: "played again",
}


def _chart_lines(chart: Histogram, what: str, width: int) -> Iterator[Text]:
    """The bars and the labelled axis of a histogram that has at least two bins."""
    counts = [one.n for one in chart.bins]
    top = f"{max(counts):,}"
    each = max(1, min(_BAR + 1, (width - len(top) - len(what) - 4) // len(counts)))
    for row in reversed(range(_HEIGHT)):
        is_top = row == _HEIGHT - 1
        axis = Text().append(f"{top if is_top else '':>{len(top)}} {'┤' if is_top else '│'}", "dim")
        yield axis.append("".join(_piece(count, max(counts), row, each) for count in counts), "cyan")
    yield Text(f"{'':{len(top)}} └{'─' * (each * len(counts))}", "dim")
    edges = [chart.bins[0].low, *(one.high for one in chart.bins)]
    yield Text(f"{'':{len(top) + 2}}{_scale(edges, each)}  {what}", "dim")


def _piece(count: int, most: int, row: int, each: int) -> str:
    """The part of a bar in one row. A count above 0 has at least one eighth."""
    eighths = max(1, round(count / most * _HEIGHT * 8)) if count else 0
    sign = _EIGHTHS[min(8, max(0, eighths - 8 * row))]
    return sign * each if each < _BAR + 1 else sign * _BAR + " "


def _scale(edges: Sequence[float], each: int) -> str:
    """The labels of the axis: the first and the last edge, and those between them that fit."""
    whole = (len(edges) - 1) * each
    last = short_number(edges[-1])
    line = short_number(edges[0])
    for place, edge in enumerate(edges[1:-1], 1):
        text = short_number(edge)
        start = place * each - cell_len(text) // 2
        if place * 4 % (len(edges) - 1) == 0 and start > len(line) + 1 and start + len(text) < whole - len(last) - 1:
            line = f"{line:{start}}{text}"
    return f"{line:{max(len(line) + 1, whole - len(last))}}{last}"
