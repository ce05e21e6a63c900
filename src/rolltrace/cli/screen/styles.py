"""The colours of roles, statuses and run states."""

from rich.text import Text

from rolltrace.query.run_state import RunState
from rolltrace.trace.stop_reasons import Status

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
