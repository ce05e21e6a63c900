"""The tables that SQL sees. Their columns are derived from the records."""

import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from rolltrace.store.layout import LEDGER, ROLLOUTS, SCORES, RunInfo
from rolltrace.store.ledger import Ledger
from rolltrace.trace.call import Call
from rolltrace.trace.failure import INTERRUPTED
from rolltrace.trace.field_types import Field, FieldKind, field_by_name, record_fields
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Rollout, Step
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Layer

ROW_VERSION = 16
"""Changes if rows are made in another way from the same records; what was derived under another number is not used."""

NUMBER_MAP = "MAP(VARCHAR, DOUBLE)"
COUNTS = "MAP(VARCHAR, BIGINT)"

LOCATION_COLUMNS = {"_file": "VARCHAR", "_offset": "BIGINT", "_length": "BIGINT"}
"""Where the line is that a row was made from; no table shows it."""
WRITTEN = {"_writer": "VARCHAR", "_sequence": "BIGINT"}
"""Where the line of a score is among those of its writer; no table shows it."""

_SQL_TYPES = {
    FieldKind.NAME: "VARCHAR",
    FieldKind.LABEL: "VARCHAR",
    FieldKind.TEXT: "VARCHAR",
    FieldKind.NAME_OR_INTEGER: "VARCHAR",
    FieldKind.CHOICE: "VARCHAR",
    FieldKind.INTEGER: "BIGINT",
    FieldKind.BOOLEAN: "BOOLEAN",
    FieldKind.NUMBER: "DOUBLE",
    FieldKind.DURATION: "DOUBLE",
    FieldKind.NUMBERS: NUMBER_MAP,
    FieldKind.COUNTS: COUNTS,
    FieldKind.TIMESTAMP: "TIMESTAMP",
}
"""By the kind of a field, the type of its column; other kinds are JSON."""


class Flattened(NamedTuple):
    """A field that is a record, shown as one column for each of its fields."""

    prefix: str
    """What the names of the columns begin with."""
    leave_out: tuple[str, ...] = ()


class RecordColumns(msgspec.Struct, frozen=True):
    """Which columns show the fields of a record; a field that is not mentioned here is a column of its own name."""

    record: type[msgspec.Struct]
    leave_out: Collection[str] = ()
    """Fields that the table shows in another way, or not at all."""
    counted: tuple[str, ...] = ()
    """Fields of which the column is the number of records."""
    flattened: Mapping[str, Flattened] = {}

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that are shown."""
        return tuple(field for field in record_fields(self.record) if field.name not in self.leave_out)

    def parts(self, field: Field) -> dict[str, Field]:
        """By column, the fields of a flattened field."""
        flattened = self.flattened[field.name]
        assert field.record is not None  # noqa: S101 - only records are flattened
        shown = [part for part in record_fields(field.record) if part.name not in flattened.leave_out]
        return {f"{flattened.prefix}{part.name}": part for part in shown}

    @property
    def sql_types(self) -> dict[str, str]:
        """The columns and their types, in the order of the fields."""
        types: dict[str, str] = {}
        for field in self.fields:
            if field.name in self.flattened:
                types |= {column: sql_type(part) for column, part in self.parts(field).items()}
            else:
                types[field.name] = "BIGINT" if field.name in self.counted else sql_type(field)
        return types


def sql_type(field: Field) -> str:
    """The type of the column that shows a field."""
    plain = _SQL_TYPES.get(field.kind, "JSON")
    return plain if field.depth == 0 else f"{plain}[]" if field.kind is FieldKind.NAME else "JSON"


_FAILURE = Flattened("error_", leave_out=("traceback",))

ROLLOUT_FIELDS = RecordColumns(
    Rollout,
    leave_out=(
        "v", "messages", "tools", "sampling", "final", "pending_prompt", "pending_raw", "ended_before_first_turn",
    ),
    counted=("steps", "calls", "notes"),
    flattened={"error": _FAILURE, "grade": Flattened("grade_")},
)  # fmt: skip
STEP_FIELDS = RecordColumns(
    Step, leave_out=("prompt", "response", "tools", "sampling", "tokens"), flattened={"usage": Flattened("")}
)
MESSAGE_FIELDS = RecordColumns(Message)
CALL_FIELDS = RecordColumns(Call, leave_out=("reply", "quotes"), flattened={"error": _FAILURE, "usage": Flattened("")})
SCORE_FIELDS = RecordColumns(Score, leave_out=("v", "calls"), flattened={"error": _FAILURE, "group": Flattened("")})
LEDGER_FIELDS = RecordColumns(Ledger, leave_out=("v",))
RUN_FIELDS = RecordColumns(RunInfo, leave_out=("v", "planned"))


def _columns_of(record: type[msgspec.Struct], names: Iterable[str]) -> dict[str, str]:
    return {name: sql_type(field_by_name(record)[name]) for name in names}


STEP_CONTEXT = ("run", "split", "iteration", "env")
"""The fields of a rollout that its steps and calls show too, so that most questions need no join."""
_GROUP_FIELDS = GroupKey.__struct_fields__
_TOKEN_SUMS = {"prompt_tokens": "BIGINT", "completion_tokens": "BIGINT"}
_OVER_STEPS = {**_TOKEN_SUMS, "step_reward_data": NUMBER_MAP, "step_metrics": NUMBER_MAP}
"""What a rollout's columns say about its steps, so that most questions need no join."""

