"""Which late score counts: one rule, in Python over lines and as SQL over the table of scores.

What one writer wrote is in the order of its lines, by segment and offset, even if its clock was set back: a score
counts as no earlier than those of its name and rollout that its writer wrote before it. Between writers the time
decides; if that is the same, the session's id does, then the name of the file.
"""

from collections.abc import Iterable
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from rolltrace.query.table_schema import sql_literal
from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import SegmentName


class ScoreLike(Protocol):
    """The fields of a score that the rule needs."""

    @property
    def rollout(self) -> str | None:
        """The rollout it is about."""
        ...

    @property
    def session(self) -> str:
        """The session that wrote it."""
        ...

    @property
    def name(self) -> str:
        """What it measures."""
        ...

    @property
    def value(self) -> Any:
        """The number, or None."""
        ...

    @property
    def created_at(self) -> datetime:
        """When it was written, by the clock of the writer."""
        ...


AnyScore = TypeVar("AnyScore", bound=ScoreLike)


class WritePosition(NamedTuple):
    """The position of a score among those of its writer, by segment and offset."""

    writer: str
    sequence: int
    offset: int


def write_position(location: LineLocation) -> WritePosition:
    """The position of a line among those of its writer."""
    name = location.file.partition("/")[2]
    segment = SegmentName.parse(name) or SegmentName(name, -1)
    return WritePosition(segment.session, segment.sequence, location.offset)


def in_score_order(scores: Iterable[tuple[LineLocation, AnyScore]]) -> list[AnyScore]:
    """The scores about one rollout, the latest last; of each name the last one counts."""
    lines = sorted(((write_position(location), score) for location, score in scores), key=itemgetter(0))
    times: dict[tuple[str, str, str], datetime] = {}
    keyed = []
    for position, score in lines:
        stream = (score.name, score.session, position.writer)
        time = times[stream] = max(score.created_at, times.get(stream, score.created_at))
        keyed.append(((time, score.session, position), score))
    return [score for _, score in sorted(keyed, key=itemgetter(0))]


def latest_rewards(scores: Iterable[tuple[LineLocation, AnyScore]]) -> dict[str, Any]:
    """By rollout, the value of the latest score named `reward`."""
    by_rollout: dict[str, list[tuple[LineLocation, AnyScore]]] = {}
    for location, score in scores:
        if score.name == "reward" and score.rollout is not None:
            by_rollout.setdefault(score.rollout, []).append((location, score))
    return {rollout: in_score_order(lines)[-1].value for rollout, lines in by_rollout.items()}


REWARD_ORDER_TYPE = 'STRUCT(moment TIMESTAMP, session VARCHAR, writer VARCHAR, sequence BIGINT, "offset" BIGINT)'
"""The column `reward_order` of stored rollouts: which score gave the reward; null if the line did."""


def select_latest_scores(scores: str, name: str, value: str = "value", *, stored_rollouts: str | None = None) -> str:
    """SQL: by rollout, the `value` of the latest score of a name, and its `reward_order`.

    `scores` is a table of scores, and `value` an expression over its columns. `stored_rollouts` is a table of rollouts
    that have the rewards of earlier scores: the score that gave a reward there is compared with those that came since.
    """
    columns = f"rollout, session, _writer, _sequence, _offset, created_at, {value} as value"
    source = f"select {columns} from {scores} where name = {sql_literal(name)} and rollout is not null"
    if stored_rollouts is not None:
        source = f"""
            with new as ({source}) from new union all
            select id, o.session, o.writer, o.sequence, o."offset", o.moment, reward
            from (select id, reward, reward_order as o from {stored_rollouts} where reward_order is not null)
            where id in (select rollout from new)
        """
    return f"""
        with last_of_writers as (
            select rollout, session, _writer as writer, max(created_at) as moment,
                arg_max({{'value': value, 'sequence': _sequence, 'offset': _offset}},
                        {{'sequence': _sequence, 'offset': _offset}}) as last
            from ({source}) group by rollout, session, _writer
        ), latest_by_rollout as (
            select rollout, arg_max({{'value': last.value, 'order': {_ORDERED}}}, {_ORDERED}) as latest
            from last_of_writers group by rollout
        )
        select rollout, latest.value as value, latest."order" as reward_order from latest_by_rollout
    """


_ORDERED = (
    "{'moment': moment, 'session': session, 'writer': writer, 'sequence': last.sequence, 'offset': last.\"offset\"}"
)
