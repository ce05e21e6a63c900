"""Which rollouts a regrade is about: those that match a condition, and which of them are graded already."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from rolltrace.query.run import Run
from rolltrace.query.score_order import select_latest_scores
from rolltrace.query.sql_check import LOCATION_VIEWS
from rolltrace.query.table_schema import GROUP_COLUMNS, sql_literal
from rolltrace.trace.score import GroupKey

_TABLES = frozenset({"rollouts", "scores"})
_LOCATION = "run, id, _file, _offset, _length"

OLD_REWARD = "try_cast(coalesce(data ->> '$.old_reward.\"$float\"', data ->> '$.old_reward') as double)"
"""SQL for the reward that a rollout had when it was graded again, of a score."""

LineRow = tuple[str, str, str, int, int]
"""The location of a rollout: run, id, file, offset and length."""


class PendingRollout(NamedTuple):
    """A rollout that is to be graded."""

    location: LineRow
    reward: float | None
    """Before it is graded."""


class PendingGroup(NamedTuple):
    """A group that is to be graded, with all its members, also those that failed."""

    key: GroupKey
    members: list[PendingRollout]


class NewReward(NamedTuple):
    """A value of a regrade that is to become the reward of a rollout."""

    rollout: str
    value: float | None
    old: float | None
    error_type: str | None
    error_message: str | None


class ScopeCounts(NamedTuple):
    """How many rollouts a regrade is about."""

    total: int
    """Rollouts of the run."""
    matched: int
    """Rollouts that match the condition."""
    in_scope: int
    """The same, or for a grader of groups the rollouts of their groups."""
    retried: int
    """Of these: attempts that were retried."""
    not_ok: int
    """Rollouts that failed or were cancelled."""
    without_steps: int
    """Rollouts without a response, which only a grader of groups can grade."""
    graded: int
    """Rollouts that have a score already."""
    pending: int
    """Rollouts that are to be graded now."""


class RegradeScope:
    """The rollouts of a run that match a condition; for a grader of groups, those of all groups with such a rollout."""

    def __init__(
        self, run: Run, name: str, where: str | None = None, *, is_group: bool = False, retry_failed: bool = False
    ) -> None:
        self.run = run
        self.name = name
        """The name of the scores."""
        matching = run.select_locations(where)
        self._tables = _TABLES | matching.tables
        self._matching = f"select r.* from {LOCATION_VIEWS['rollouts']} r semi join ({matching.sql}) m on m.id = r.id"
        groups = f"select distinct {GROUP_COLUMNS} from ({self._matching})"
        whole = f"select r.* from {LOCATION_VIEWS['rollouts']} r semi join ({groups}) g using ({GROUP_COLUMNS})"
        self.rollouts = whole if is_group else self._matching
        """SQL for the rollouts, with their locations."""
        self._gradable = f"status = 'ok' and not retried{'' if is_group else ' and steps > 0'}"
        counts = "value is not null" if retry_failed else "true"
        graded = f"select rollout from ({self.latest_scores('value')}) where {counts}"
        join = f"left join ({graded}) g on g.rollout = s.id"
        self._with_state = f"select s.*, g.rollout is not null as graded from ({self.rollouts}) s {join}"
        self._is_group = is_group

    def latest_scores(self, value: str) -> str:
        """SQL: by rollout, the `value` of the latest score of this name: an expression over the columns of scores."""
        return select_latest_scores(LOCATION_VIEWS["scores"], self.name, value)

    def select(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a SELECT of Rolltrace's own over rollouts, scores and `rollouts` of this scope."""
        return iter(self.run.select(sql, self._tables))

    def counts(self) -> ScopeCounts:
        """How many rollouts there are, and how many of them are to be graded."""
        if self._is_group:
            pending = (
                f"select sum(size) from (select count(*) filter ({self._gradable}) as size {self._pending_groups})"
            )
        else:
            pending = f"select count(*) from state where {self._gradable} and not graded"
        [row] = self.select(f"""
            with state as ({self._with_state})
            select (select count(*) from rollouts), (select count(*) from ({self._matching})), count(*),
                count(*) filter (retried), count(*) filter (not retried and status <> 'ok'),
                count(*) filter (not retried and status = 'ok' and steps = 0),
                count(*) filter ({self._gradable} and graded), coalesce(({pending}), 0)
            from state
        """)
        return ScopeCounts(*map(int, row))

    @property
    def _pending_groups(self) -> str:
        """A group is graded again as a whole if a member has no score, for example one that was recorded since."""
        return f"from state where not retried group by {GROUP_COLUMNS} having bool_or({self._gradable} and not graded)"

    def pending_rollouts(self) -> Iterator[PendingRollout]:
        """The rollouts that are to be graded, in the order of their files."""
        rows = self.select(f"""
            select {_LOCATION}, reward from ({self._with_state}) where {self._gradable} and not graded
            order by _file, _offset
        """)
        return (PendingRollout(row[:5], row[5]) for row in rows)

    def pending_groups(self) -> Iterator[PendingGroup]:
        """The groups that are to be graded, in the order of their files."""
        member = "{'run': run, 'id': id, 'file': _file, 'offset': _offset, 'length': _length, 'reward': reward}"
        rows = self.select(f"""
            with state as ({self._with_state})
            select {GROUP_COLUMNS}, list({member} order by "index", id) {self._pending_groups}
            order by min({{'file': _file, 'offset': _offset}})
        """)
        return (PendingGroup(GroupKey(*row[:4]), [_member(**member) for member in row[4]]) for row in rows)

    def new_rewards(self) -> Iterator[NewReward]:
        """The values that are not the rewards of their rollouts yet."""
        value = f"{{'value': value, 'old': {OLD_REWARD}, 'type': error_type, 'message': error_message}}"
        rows = self.select(f"""
            select r.id, s.value.value, s.value.old, s.value.type, s.value.message
            from ({self.rollouts}) r join ({self.latest_scores(value)}) s on s.rollout = r.id
            left join ({self._latest_rewards}) w on w.rollout = r.id
            where not r.retried and (w.value.regrade is distinct from {sql_literal(self.name)}
                or w.value.value is distinct from s.value.value)
        """)
        return (NewReward(*row) for row in rows)

    def mixed_groups(self) -> int:
        """How many groups of the run have members whose reward is of this regrade, and others."""
        [(count,)] = self.select(f"""
            select count(*) from (
                select bool_or(own) and not bool_and(own) as is_mixed from (
                    select {GROUP_COLUMNS}, coalesce(w.value.regrade = {sql_literal(self.name)}, false) as own
                    from rollouts r left join ({self._latest_rewards}) w on w.rollout = r.id
                    where status = 'ok' and not retried
                ) group by {GROUP_COLUMNS}
            ) where is_mixed
        """)
        return int(count)

    @property
    def _latest_rewards(self) -> str:
        value = "{'regrade': data ->> '$.regrade', 'value': value}"
        return select_latest_scores(LOCATION_VIEWS["scores"], "reward", value)

    def sessions(self) -> list[str]:
        """The sessions that wrote scores of this name, or made them rewards."""
        name = sql_literal(self.name)
        of_rewards = f"name = 'reward' and data ->> '$.regrade' = {name}"
        sql = f"select distinct session from scores where name = {name} or ({of_rewards})"
        return [session for (session,) in self.select(sql)]


def _member(run: str, id: str, file: str, offset: int, length: int, reward: float | None) -> PendingRollout:  # noqa: A002 - a column
    return PendingRollout((run, id, file, offset, length), reward)