_CALLS = {
    "rollout": "VARCHAR", "score": "VARCHAR", **_columns_of(Rollout, ("run", *_GROUP_FIELDS)), "position": "BIGINT",
    **CALL_FIELDS.sql_types, "reply": "VARCHAR",
}  # fmt: skip
"""Calls are made for a rollout or for a score, and stored apart because they are read from different folders."""

MESSAGE_COLUMNS = {
    "rollout": "VARCHAR", "run": "VARCHAR", "position": "BIGINT", "step": "BIGINT", **MESSAGE_FIELDS.sql_types,
}  # fmt: skip
"""Messages that are responses are stored with their steps, in columns of these names after `_`; their text is
`response`. The others have a file of their own."""

STORED_COLUMNS: dict[str, dict[str, str]] = {
    "rollouts": {**ROLLOUT_FIELDS.sql_types, **_OVER_STEPS, **LOCATION_COLUMNS},
    "steps": {
        "rollout": "VARCHAR", **_columns_of(Rollout, STEP_CONTEXT), **STEP_FIELDS.sql_types, "sampling": "JSON",
        "prompt_messages": "BIGINT", "response": "VARCHAR", "_position": "BIGINT",
        **{f"_{name}": kind for name, kind in MESSAGE_FIELDS.sql_types.items() if name != "content"},
    },
    "other_messages": MESSAGE_COLUMNS,
    "calls": _CALLS,
    "score_calls": _CALLS,
    "scores": {**SCORE_FIELDS.sql_types, **LOCATION_COLUMNS, **WRITTEN},
}  # fmt: skip
"""By table, the columns that are read from lines."""

LAYOUT_VERSION = zlib.crc32(f"{ROW_VERSION} {STORED_COLUMNS}".encode())
"""Changes with every column, so that files that were derived with other columns are not used."""

TEXTS = "texts"
TABLES_OF_KIND = {
    ROLLOUTS: ("rollouts",),
    TEXTS: ("steps", "other_messages", "calls"),
    SCORES: ("scores", "score_calls"),
}
"""By kind of part, its tables. Those of texts take most of the time, and few statements need them."""
KIND_OF_TABLE = {table: kind for kind, tables in TABLES_OF_KIND.items() for table in tables}
KINDS_OF_FOLDER = {ROLLOUTS: (ROLLOUTS, TEXTS), SCORES: (SCORES,)}
"""By folder of a run, the kinds of parts that are made from its lines."""
FOLDER_OF_KIND = {kind: folder for folder, kinds in KINDS_OF_FOLDER.items() for kind in kinds}

