"""The words for how a completion, a step and a rollout can end."""

from enum import StrEnum


class Termination(StrEnum):
    """How a completion ended."""

    STOP_SEQUENCE = "stop_sequence"
    EOS = "eos"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    """Cut by the token limit."""
    MALFORMED = "malformed"
    """Broken framing: no end of turn, or unreadable."""

    @property
    def well_formed(self) -> bool:
        """Whether the policy ended its turn by itself, readably."""
        return self in _WELL_FORMED


_WELL_FORMED = frozenset({Termination.STOP_SEQUENCE, Termination.EOS, Termination.TOOL_CALLS})

FINISH_REASONS = {
    "stop": Termination.EOS,
    "eos": Termination.EOS,
    "eos_token": Termination.EOS,
    "end_turn": Termination.EOS,
    "stop_sequence": Termination.STOP_SEQUENCE,
    "length": Termination.LENGTH,
    "max_tokens": Termination.LENGTH,
    "tool_calls": Termination.TOOL_CALLS,
    "tool_use": Termination.TOOL_CALLS,
    "function_call": Termination.TOOL_CALLS,
}
"""The `finish_reason` of servers, as terminations; others are not ends that a model gives."""


class EnvFailure(StrEnum):
    """Why an env did not finish a turn of the policy."""

    RAISED = "raised"
    """It raised an exception, or returned what is not a result; the rollout's `error` says more."""
    TIMED_OUT = "timed_out"
    """The rollout's wall clock ran out while the env was at work."""
    CANCELLED = "cancelled"
    """The rollout was cancelled while the env was at work."""
    ABORTED = "aborted"
    """Another seat, or with FailFast another episode, failed or was stopped while the env was at work."""


class Status(StrEnum):
    """Whether a rollout has a reward that means something."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"


class StopReason(StrEnum):
    """Why a rollout ended; an environment may name others of its own."""

    COMPLETED = "completed"
    TOOL_STOPPED = "tool_stopped"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOKENS = "max_tokens"
    MAX_TOTAL_TOKENS = "max_total_tokens"
    MAX_SAMPLED_TOKENS = "max_sampled_tokens"
    PARSE_ERROR = "parse_error"
    CONTEXT_OVERFLOW = "context_overflow"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"
    EPISODE_ABORTED = "episode_aborted"
    """Another seat of the episode failed or was stopped; with FailFast, another episode of the group failed."""


class StoppedBy(StrEnum):
    """Who ended a rollout."""

    ENV = "env"
    RUNNER = "runner"


class Layer(StrEnum):
    """Which part of the system a failure came from."""

    POLICY = "policy"
    ENV = "env"
    GRADER = "grader"
    TOOL = "tool"
    LIMIT = "limit"
    HOOK = "hook"
    RUNNER = "runner"
    CALLER = "caller"
    """A loop that is not ours, which records what it plays."""
