"""The state of a run, for reading."""

from rich.text import Text

from rolltrace.query.run_state import RunState

_STYLES = {
    RunState.RUNNING: "cyan", RunState.COMPLETE: "green", RunState.INTERRUPTED: "yellow", RunState.DIED: "red",
    RunState.UNKNOWN: "red",
}  # fmt: skip
_MEANINGS = {
    RunState.DIED: "a session was not closed, and is silent",
    RunState.UNKNOWN: "there is no ledger",
}


def state_text(state: RunState) -> Text:
    """The state in a word."""
    return Text(state.value, _STYLES[state])


def state_line(state: RunState, planned: int | None, finished: int) -> Text:
    """The state with how much of its plan is there, or with what it means."""
    text = state_text(state)
    if planned is not None:
        text.append(f" · {finished:,} of {planned:,} planned", "" if finished >= planned else _STYLES[state])
    if state in _MEANINGS:
        text.append(f" · {_MEANINGS[state]}", _STYLES[state])
    return text