SMALL_TABLES: dict[str, dict[str, str]] = {
    "runs": {**RUN_FIELDS.sql_types, "path": "VARCHAR", "planned": "BIGINT", "state": "VARCHAR"},
    "ledger": {
        **LEDGER_FIELDS.sql_types, "lost": "BIGINT", "maybe_lost": "BIGINT", "is_balanced": "BOOLEAN",
    },
}  # fmt: skip
"""Tables of a few rows, which are built for every statement that names them."""


def _rollout_columns() -> tuple[str, ...]:
    names = list(ROLLOUT_FIELDS.sql_types)
    names.insert(names.index("status"), "seconds")
    names.insert(names.index("line_reward"), "reward")
    after_steps = names.index("steps") + 1
    return (*names[:after_steps], *_OVER_STEPS, *names[after_steps:], "retried", "collides")


ROLLOUT_COLUMNS = _rollout_columns()
"""What `rollouts` shows, in order; `every_rollout` shows `superseded` too."""

_FLAGS = {"retried": "BOOLEAN", "collides": "BOOLEAN"}
ROLLOUT_TYPES = {
    name: {**STORED_COLUMNS["rollouts"], **_FLAGS, "seconds": "DOUBLE", "reward": "DOUBLE"}[name]
    for name in ROLLOUT_COLUMNS
}  # fmt: skip
"""The types of these columns."""
_GROUP_COLUMNS = {
    "run": "VARCHAR", **_columns_of(Rollout, (*_GROUP_FIELDS, "task")), "size": "BIGINT", "n": "BIGINT",
    "mean": "DOUBLE", "std": "DOUBLE", "min": "DOUBLE", "max": "DOUBLE", "has_signal": "BOOLEAN",
    "collides": "BOOLEAN",
    "members": 'STRUCT(id VARCHAR, "index" BIGINT, reward DOUBLE, advantage DOUBLE)[]',
}  # fmt: skip


def table_columns(table: str) -> dict[str, str]:
    """The columns that a table shows, and their types; of `every_rollout`, those that `rollouts` lacks."""
    if table == "rollouts":
        return ROLLOUT_TYPES
    if table == "every_rollout":
        return {"superseded": "BOOLEAN"}
    if table == "groups":
        return _GROUP_COLUMNS
    if table == "messages":
        return MESSAGE_COLUMNS
    columns = STORED_COLUMNS.get(table) or SMALL_TABLES[table]
    return {name: kind for name, kind in columns.items() if not name.startswith("_")}


TABLE_FIELDS = {
    "rollouts": ROLLOUT_FIELDS, "steps": STEP_FIELDS, "messages": MESSAGE_FIELDS, "calls": CALL_FIELDS,
    "scores": SCORE_FIELDS, "runs": RUN_FIELDS, "ledger": LEDGER_FIELDS,
}  # fmt: skip
"""By table, the record whose fields it shows."""

