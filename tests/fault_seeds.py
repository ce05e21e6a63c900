"""Faults of recorders as they look in the records of a run; each function returns the rollouts that must be found."""

import statistics
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seeded_runs import SeededRun

Record = dict[str, Any]


def prompts_of_the_end(run: "SeededRun") -> list[str]:
    """Each step has the whole conversation as its prompt."""

    def alias(record: Record) -> None:
        for step in record["steps"]:
            step["prompt"] = [[0, len(record["messages"])]]

    several = [record for record in run.records(env="guess_number") if len(record["steps"]) > 1]
    return run.change(several[:3], alias)


def failures_lost(run: "SeededRun") -> list[str]:
    """Rollouts that did not succeed have no line."""
    return _remove(run, lambda record: record["reward"] == 0)


def burst_loss_in_records(run: "SeededRun") -> list[str]:
    """Every third line is missing."""
    ids = {record["id"] for record in run.records()[::3]}
    return _remove(run, lambda record: record["id"] in ids)


def overwritten_records(run: "SeededRun") -> list[str]:
    """The first half of the lines is gone."""
    records = run.records()
    ids = {record["id"] for record in records[: len(records) // 2]}
    return _remove(run, lambda record: record["id"] in ids)


def _remove(run: "SeededRun", which: Any) -> list[str]:
    gone = {record["id"] for record in run.records() if which(record)}
    assert gone, "no record was removed"
    for file in (run.path / "rollouts").glob("*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if not any(one.encode() in line for one in gone)))
    return []  # rollouts without a line cannot be named


def formatted_terms(run: "SeededRun") -> list[str]:
    """A term of the reward is a formatted text, which the recorder moved to `extra`."""

    def format_term(record: Record) -> None:
        step = record["steps"][-1]
        step["extra"] = {"reward_data.correct": f"{step['reward_data'].pop('correct'):.3f}"}

    return run.change(run.records(env="arithmetic")[:5], format_term)


def formatted_rewards(run: "SeededRun") -> list[str]:
    """The reward is a formatted text, which the type of the record refuses."""
    run.change(run.records()[:2], lambda record: record.update(reward=f"{record['reward'] or 0.0:.3f}"))
    return []


def bare_nan_in_records(run: "SeededRun") -> list[str]:
    """The reward is `NaN`, without quotes."""
    run.change(run.records()[:2], lambda record: record.update(reward=float("nan")))
    return []


def null_rewards(run: "SeededRun") -> list[str]:
    """The reward of a rollout that is ok is null."""
    return run.change(run.records(env="arithmetic", status="ok")[:3], lambda record: record.update(reward=None))


def one_hot_terms(run: "SeededRun") -> list[str]:
    """A term of the reward is recorded only if it is true."""

    def keep_true(record: Record) -> None:
        data = record["steps"][-1]["reward_data"]
        record["steps"][-1]["reward_data"] = {name: value for name, value in data.items() if value}

    run.change(run.records(env="calculator"), keep_true)
    return []


def advantages_after_a_filter(run: "SeededRun") -> list[str]:
    """The first member of a group is left out, and the others' advantages are at their list positions."""
    rows = sorted(run.records(env="arithmetic"), key=lambda row: (row["iteration"], row["group"], row["index"]))
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row["iteration"], row["group"]))]
    values = {}
    for group in groups:
        mean = statistics.mean(row["reward"] for row in group)
        values |= {row["id"]: row["reward"] - mean for row in group}
    members = next(group for group in groups if group[0]["reward"] != group[1]["reward"])
    rest = [row["reward"] for row in members[1:]]
    values |= {row["id"]: reward - statistics.mean(rest) for row, reward in zip(members, rest, strict=False)}
    run.score(values, "advantage")
    return [row["id"] for row in members]


def calls_not_recorded(run: "SeededRun") -> list[str]:
    """Messages have no `tool_calls`, though their results are there."""

    def remove_calls(record: Record) -> None:
        for message in record["messages"]:
            message.pop("tool_calls", None)

    calls = [record for record in run.records() if any(message.get("tool_call_id") for message in record["messages"])]
    return run.change(calls[:3], remove_calls)
