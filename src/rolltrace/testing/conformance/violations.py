"""The rules of the contract, and violations of them."""

from enum import StrEnum

import msgspec

_MAX_QUOTE_CHARS = 160


class Rule(StrEnum):
    """What an environment promises to its runner."""

    BUILDER = "builder"
    """The builder names its env and task, and says how many episodes and seats it has."""
    PICKLES = "pickles"
    """The builder pickles, and its copy plays the same."""
    MAKES_ENVS = "makes-envs"
    """`make_episode` gives one fresh `Env` per seat."""
    PLAYS = "plays"
    """No method raises in ordinary play, whatever the policy says."""
    HANGS = "hangs"
    """No call takes longer than the time limit."""
    TYPES = "types"
    """Methods are `async def` and return what the contract says."""
    NUMBERS = "numbers"
    """Rewards are finite numbers; reward data and metrics are flat maps from name to number."""
    NEW_MESSAGES = "new-messages"
    """Observations are new messages, or say that they replace the history."""
    SAME_SEED = "same-seed"
    """Two plays with the same answers give the same observations, rewards and data."""
    UNCHANGING = "unchanging"
    """Nothing that was returned changes later."""
    STEP_BEFORE_START = "step-before-start"
    """`step` before `initial_observation` gives a clear error."""
    STEP_AFTER_DONE = "step-after-done"
    """`step` after `done` gives a clear error."""
    ANY_COMPLETION = "any-completion"
    """An env with `takes_any_completion` takes cut, malformed and empty completions."""
    OBSERVE = "observe"
    """`observe` gives None, or an observation with the messages that were put in."""
    CLOSE = "close"
    """`close` can be called twice, also on an env that was never started."""
    CLEANUP = "cleanup"
    """`cleanup` can be called twice."""
    CANCELLATION = "cancellation"
    """A cancellation at any await comes out as `CancelledError`."""
    NOTHING_RUNNING = "nothing-running"
    """After `close`, and after `cleanup`, no task, thread or child process is left running."""
    BLOCKING = "blocking"
    """No method blocks the event loop for long."""
    ROLES = "roles"
    """An env or a grader that asks another role awaits the answer before its rollout or grading ends."""
    GRADER = "grader"
    """A grader pickles, and grades each rollout with a finite number, the same each time, without changing it."""
    GRADE_GROUP = "grade-group"
    """`grade_group` gives finite grades by rollout id, the same for every order of the rollouts."""
    ANSWERS = "answers"
    """The answers of the check's policies can be used. It is about the check, not about the environment."""


class Violation(msgspec.Struct, frozen=True):
    """One way in which an environment does not conform."""

    rule: str
    """One of `Rule`."""
    message: str
    """What was seen, and where."""
    fix: str
    """How to comply."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}; {self.fix}."


def short_repr(value: object) -> str:
    """The `repr` of a value on one short line, even if it raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # noqa: BLE001 - a foreign repr may do anything
        text = f"<its repr raises {type(error).__name__}>"
    return text if len(text) <= _MAX_QUOTE_CHARS else f"{text[:_MAX_QUOTE_CHARS]}…"
