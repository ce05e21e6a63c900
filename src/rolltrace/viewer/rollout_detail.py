"""One rollout with all that stands around it, and one group with its neighbours."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rolltrace.query.group_comparison import compare_group, encode_comparison
from rolltrace.query.reward_breakdown import reward_terms
from rolltrace.query.run import Run
from rolltrace.query.table_schema import GROUP_COLUMNS, GROUP_ORDER, group_condition
from rolltrace.trace.codec import encode_score, encode_with_scores
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score
from rolltrace.viewer.json_response import encode_response
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.schemas import Attempt, GroupResponse, GroupSibling, RolloutGroup, RolloutResponse

_LONG = re.compile(rb"(?<![0-9.eE+])[0-9]{16,}(?![0-9.eE])")
_MAX_PLACES = 1_000
_MAX_SCORES = 500
_ROLLOUTS = """
    select id, "index", seat, episode, policy, status, stop_reason, steps, reward, attempt, session,
        superseded, retried, collides
    from every_rollout
"""
_OWN = f"{_ROLLOUTS} where id = ?"
_KEYS = f"select distinct {GROUP_COLUMNS} from rollouts where not retried order by {GROUP_ORDER}"
_NOTHING: dict[str, Any] = {"size": 0, "n": 0, "mean": None, "std": None, "has_signal": False}


def rollout_response(run: OpenRun, rollout: str) -> RolloutResponse:
    """The rollout of this id, whole."""
    tables = run.run
    record = tables.get(rollout)
    if not _fits(record.iteration):  # the tables do not hold it
        return _alone(record)
    return _GroupContext(tables, record.group_key).response(record)


def member_responses(run: OpenRun, key: GroupKey) -> Iterator[RolloutResponse]:
    """Every rollout of a group, whole, including retried attempts."""
    context = _GroupContext(run.run, key)
    for record in run.run.rollouts(where=group_condition(key), order_by='"index", attempt, id'):
        yield context.response(record)


class _GroupContext:
    """The group of a rollout: its statistics, and the other rollouts of it."""

    def __init__(self, tables: Run, key: GroupKey) -> None:
        self._tables = tables
        is_in_group = group_condition(key)
        order = f'order by "index", session, attempt, id limit {_MAX_PLACES}'
        self._rows = list(tables.sql(f"{_ROLLOUTS} where {is_in_group} {order}").dicts())
        stats = f"select size, n, mean, std, has_signal from groups where {is_in_group}"
        self._group = next(tables.sql(stats).dicts(), _NOTHING)
        self._counted = list(filter(_counts, self._rows))

    def response(self, record: Rollout) -> RolloutResponse:
        """A rollout with that."""
        own = next((row for row in self._rows if row["id"] == record.id), None)
        if own is None:  # of a very large group not all rows are there
            own = next(self._tables.sql(_OWN, [record.id]).dicts(), None)
        reward, total, mean = record.reward, record.reward_score, self._group["mean"]
        is_member = own is not None and _counts(own)
        return RolloutResponse(
            rollout=_raw(encode_with_scores(record, all_scores=False)),
            reward=reward,
            advantage=reward - mean if is_member and reward is not None and mean is not None else None,
            terms=reward_terms(record),
            scores=tuple(_raw(encode_score(score, quotes=False)) for score in _newest(record)),
            reward_score=None if total is None else total.id,
            group=RolloutGroup(**self._group, members=tuple(map(_place, self._counted))),
            seats=tuple(_place(row) for row in _seats(record, own, self._rows)),
            attempts=tuple(_attempt(row) for row in self._rows if row["index"] == record.index),
        )


def group_response(run: OpenRun, key: GroupKey) -> GroupResponse:
    """A group, and the groups before and after it."""
    compared = encode_comparison(compare_group(run.run, key))
    keys = run.cached("groups", lambda: run.run.sql(_KEYS).fetchall(), lambda found: 250 * len(found))
    try:
        position = keys.index(msgspec.structs.astuple(key))
    except ValueError:
        return GroupResponse(group=msgspec.Raw(compared), previous=None, next=None)
    before = keys[position - 1] if position else None
    after = keys[position + 1] if position + 1 < len(keys) else None
    return GroupResponse(
        group=msgspec.Raw(compared),
        previous=None if before is None else GroupKey(*before),
        next=None if after is None else GroupKey(*after),
    )


def _alone(record: Rollout) -> RolloutResponse:
    return RolloutResponse(
        rollout=_raw(encode_with_scores(record, all_scores=False)), reward=record.reward, advantage=None,
        terms=reward_terms(record), scores=tuple(_raw(encode_score(score, quotes=False)) for score in _newest(record)),
        reward_score=None if record.reward_score is None else record.reward_score.id,
        group=RolloutGroup(**_NOTHING, members=()), seats=(), attempts=(),
    )  # fmt: skip


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _newest(record: Rollout) -> Sequence[Score]:
    """As many of its scores as are shown, the one that gives the reward always among them."""
    newest, total = record.scores[-_MAX_SCORES:], record.reward_score
    return newest if total is None or total in newest else [total, *newest[1:]]


def _seats(record: Rollout, own: dict[str, Any] | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The seats of the same play: of the same attempt of the same session."""
    if own is None or record.seat is None:
        return []
    same = ("episode", "attempt", "session")
    return [row for row in rows if all(row[name] == own[name] for name in same)]


def _counts(row: dict[str, Any]) -> bool:
    return not row["superseded"] and not row["retried"]


def _place(row: dict[str, Any]) -> GroupSibling:
    return GroupSibling(**{name: row[name] for name in GroupSibling.__struct_fields__})


def _attempt(row: dict[str, Any]) -> Attempt:
    return Attempt(**{name: row[name] for name in Attempt.__struct_fields__})


def _raw(line: bytes) -> msgspec.Raw:
    """A record as it is, but for integers that a browser would round: those become text."""
    if _LONG.search(line) is None:
        return msgspec.Raw(line.rstrip(b"\n"))
    return msgspec.Raw(encode_response(msgspec.json.decode(line)))
