"""One rollout with all that stands around it, and one group with its neighbours."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from rolltrace.query.comparison import compare_group, encode_comparison
from rolltrace.query.run import Run
from rolltrace.query.tables import GROUP_ORDER, literal, quoted
from rolltrace.query.terms import reward_terms
from rolltrace.trace.codec import encode_score, encode_with_scores, json_encoder
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score
from rolltrace.viewer.answers import Attempt, GroupAnswer, GroupPlace, RolloutAnswer, RolloutGroup
from rolltrace.viewer.library import OpenRun
from rolltrace.viewer.wire import plain

_LONG = re.compile(rb"(?<![0-9.eE+])[0-9]{16,}(?![0-9.eE])")
_MOST_PLACES = 1_000
_MOST_SCORES = 500
_PLACE = ("split", "iteration", "env", "group")
_KEY = 'split = ? and iteration = ? and env = ? and "group" = ?'
_ROLLOUTS = """
    select id, "index", seat, episode, policy, status, stop_reason, steps, reward, attempt, session,
        superseded, retried, collides
    from every_rollout
"""
_PLACES = f'{_ROLLOUTS} where {_KEY} order by "index", session, attempt, id limit {_MOST_PLACES}'
_OWN = f"{_ROLLOUTS} where id = ?"
_GROUP = f"select size, n, mean, spread, has_signal from groups where {_KEY}"
_KEYS = f'select distinct split, iteration, env, "group" from rollouts where not retried order by {GROUP_ORDER}'
_NOTHING: dict[str, Any] = {"size": 0, "n": 0, "mean": None, "spread": None, "has_signal": False}


def ask_rollout(run: OpenRun, rollout: str) -> RolloutAnswer:
    """The rollout of this id, whole."""
    tables = run.numbers
    record = tables.get(rollout)
    if not _fits(record.iteration):  # the tables do not hold it
        return _alone(record)
    around = _Around(tables, [record.split, record.iteration, record.env, record.group])
    return around.tell(record)


def ask_members(run: OpenRun, split: str, iteration: int, env: str, group: str) -> Iterator[RolloutAnswer]:
    """Every rollout of a group, whole, those of attempts that were tried again included."""
    tables, place = run.numbers, [split, iteration, env, group]
    around = _Around(tables, place)
    named = " and ".join(f"{quoted(name)} = {literal(value)}" for name, value in zip(_PLACE, place, strict=True))
    for record in tables.rollouts(where=named, order_by='"index", attempt, id'):
        yield around.tell(record)


class _Around:
    """What stands around the rollouts of a group."""

    def __init__(self, tables: Run, place: list[Any]) -> None:
        self._tables = tables
        self._rows = list(tables.sql(_PLACES, place).dicts())
        self._group = next(tables.sql(_GROUP, place).dicts(), _NOTHING)
        self._counted = list(filter(_counts, self._rows))

    def tell(self, record: Rollout) -> RolloutAnswer:
        """A rollout with that."""
        own = next((row for row in self._rows if row["id"] == record.id), None)
        if own is None:  # of a very large group not all rows are there
            own = next(self._tables.sql(_OWN, [record.id]).dicts(), None)
        reward, total, mean = record.reward, record.reward_score, self._group["mean"]
        is_member = own is not None and _counts(own)
        return RolloutAnswer(
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


def ask_group(run: OpenRun, split: str, iteration: int, env: str, group: str) -> GroupAnswer:
    """A group, and the groups before and after it."""
    compared = encode_comparison(compare_group(run.numbers, split, iteration, env, group))
    keys = run.keep("groups", lambda: run.numbers.sql(_KEYS).fetchall(), lambda found: 250 * len(found))
    try:
        position = keys.index((split, iteration, env, group))
    except ValueError:
        return GroupAnswer(group=msgspec.Raw(compared), previous=None, next=None)
    before = keys[position - 1] if position else None
    after = keys[position + 1] if position + 1 < len(keys) else None
    return GroupAnswer(
        group=msgspec.Raw(compared),
        previous=None if before is None else GroupKey(*before),
        next=None if after is None else GroupKey(*after),
    )


def _alone(record: Rollout) -> RolloutAnswer:
    return RolloutAnswer(
        rollout=_raw(encode_with_scores(record, all_scores=False)), reward=record.reward, advantage=None,
        terms=reward_terms(record), scores=tuple(_raw(encode_score(score, quotes=False)) for score in _newest(record)),
        reward_score=None if record.reward_score is None else record.reward_score.id,
        group=RolloutGroup(**_NOTHING, members=()), seats=(), attempts=(),
    )  # fmt: skip


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _newest(record: Rollout) -> Sequence[Score]:
    """As many of its scores as are shown, the one that gives the reward always among them."""
    newest, total = record.scores[-_MOST_SCORES:], record.reward_score
    return newest if total is None or total in newest else [total, *newest[1:]]


def _seats(record: Rollout, own: dict[str, Any] | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The seats of the same play: of the same attempt of the same session."""
    if own is None or record.seat is None:
        return []
    same = ("episode", "attempt", "session")
    return [row for row in rows if all(row[name] == own[name] for name in same)]


def _counts(row: dict[str, Any]) -> bool:
    return not row["superseded"] and not row["retried"]


def _place(row: dict[str, Any]) -> GroupPlace:
    return GroupPlace(**{name: row[name] for name in GroupPlace.__struct_fields__})


def _attempt(row: dict[str, Any]) -> Attempt:
    return Attempt(**{name: row[name] for name in Attempt.__struct_fields__})


def _raw(line: bytes) -> msgspec.Raw:
    """A record as it is, but for integers that a browser would round: those become text."""
    if _LONG.search(line) is None:
        return msgspec.Raw(line.rstrip(b"\n"))
    return msgspec.Raw(json_encoder.encode(plain(msgspec.json.decode(line))))
