"""Reinforcement-learning environments for language models in which every rollout leaves a structured trace.

The names below are the public surface. Each is imported when it is first used, so that importing the package, and
starting the command line, costs next to nothing. Type checkers read `__init__.pyi` instead.
"""

from importlib import import_module
from typing import Any

from rolltrace.version import __version__

_NAMES_BY_MODULE = {
    "rolltrace.bridges.openai_client": ("record_calls",),
    "rolltrace.envs.env": ("Env", "EnvGroupBuilder", "Observation", "SingleUse", "StepResult"),
    "rolltrace.testing.check_env": ("check_env",),
    "rolltrace.envs.message_env": ("MessageEnv", "MessageEnvAdapter", "MessageStepResult"),
    "rolltrace.envs.game": ("Game", "GameResult", "GameTable"),
    "rolltrace.envs.game_group": ("GameGroup",),
    "rolltrace.envs.problem_env": ("ProblemEnv", "ProblemGroup"),
    "rolltrace.envs.prompt_only": ("PromptOnlyEnv", "PromptOnlyGroup"),
    "rolltrace.envs.tasks": ("Tasks",),
    "rolltrace.envs.tool_env": ("ToolEnv",),
    "rolltrace.envs.tools": ("Tool", "ToolResult"),
    "rolltrace.errors": ("EnvError", "GraderError", "NotGradableError", "RoleError", "RolltraceError"),
    "rolltrace.graders.answer_grader": ("AnswerGrader",),
    "rolltrace.graders.grader": ("Grader", "GroupGrade", "GroupGrader"),
    "rolltrace.graders.judge": ("Judge", "PolicyJudge"),
    "rolltrace.graders.preference_grader": ("PreferenceGrader",),
    "rolltrace.graders.rubric_grader": ("Criterion", "RubricGrader"),
    "rolltrace.jobs.play": ("play", "play_async"),
    "rolltrace.jobs.regrade": ("RegradeSummary", "regrade", "regrade_async"),
    "rolltrace.jobs.replay_report": ("ReplayReport",),
    "rolltrace.jobs.replay_run": ("replay_run",),
    "rolltrace.metrics.live_metrics": ("LiveMetrics", "log_metrics"),
    "rolltrace.metrics.trackers": ("Tracker",),
    "rolltrace.policies.roles": ("ask", "with_roles"),
    "rolltrace.policies.policy": ("Completion", "Policy", "Request"),
    "rolltrace.query.groups": ("Group", "GroupMember"),
    "rolltrace.query.run": ("Run", "open_run"),
    "rolltrace.rollout.hooks": ("Hooks", "Turn"),
    "rolltrace.rollout.limits_and_penalties": ("Limits",),
    "rolltrace.rollout.runner": ("Runner",),
    "rolltrace.rollout.memory_sink": ("MemorySink",),
    "rolltrace.rollout.strategies": ("FailFast", "KeepViable"),
    "rolltrace.store.create": ("create_run",),
    "rolltrace.store.recorder": ("RolloutRecorder", "current_rollout"),
    "rolltrace.store.recording": ("Level", "Recording"),
    "rolltrace.trace.failure": ("Failure",),
    "rolltrace.trace.message": ("Message", "Part", "Sampling", "ToolCall", "ToolSpec"),
    "rolltrace.trace.stop_reasons": ("EnvFailure", "Layer", "Status", "StopReason", "StoppedBy", "Termination"),
    "rolltrace.trace.pattern_redaction": ("redact_pattern",),
    "rolltrace.trace.rollout": ("Rollout", "RolloutTrace", "Step"),
    "rolltrace.trace.ids": ("stable_id",),
    "rolltrace.trace.score": ("Grade", "Score"),
    "rolltrace.trace.sink": ("Sink",),
    "rolltrace.trace.tokens": ("Tokens", "Usage"),
}
_MODULE_OF = {name: home for home, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rolltrace' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
