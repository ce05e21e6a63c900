"""A run as a table of its rollouts."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolltrace.cli.hints import command
from rolltrace.cli.screen.chart import show_chart
from rolltrace.cli.screen.console import table_cell, wrap_lines
from rolltrace.cli.screen.number_format import short_number, to_one_line
from rolltrace.cli.screen.run_states import state_line
from rolltrace.cli.screen.styles import STATUS_STYLES
from rolltrace.cli.screen.transcript import note_text
from rolltrace.query.address import short_addresses
from rolltrace.query.histogram import Histogram
from rolltrace.query.run_state import RunState, SessionState, continued_sessions, session_state
from rolltrace.query.run_totals import RunTotals
from rolltrace.store.layout import RUN_FILE, RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.terminal_text import escape_line
from rolltrace.trace.rollout import Failure, Rollout
from rolltrace.trace.score import Score

_SHORT_ID = 8
_MAX_NOTES = 3


def show_header(console: Console, path: str, info: RunInfo) -> None:
    """Print what the run is."""
    console.print(Text(escape_line(path), "bold"), soft_wrap=True)
    facts = [
        escape_line(info.id),
        f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC",
        f"rolltrace {escape_line(info.package_version)}",
    ]
    if info.code_revision:
        facts.append(f"code {escape_line(info.code_revision)[:12]}")
    _print(console, Text(" · ".join(facts), "dim"))
    maps = [escape_line(str(name)) for name, value in info.config.items() if isinstance(value, dict) and value]
    told = [
        f"{escape_line(str(name))}={to_one_line(value)}"
        for name, value in info.config.items()
        if value is not None and not isinstance(value, dict)
    ]
    if maps:
        told.append(f"({', '.join(maps)}: see {RUN_FILE})")
    if told:
        _print(console, Text("  ".join(told), "dim"))


def show_totals(console: Console, totals: RunTotals, state: RunState, planned: int | None) -> None:
    """Print the run's state, how many rollouts there are, what they were rewarded and how they ended."""
    known = totals.mean_reward is not None
    mean = f"mean reward {short_number(totals.mean_reward)} (n = {totals.rewarded})" if known else "no rewards"
    line = Text(f"{_count(totals.rollouts, 'rollout')} in {_count(totals.groups, 'group')} · {mean}", "bold")
    reasons = ", ".join(f"{table_cell(escape_line(name)).plain} {count}" for name, count in totals.stop_reasons.items())
    line.append(f" · {reasons}" if reasons else "", "not bold")
    if totals.retried:
        line.append(f" · {_count(totals.retried, 'attempt')} tried again", "yellow")
    if totals.superseded:
        line.append(f" · {totals.superseded} repeated by a restart", "yellow")
    if totals.collides:
        line.append(f" · {totals.collides} collide: several sessions recorded the same places at once", "red")
    console.print()
    _print(console, state_line(state, planned, totals.finished))
    _print(console, line)


def show_rewards(console: Console, rewards: Histogram) -> None:
    """Print how the rewards are distributed, and how many are in no bar."""
    if len(rewards.bins) < 2:
        return
    console.print()
    show_chart(console, rewards, "reward")
    left_out = {"without a reward": rewards.missing, "not finite": rewards.non_finite}
    told = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
    if told:
        _print(console, Text(f"not drawn: {told}", "yellow"))


def show_next_commands(console: Console, path: str, group: str) -> None:
    """Say, on a terminal, what to type to see a group, or one of its rollouts."""
    if console.is_terminal:
        console.print()
        told = f"{command('show', path, group)} shows a group; with /INDEX it shows a rollout"
        _print(console, Text(told, "dim"))


def show_omitted_count(console: Console, shown: int, total: int) -> None:
    """Print how many rollouts are not in the table, where some are not."""
    if total > shown:
        _print(console, Text(f"… the first {shown} of {total}; --limit shows more", "dim"))


def show_rollouts(console: Console, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> None:
    """Print a line for each rollout, group by group, and one for each failure that a whole group had."""
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
            _print(console, Text(escape_line(f"{place}: {score.name}: {_failure_text(score.error)}"), "red"))


def show_ledgers(console: Console, ledgers: Collection[Ledger]) -> None:
    """Print what was lost, and what may be; a session that is closed and lost nothing gets no line."""
    continued = continued_sessions(ledgers)
    for ledger in ledgers:
        if not ledger.complete or not ledger.closed or ledger.lost:
            text = f"session {escape_line(ledger.session)}: {ledger_text(ledger, continued)}"
            _print(console, Text(text, "yellow"))


def _place(rollout: Rollout) -> tuple[Any, ...]:
    """Sorts as people count: group 10 after group 2."""
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
    """What became of everything, with what was lost by reason; `continued` are the sessions that others continue."""
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


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _print(console: Console, text: Text) -> None:
    for line in wrap_lines(text, console, ""):
        console.print(line, soft_wrap=True)