_RUN_ID = {"run": "The run's id."}
_NO_JOIN = {"split": "As in `rollouts`, so that most questions need no join."}
COLUMN_DOCS: dict[str, dict[str, str]] = {
    "rollouts": {
        **_RUN_ID,
        "policy_version": "The version that the first prompt was for, as text.",
        "seconds": "How long it took; 0 if the clock was set back meanwhile.",
        "reward": (
            "The latest score named `reward` (see [the format](format.md#rewards)), null included, else `line_reward`."
        ),
        "stop_reason": "Why it ended: [a word of the format](format.md#words), or one that the environment named.",
        "grade_reward": "The reward from the rollout's own grader.",
        "steps": "The number of steps.",
        "prompt_tokens": "The sum over the steps that state it.",
        "completion_tokens": "The sum over the steps that state it.",
        "step_reward_data": "By name, the sum over the steps.",
        "step_metrics": "By name, the mean over the steps that state it, unless `metrics` has a number of the rollout.",
        "calls": "The number of model calls that are not the policy's turns.",
        "notes": "The number of notes about the record itself.",
        "retried": "Whether the same session, or its job, has a later attempt.",
        "collides": "Whether another session recorded the same place, and both count.",
    },
    "every_rollout": {
        "superseded": "Whether a later session recorded the same place; such rows are in no other table.",
    },
    "steps": {
        "rollout": "The rollout's id.",
        **_RUN_ID,
        **_NO_JOIN,
        "policy_version": "The version that answered, as text.",
        "sampling": "The settings that were sampled with.",
        "prompt_messages": "The number of messages that the policy was sent.",
        "response": "The text of the response.",
    },
    "messages": {
        "rollout": "The rollout's id.",
        **_RUN_ID,
        "position": "Its index among the rollout's messages, from 0.",
        "step": "The step whose response it is; null for messages that the policy did not write.",
    },
    "calls": {
        "rollout": "The rollout's id; null if it is about a group.",
        "score": "The id of the score that it was made for; null if the rollout's own line has it.",
        **_RUN_ID,
        "split": "As in `rollouts`, so that most questions need no join; null for a score about a rollout.",
        "position": "Its index among the calls of the rollout or the score, from 0.",
        "prompt": (
            "The messages that were sent, with quoted text put back; where it continues another call, the new ones."
        ),
        "policy_version": "As text.",
        "reply": "The text of the reply; null if there was none.",
    },
    "scores": {
        **_RUN_ID,
        "split": "Of the group it is about.",
        "iteration": "Of the group it is about.",
        "env": "Of the group it is about.",
        "group": "Of the group it is about.",
    },
    "groups": {
        **_RUN_ID,
        "task": "Of the first member.",
        "size": "The number of members.",
        "n": "The number of members that have a reward.",
        "mean": "Of the rewards.",
        "std": "Of the rewards, over `n`.",
        "has_signal": "Whether two members have different rewards.",
        "collides": "Whether members of several sessions have the same `index`.",
        "members": "In the order of `index`, those without one last; the advantage is reward − mean.",
    },
    "runs": {
        "id": "`run` of the other tables.",
        "path": "Where it is.",
        "planned": "How many rollouts (of games: episodes) it is to have; null if that is not known.",
        "state": (
            "[`running`, `complete`, `interrupted`, `died`](guides/look-at-runs.md#the-state-of-a-run), or `unknown` "
            "if there is no ledger."
        ),
    },
    "ledger": {
        **_RUN_ID,
        "lost": (
            "Unrecordable and dropped, and what was in flight when it was closed, unless another session continues it."
        ),
        "maybe_lost": (
            "In flight in a session that was not closed: being played or, if its writer died, lost; 0 if another "
            "session continues it."
        ),
        "is_balanced": "Whether every rollout is accounted for.",
    },
}
"""By table, what columns mean that are not fields of its record, or mean something else."""

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
"""The condition that a rollout stands for an episode that counts and is finished; `run_totals` has it in Python.

An episode whose only `reward` scores are of interrupted grading is not finished. One without scores is: a
loop may record rollouts without rewards.
"""

TABLE_INPUTS = {
    "runs": ("runs",),
    "ledger": ("ledger",),
    "scores": ("scores",),
    "rollouts": ("rollouts", "scores"),
    "every_rollout": ("rollouts", "scores"),
    "groups": ("rollouts", "scores"),
    "steps": ("rollouts", "steps"),
    "messages": ("rollouts", "steps", "other_messages"),
    "calls": ("rollouts", "calls", "score_calls", "scores"),
}
"""By the table that a statement names, what must be read for it."""


def folders_of(tables: Collection[str]) -> set[str]:
    """The folders of a run that these inputs of tables are read from."""
    folders = {FOLDER_OF_KIND[KIND_OF_TABLE[table]] for table in tables if table in KIND_OF_TABLE}
    return folders | {LEDGER} if any(table in SMALL_TABLES for table in tables) else folders


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
