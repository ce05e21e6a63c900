"""What counts as a clear error where an environment is misused."""

from typing import Any

from rolltrace.envs.conformance.caller import CallOutcome
from rolltrace.envs.conformance.report import Rule, ViolationLog, short_repr
from rolltrace.errors import RolltraceError

_CLEAR = (RolltraceError, RuntimeError, ValueError)
_UNCLEAR = (NotImplementedError, RecursionError)
_WHEN = {
    Rule.STEP_BEFORE_START: ("before `initial_observation`", "the environment has not been started"),
    Rule.STEP_AFTER_DONE: ("after `done`", "the environment is already done"),
}


def check_misuse(report: ViolationLog, rule: Rule, env: Any, outcome: CallOutcome) -> None:
    """Report a misused `step` that answered, or that failed by accident."""
    error = outcome.error
    if outcome.hung:
        return
    if isinstance(error, _CLEAR) and not isinstance(error, _UNCLEAR) and str(error).strip():
        return
    when, reason = _WHEN[rule]
    what = f"answered {short_repr(outcome.value)}" if outcome.returned else f"raised {short_repr(error)}"
    report.add(
        rule,
        f"`{type(env).__name__}.step` {when} {what}",
        "call `require_active()` of a `SingleUse` at the start of `step`, or raise an `EnvError` there, saying that "
        f"{reason}",
    )
