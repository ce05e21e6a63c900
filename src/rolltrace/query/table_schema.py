"""The tables that SQL sees: their columns, and the types of what is kept of them."""

from typing import Any

from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.trace.failure import INTERRUPTED
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer

LAYOUT_VERSION = 8
"""Changes whenever a stored column does; what was derived under another number is made anew."""

NUMBER_MAP = "MAP(VARCHAR, DOUBLE)"
COUNTS = "MAP(VARCHAR, BIGINT)"

LOCATION_COLUMNS = {"_file": "VARCHAR", "_offset": "BIGINT", "_length": "BIGINT"}
"""Where the line is that a row was made from; no table shows it."""
WRITTEN = {"_writer": "VARCHAR", "_sequence": "BIGINT"}
"""Where the line of a score stands among those of its writer; no table shows it."""

_FAILURE = {"error_layer": "VARCHAR", "error_type": "VARCHAR", "error_message": "VARCHAR"}

_HEADER = {
    "id": "VARCHAR", "run": "VARCHAR", "split": "VARCHAR", "iteration": "BIGINT", "env": "VARCHAR", "env_args": "JSON",
    "seed": "BIGINT", "task": "VARCHAR", "task_data": "JSON", "group": "VARCHAR", "index": "BIGINT",
    "attempt": "BIGINT", "episode": "BIGINT", "seat": "BIGINT", "policy": "VARCHAR", "policy_version": "VARCHAR",
    "tags": "VARCHAR[]", "session": "VARCHAR", "started_at": "TIMESTAMP", "ended_at": "TIMESTAMP",
}  # fmt: skip
_OUTCOME = {"status": "VARCHAR", "stop_reason": "VARCHAR", "stopped_by": "VARCHAR", **_FAILURE}
_REWARDS = {
    "line_reward": "DOUBLE", "reward_so_far": "DOUBLE", "unclamped_reward": "DOUBLE",
    "grade_reward": "DOUBLE", "grade_reward_data": NUMBER_MAP, "grade_extra": "JSON",
}  # fmt: skip
_COUNTED = {
    "steps": "BIGINT", "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "calls": "BIGINT",
    "metrics": NUMBER_MAP, "notes": "BIGINT",
}  # fmt: skip

_CALLS = {
    "rollout": "VARCHAR", "score": "VARCHAR", "run": "VARCHAR", "split": "VARCHAR", "iteration": "BIGINT",
    "env": "VARCHAR", "group": "VARCHAR", "position": "BIGINT", "continues_call": "BIGINT", "step": "BIGINT",
    "role": "VARCHAR", "about": "VARCHAR", "policy": "VARCHAR", "policy_version": "VARCHAR", "prompt": "JSON",
    "reply": "VARCHAR", "termination": "VARCHAR", "raw": "VARCHAR", "prompt_tokens": "BIGINT",
    "completion_tokens": "BIGINT", "seconds": "DOUBLE", **_FAILURE,
}  # fmt: skip
"""Calls are made for a rollout or for a score, and kept apart because they are read from different folders."""

STORED_COLUMNS: dict[str, dict[str, str]] = {
    "rollouts": {**_HEADER, **_OUTCOME, **_REWARDS, **_COUNTED, **LOCATION_COLUMNS},
    "steps": {
        "rollout": "VARCHAR", "run": "VARCHAR", "split": "VARCHAR", "iteration": "BIGINT", "env": "VARCHAR",
        "step": "BIGINT", "reward": "DOUBLE", "env_reward": "DOUBLE", "env_failure": "VARCHAR",
        "reward_data": NUMBER_MAP, "reward_weights": NUMBER_MAP,
        "env_state": "JSON", "extra": "JSON", "metrics": NUMBER_MAP, "logs": "JSON",
        "termination": "VARCHAR", "parse_error": "VARCHAR", "raw": "VARCHAR", "policy_version": "VARCHAR",
        "prompt_tokens": "BIGINT", "completion_tokens": "BIGINT", "seconds": "DOUBLE", "sampling": "JSON",
        "prompt_messages": "BIGINT", "response": "VARCHAR",
    },
    "messages": {
        "rollout": "VARCHAR", "run": "VARCHAR", "position": "BIGINT", "step": "BIGINT", "role": "VARCHAR",
        "content": "VARCHAR", "reasoning": "VARCHAR", "tool_calls": "JSON", "tool_call_id": "VARCHAR",
        "name": "VARCHAR", "parts": "JSON", "other": "JSON",
    },
    "calls": _CALLS,
    "score_calls": _CALLS,
    "scores": {
        "id": "VARCHAR", "run": "VARCHAR", "session": "VARCHAR", "rollout": "VARCHAR", "split": "VARCHAR",
        "iteration": "BIGINT", "env": "VARCHAR", "group": "VARCHAR", "name": "VARCHAR", "value": "DOUBLE",
        "data": "JSON", "producer": "VARCHAR", "created_at": "TIMESTAMP", **_FAILURE, **LOCATION_COLUMNS, **WRITTEN,
    },
}  # fmt: skip
"""By table, the columns that are read from lines."""

