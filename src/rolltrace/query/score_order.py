"""Which late score counts: one rule, in Python over lines and as SQL over the table of scores.

What one writer wrote is in the order of its lines, by segment and offset, even if its clock was set back: a score
counts as no earlier than those of its name and rollout that its writer wrote before it. Between writers the time
decides; if that is the same, the session's id does, then the name of the file.
"""

from collections.abc import Iterable
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from rolltrace.store.cursor import LineLocation
from rolltrace.store.layout import SegmentName


class ScoreLike(Protocol):
    """What the rule needs of a score; a whole score is one."""

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
        """When it was written, by the writer's clock."""
        ...


Found = TypeVar("Found", bound=ScoreLike)


class WritePosition(NamedTuple):
    """The file and line of a score: writers have files of their own, and begin one after the other."""

    writer: str
    sequence: int
    offset: int


def write_position(place: LineLocation) -> WritePosition:
    """Where a line stands among those of its writer."""
    name = place.file.partition("/")[2]
    segment = SegmentName.parse(name) or SegmentName(name, -1)
    return WritePosition(segment.session, segment.sequence, place.offset)


def in_score_order(found: Iterable[tuple[LineLocation, Found]]) -> list[Found]:
    """The scores about one rollout, the latest last; of each name the last is the one that counts."""
    lines = sorted(((write_position(place), score) for place, score in found), key=itemgetter(0))
    moments: dict[tuple[str, str, str], datetime] = {}
    keyed = []
    for written, score in lines:
        stream = (score.name, score.session, written.writer)
        moment = moments[stream] = max(score.created_at, moments.get(stream, score.created_at))
        keyed.append(((moment, score.session, written), score))
    return [score for _, score in sorted(keyed, key=itemgetter(0))]


def latest_rewards(found: Iterable[tuple[LineLocation, Found]]) -> dict[str, Any]:
    """By rollout, the value of the latest score named `reward`."""
    by_rollout: dict[str, list[tuple[LineLocation, Found]]] = {}
    for place, score in found:
        if score.name == "reward" and score.rollout is not None:
            by_rollout.setdefault(score.rollout, []).append((place, score))
    return {rollout: in_score_order(lines)[-1].value for rollout, lines in by_rollout.items()}


REWARD_ORDER_TYPE = 'STRUCT(moment TIMESTAMP, session VARCHAR, writer VARCHAR, sequence BIGINT, "offset" BIGINT)'
"""The column `reward_order` of stored rollouts: which score gave the reward; null if the line did."""


def select_latest_rewards(scores: str, stored_rollouts: str | None = None) -> str:
    """SQL: by rollout, the `value` of the latest score named `reward`, and its `reward_order`.

    `scores` is a table of scores. `stored_rollouts` is a table of rollouts that have the rewards of earlier scores: the
    score that gave a reward there is compared with those that came since.
    """
    columns = "rollout, session, _writer, _sequence, _offset, created_at, value"
    source = f"select {columns} from {scores} where name = 'reward' and rollout is not null"
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
        ), latest as (
            select rollout, arg_max({{'value': last.value, 'order': {_ORDERED}}}, {_ORDERED}) as found
            from last_of_writers group by rollout
        )
        select rollout, found.value as value, found."order" as reward_order from latest
    """


_ORDERED = (
    "{'moment': moment, 'session': session, 'writer': writer, 'sequence': last.sequence, 'offset': last.\"offset\"}"
)
