"""The responses about one rollout, with its scores and its group, and about one group, with the groups next to it."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rolltrace.query.group_comparison import compare_group
from rolltrace.query.reward_breakdown import reward_terms
from rolltrace.query.run import Run
from rolltrace.query.table_schema import GROUP_COLUMNS, GROUP_ORDER, group_condition
from rolltrace.trace.codec import encode_whole_score, encode_with_scores, wire_free_form
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score
from rolltrace.viewer.json_response import long_integers_as_text
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.rollout_schemas import Attempt, GroupResponse, GroupSibling, RolloutGroup, RolloutResponse

_MAX_MEMBERS = 1_000
_MAX_SCORES = 500
_ROLLOUTS = """
    select id, "index", seat, episode, policy, status, stop_reason, steps, reward, attempt, session,
        superseded, retried, collides
    from every_rollout
"""
_OWN = f"{_ROLLOUTS} where id = ?"
_KEYS = f"select distinct {GROUP_COLUMNS} from rollouts where not retried order by {GROUP_ORDER}"
_NO_GROUP: dict[str, Any] = {"size": 0, "n": 0, "mean": None, "std": None, "has_signal": False}


def rollout_response(run: OpenRun, rollout: str) -> RolloutResponse:
    """The rollout of this id."""
    record = run.run.get(rollout)
    return _GroupContext(run.run, record.group_key).response(record)


def member_responses(run: OpenRun, key: GroupKey) -> Iterator[tuple[Rollout, RolloutResponse]]:
    """Every rollout of a group, including retried attempts, with the response about it."""
    context = _GroupContext(run.run, key)
    for record in run.run.rollouts(where=group_condition(key), order_by='"index", attempt, id'):
        yield record, context.response(record)


class _GroupContext:
    """The group of a rollout: its statistics, and the other rollouts of it."""

    def __init__(self, tables: Run, key: GroupKey) -> None:
        self._tables = tables
        self._rows: list[dict[str, Any]] = []
        self._group = _NO_GROUP
        if -INT64_LIMIT <= key.iteration < INT64_LIMIT:  # the tables have no other
            is_in_group = group_condition(key)
            order = f'order by "index", session, attempt, id limit {_MAX_MEMBERS}'
            self._rows = list(tables.sql(f"{_ROLLOUTS} where {is_in_group} {order}").dicts())
            stats = f"select size, n, mean, std, has_signal from groups where {is_in_group}"
            self._group = next(tables.sql(stats).dicts(), _NO_GROUP)
        self._counted = tuple(_sibling(row) for row in self._rows if _counts(row))

    def response(self, record: Rollout) -> RolloutResponse:
        """The response about a rollout of the group."""
        own = next((row for row in self._rows if row["id"] == record.id), None)
        if own is None:  # only the first rows of a very large group are loaded
            own = next(self._tables.sql(_OWN, [record.id]).dicts(), None)
        reward, total, mean = record.reward, record.reward_score, self._group["mean"]
        is_member = own is not None and _counts(own)
        return RolloutResponse(
            rollout=msgspec.Raw(long_integers_as_text(encode_with_scores(record, all_scores=False))),
            reward=reward,
            advantage=reward - mean if is_member and reward is not None and mean is not None else None,
            terms=reward_terms(record),
            scores=_scores_json(record),
            reward_score=None if total is None else total.id,
            group=RolloutGroup(**self._group, members=self._counted),
            seats=tuple(_sibling(row) for row in _seats(record, own, self._rows)),
            attempts=tuple(_attempt(row) for row in self._rows if row["index"] == record.index),
        )


def group_response(run: OpenRun, key: GroupKey) -> GroupResponse:
    """A group, and the groups before and after it."""
    comparison = compare_group(run.run, key)
    comparison = msgspec.structs.replace(comparison, task_data=wire_free_form(comparison.task_data))
    keys = run.cached("groups", lambda: run.run.sql(_KEYS).fetchall(), lambda found: 250 * len(found))
    try:
        position = keys.index(msgspec.structs.astuple(key))
    except ValueError:
        return GroupResponse(group=comparison, previous=None, next=None)
    before = keys[position - 1] if position else None
    after = keys[position + 1] if position + 1 < len(keys) else None
    return GroupResponse(
        group=comparison,
        previous=None if before is None else GroupKey(*before),
        next=None if after is None else GroupKey(*after),
    )


def _newest_scores(record: Rollout) -> Sequence[Score]:
    """The newest scores, and always the one that gives the reward."""
    newest, total = record.scores[-_MAX_SCORES:], record.reward_score
    return newest if total is None or total in newest else [total, *newest[1:]]


def _seats(record: Rollout, own: dict[str, Any] | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All seats of the same episode, attempt and session."""
    if own is None or record.seat is None:
        return []
    same = ("episode", "attempt", "session")
    return [row for row in rows if all(row[name] == own[name] for name in same)]


def _counts(row: dict[str, Any]) -> bool:
    return not row["superseded"] and not row["retried"]


def _sibling(row: dict[str, Any]) -> GroupSibling:
    return GroupSibling(**{name: row[name] for name in GroupSibling.__struct_fields__})


def _attempt(row: dict[str, Any]) -> Attempt:
    return Attempt(**{name: row[name] for name in Attempt.__struct_fields__})


def _scores_json(record: Rollout) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(long_integers_as_text(encode_whole_score(score))) for score in _newest_scores(record))