FOLDER_OF = {
    "rollouts": ROLLOUTS, "steps": ROLLOUTS, "messages": ROLLOUTS, "calls": ROLLOUTS,
    "scores": SCORES, "score_calls": SCORES,
}  # fmt: skip
"""The folder of the run that a table is made from."""

SMALL_TABLES: dict[str, dict[str, str]] = {
    "runs": {
        "id": "VARCHAR", "path": "VARCHAR", "created_at": "TIMESTAMP", "config": "JSON", "package_version": "VARCHAR",
        "code_revision": "VARCHAR", "planned": "BIGINT", "state": "VARCHAR",
    },
    "ledger": {
        "run": "VARCHAR", "session": "VARCHAR", "written_at": "TIMESTAMP", "dispatched": "BIGINT", "recorded": "BIGINT",
        "unrecordable": COUNTS, "dropped": COUNTS, "in_flight": "BIGINT", "scores_recorded": "BIGINT",
        "scores_dropped": COUNTS, "blobs_dropped": COUNTS, "redaction_failed": COUNTS, "sync_failed": COUNTS,
        "closed": "BOOLEAN", "continues": "VARCHAR[]", "job": "VARCHAR", "lost": "BIGINT",
        "maybe_lost": "BIGINT", "is_balanced": "BOOLEAN",
    },
}  # fmt: skip
"""Tables of a few rows, which are made anew for every statement that names them."""

ROLLOUT_COLUMNS = (
    *_HEADER, "seconds", *_OUTCOME, "reward", *_REWARDS, *_COUNTED, "retried", "collides",
)  # fmt: skip
"""What `rollouts` shows, in order; `every_rollout` shows `superseded` too."""

GROUP_ORDER = 'split, iteration, env, try_cast("group" as bigint) nulls last, "group"'
"""The order of groups, in SQL: their names are often numbers, which people count."""

CANCELLED = "(status = 'cancelled' and stop_reason <> 'episode_aborted')"
"""The condition that a rollout was interrupted. One that was aborted because another failed has its result."""
INTERRUPTED_SCORE = (
    f"coalesce(value is null and error_layer = '{Layer.RUNNER.value}' and error_type = '{INTERRUPTED}', false)"
)
"""The condition that a score has no result because grading was interrupted. Grading that failed has one: null."""
_INTERRUPTED_GRADING = f"""
    select rollout from scores
    where name = 'reward' and rollout in (select rollout from scores where name = 'reward' and {INTERRUPTED_SCORE})
    group by rollout having bool_and({INTERRUPTED_SCORE})
"""
"""The rollouts that have no `reward` score but those of interrupted grading; few are grouped, so that it is quick."""
FINISHED = (
    f"not superseded and not retried and not {CANCELLED} and coalesce(seat, 0) = 0 "
    f"and id not in ({_INTERRUPTED_GRADING})"
)
"""The condition that a rollout stands for an episode that counts and is finished; `totals` has it in Python.

An episode whose only `reward` scores are of interrupted grading is not finished. One without scores is: whoever
recorded it may give no reward.
"""

TABLE_INPUTS = {
    "runs": ("runs",),
    "ledger": ("ledger",),
    "scores": ("scores",),
    "rollouts": ("rollouts", "scores"),
    "every_rollout": ("rollouts", "scores"),
    "groups": ("rollouts", "scores", "groups"),
    "steps": ("rollouts", "steps"),
    "messages": ("rollouts", "messages"),
    "calls": ("rollouts", "calls", "score_calls", "scores"),
}
"""By the table that a statement names, what must be read for it."""


def sql_identifier(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_literal(value: Any) -> str:
    """Quote a value as an SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


GROUP_COLUMNS = ", ".join(map(sql_identifier, GroupKey.__struct_fields__))
"""The columns that name a group of one run."""


def group_condition(*keys: GroupKey) -> str:
    """The SQL condition that a row is of one of these groups."""
    if len(keys) == 1:  # plain comparisons, so that DuckDB can skip parts of files
        [key] = keys
        return (
            f"(split = {sql_literal(key.split)} and iteration = {key.iteration} and env = {sql_literal(key.env)} "
            f'and "group" = {sql_literal(key.group)})'
        )
    listed = ", ".join(
        f"({sql_literal(key.split)}, {key.iteration}::bigint, {sql_literal(key.env)}, {sql_literal(key.group)})"
        for key in keys
    )
    return f"({GROUP_COLUMNS}) in ({listed})"
