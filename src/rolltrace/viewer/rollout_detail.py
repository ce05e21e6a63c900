"""The responses about one rollout, with its scores and its group, and about one group, with the groups next to it."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rolltrace.errors import InputError
from rolltrace.query.group_comparison import MAX_MEMBERS, compare_group
from rolltrace.query.reward_breakdown import regrades, reward_terms
from rolltrace.query.run import Run
from rolltrace.query.table_schema import GROUP_COLUMNS, GROUP_ORDER, group_condition
from rolltrace.trace.codec import encode_whole_score, encode_with_scores, wire_free_form
from rolltrace.trace.json_numbers import INT64_LIMIT
from rolltrace.trace.rollout import Rollout
from rolltrace.trace.score import GroupKey, Score
from rolltrace.viewer.json_response import long_integers_as_text
from rolltrace.viewer.open_runs import OpenRun
from rolltrace.viewer.rollout_schemas import (
    Attempt,
    CutText,
    GroupResponse,
    GroupSibling,
    RolloutGroup,
    RolloutResponse,
    TextResponse,
)
from rolltrace.viewer.text_limit import cut_texts, text_at

MAX_SIBLINGS = 40
"""How many members of its group a rollout's response has: the nearest in the order of their indexes."""
_MAX_RELATED = 100
"""How many attempts, and how many seats, it has."""
_MAX_SCORES = 500
_MAX_TEXT = 8_000_000
"""Up to so many characters of text, the response on a rollout has all; of more, only beginnings."""
_MAX_BEGINNINGS = 2_500_000
"""How many characters these have."""
MAX_MESSAGES = 2_000
"""How many messages it has."""
_MAX_CUT = 20_000
_PIECE = 1_000_000
"""How many characters are sent at once of a text that was cut."""
_ORDER = '"index", session, attempt, id'
_ROWS = f"""
    select id, "index", seat, episode, policy, status, stop_reason, steps, reward, attempt, session, superseded,
        retried, collides, count(*) filter (not superseded and not retried) over (order by {_ORDER}) as position
    from every_rollout where
"""
_RELATED = f"""
    select members.* from members, (select * from members where id = ? limit 1) as own
    where abs(members.position - own.position) <= {MAX_SIBLINGS} or members."index" = own."index"
        or (members.episode, members.attempt, members.session) = (own.episode, own.attempt, own.session)
"""
_KEYS = f"select distinct {GROUP_COLUMNS} from rollouts where not retried order by {GROUP_ORDER}"
_NO_GROUP: dict[str, Any] = {"size": 0, "n": 0, "mean": None, "std": None, "has_signal": False}

Row = dict[str, Any]


def rollout_response(run: OpenRun, rollout: str, first: int | None = None) -> RolloutResponse:
    """The rollout of this id, with its first and its last messages, or with those from an index on."""
    record = run.run.get(rollout)
    count, half = len(record.messages), MAX_MESSAGES // 2
    if first is not None:
        loaded = [range(first, first + MAX_MESSAGES)]
    else:
        loaded = [range(count)] if count <= MAX_MESSAGES else [range(half), range(count - half, count)]
    return _GroupContext(run.run, record.group_key, rollout).response(record, loaded)


def text_response(run: OpenRun, rollout: str, path: str, offset: int) -> TextResponse:
    """A piece of a text of a rollout."""
    try:
        names = msgspec.json.decode(path, type=tuple[str | int, ...])
    except ValueError as error:
        raise InputError(f"Expected a JSON array of names and indexes for path, got {path[:100]!r}.") from error
    text = text_at(run.run.get(rollout), names)
    end = offset + _PIECE
    return TextResponse(text=text[offset:end], next=end if end < len(text) else None)


def member_responses(run: OpenRun, key: GroupKey) -> Iterator[tuple[Rollout, RolloutResponse]]:
    """Every rollout of a group, including retried attempts, with the response about it."""
    context = _GroupContext(run.run, key)
    for record in run.run.rollouts(where=group_condition(key), order_by='"index", attempt, id'):
        yield record, context.response(record)


