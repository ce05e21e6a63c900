"""The colours of roles, statuses and run states."""

from typing import TYPE_CHECKING

from rich.text import Text

from rolltrace.cli.screen.number_format import plural
from rolltrace.query.run_state import RunState
from rolltrace.trace.stop_reasons import Status

if TYPE_CHECKING:  # `rolltrace run` does not need DuckDB
    from rolltrace.query.run_summary import RunSummary
    from rolltrace.query.run_totals import RunTotals

ROLE_STYLES = {"system": "dim bold", "user": "bold blue", "assistant": "bold green", "tool": "bold magenta"}
STATUS_STYLES: dict[str, str] = {Status.OK: "green", Status.ERROR: "bold red", Status.CANCELLED: "yellow"}
_RUN_STATE_STYLES = {
    RunState.RUNNING: "cyan", RunState.COMPLETE: "green", RunState.INTERRUPTED: "yellow", RunState.DIED: "red",
    RunState.UNKNOWN: "red",
}  # fmt: skip
_RUN_STATE_MEANINGS = {
    RunState.DIED: "a session was not closed, and is silent",
    RunState.UNKNOWN: "there is no ledger",
}


def state_text(state: RunState) -> Text:
    """The state of a run as one word."""
    return Text(state.value, _RUN_STATE_STYLES[state])


def state_line(state: RunState, planned: int | None, finished: int) -> Text:
    """The state of a run, how many of its planned rollouts are finished, and what the state means."""
    text = state_text(state)
    if planned is not None:
        text.append(f" · {finished:,} of {planned:,} planned", "" if finished >= planned else _RUN_STATE_STYLES[state])
    if state in _RUN_STATE_MEANINGS:
        text.append(f" · {_RUN_STATE_MEANINGS[state]}", _RUN_STATE_STYLES[state])
    return text


def append_repeats(text: Text, counts: "RunTotals | RunSummary") -> None:
    """Append how many rollouts are in the run more than once, and why."""
    if counts.retried:
        text.append(f" · {plural(counts.retried, 'attempt')} tried again", "yellow")
    if counts.superseded:
        text.append(f" · {counts.superseded:,} repeated by a restart", "yellow")
    if counts.collides:
        text.append(f" · {counts.collides:,} collide: several sessions recorded the same places at once", "red")