class _GroupContext:
    """The group of a rollout: its statistics, and the rollouts of it, or only those related to `rollout`."""

    def __init__(self, tables: Run, key: GroupKey, rollout: str | None = None) -> None:
        self._rows: dict[str, Row] = {}
        self._group = _NO_GROUP
        if -INT64_LIMIT <= key.iteration < INT64_LIMIT:  # the tables have no other
            is_in_group = group_condition(key)
            related, parameters = ("from members", None) if rollout is None else (_RELATED, [rollout])
            rows = tables.sql(f"with members as ({_ROWS} {is_in_group}) {related} order by {_ORDER}", parameters)
            self._rows = {row["id"]: row for row in rows.dicts()}
            stats = f"select size, n, mean, std, has_signal from groups where {is_in_group}"
            self._group = next(tables.sql(stats).dicts(), _NO_GROUP)
        self._counted = [row for row in self._rows.values() if _counts(row)]
        self._positions = [row["position"] for row in self._counted]
        self._by_index = _by("index", rows=self._rows.values())
        self._by_episode = _by("episode", "attempt", "session", rows=self._rows.values())

    def response(self, record: Rollout, loaded: Sequence[range] | None = None) -> RolloutResponse:
        """The response about a rollout of the group, with these messages; by default with all."""
        every = range(len(record.messages))
        ranges = [every] if loaded is None else [every[some.start : some.stop] for some in loaded]
        places = [place for some in ranges for place in some]
        own = self._rows.get(record.id, {})
        reward, total, mean = record.reward, record.reward_score, self._group["mean"]
        is_member = bool(own) and _counts(own)
        messages = tuple(record.messages[place] for place in places)
        short, cut = cut_texts(msgspec.structs.replace(record, messages=messages), _MAX_TEXT, _MAX_BEGINNINGS)
        short = short.with_scores(record.scores)  # they decide the reward
        return RolloutResponse(
            rollout=msgspec.Raw(long_integers_as_text(encode_with_scores(short, all_scores=False))),
            loaded=tuple((some.start, some.stop) for some in ranges),
            cut=tuple(_at_place(one, places) for one in cut[:_MAX_CUT]),
            reward=reward,
            advantage=reward - mean if is_member and reward is not None and mean is not None else None,
            terms=reward_terms(record),
            scores=_scores_json(record),
            reward_score=None if total is None else total.id,
            regrades=regrades(record),
            group=RolloutGroup(**self._group, members=self._siblings(own)),
            seats=() if record.seat is None else self._seats(own),
            attempts=self._attempts(own),
        )

    def _siblings(self, own: Row) -> tuple[GroupSibling, ...]:
        """The nearest members."""
        place = bisect_left(self._positions, own.get("position", 0))
        first = max(0, min(place - MAX_SIBLINGS // 2, len(self._counted) - MAX_SIBLINGS))
        return tuple(map(_sibling, self._counted[first : first + MAX_SIBLINGS]))

    def _seats(self, own: Row) -> tuple[GroupSibling, ...]:
        """All seats of the same episode, attempt and session."""
        rows = self._by_episode.get((own.get("episode"), own.get("attempt"), own.get("session")), ())
        return tuple(map(_sibling, rows[:_MAX_RELATED]))

    def _attempts(self, own: Row) -> tuple[Attempt, ...]:
        """The attempts at the same index, the latest of them if there are many, and always its own."""
        if not own:
            return ()
        rows = [own] if own["index"] is None else self._by_index[own["index"],][-_MAX_RELATED:]
        return tuple(map(_attempt, rows if own in rows else [own, *rows[1:]]))


def group_response(
    run: OpenRun, key: GroupKey, *, most: int = MAX_MEMBERS, offset: int = 0, against: str | None = None
) -> GroupResponse:
    """A group with some of its members, and the groups before and after it."""
    comparison = compare_group(run.run, key, most=most, offset=offset, against=against)
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


def _at_place(cut: CutText, places: Sequence[int]) -> CutText:
    """The cut text with the index of its message in the record."""
    match cut.path:
        case ("messages", int(index), *rest):
            return msgspec.structs.replace(cut, path=("messages", places[index], *rest))
    return cut


def _newest_scores(record: Rollout) -> Sequence[Score]:
    """The newest scores, and always the one that gives the reward."""
    newest, total = record.scores[-_MAX_SCORES:], record.reward_score
    return newest if total is None or total in newest else [total, *newest[1:]]


def _by(*names: str, rows: Iterable[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by their values in these columns."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(row[name] for name in names), []).append(row)
    return grouped


def _counts(row: Row) -> bool:
    return not row["superseded"] and not row["retried"]


def _sibling(row: Row) -> GroupSibling:
    return GroupSibling(**{name: row[name] for name in GroupSibling.__struct_fields__})


def _attempt(row: Row) -> Attempt:
    return Attempt(**{name: row[name] for name in Attempt.__struct_fields__})


def _scores_json(record: Rollout) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(long_integers_as_text(encode_whole_score(score))) for score in _newest_scores(record))
