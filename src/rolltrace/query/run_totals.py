"""What of a run counts, and what it comes to: the one definition behind the listing, the summary and the overview."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import TypeVar

import msgspec

from rolltrace.query.deduplication import find_duplicates, slot_of
from rolltrace.query.run import Run
from rolltrace.query.score_order import latest_rewards
from rolltrace.query.table_schema import FINISHED, GROUP_COLUMNS
from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.ledger import Ledger
from rolltrace.store.read_errors import ReadError
from rolltrace.store.reader import RunReader
from rolltrace.trace.failure import is_interruption
from rolltrace.trace.field_types import Timestamp
from rolltrace.trace.json_numbers import Float, parse_number
from rolltrace.trace.stop_reasons import Status, StopReason

Record = TypeVar("Record")

COUNTED_ROLLOUTS = "rollouts where not retried"
"""The rollouts that count, in SQL: of each place in a group the last attempt that no later session repeated."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to. A rollout counts unless a later attempt, or a later session, played it again."""

    rollouts: int
    """How many count."""
    retried: int
    """Attempts that were tried again; no other number counts them."""
    superseded: int
    """Rollouts that a later session repeated; no other number counts them."""
    collides: int
    """Rollouts that count, of whose place another session that overlaps has one that counts, too."""
    finished: int
    """How many episodes that count are finished: rollouts, but of a game only those of the first seat."""
    groups: int
    rewarded: int
    """How many have a finite reward."""
    mean_reward: float | None
    """Over those."""
    envs: Mapping[str, int]
    """How many rollouts of each, the most frequent first."""
    policies: Mapping[str, int]
    stop_reasons: Mapping[str, int]
    sessions: Mapping[str, int]
    """How many rollouts name each session as theirs, in whosever files and whether or not they count."""

    def reconcile(self, ledger: Ledger) -> Ledger:
        """The ledger without what is in flight only to it: the files have it, and the files are right.

        A rollout that was begun before a fork and ended after it is in the files of the process that ended it; and a
        writer that was killed may have written lines that its last ledger does not count.
        """
        found = max(0, self.sessions.get(ledger.session, 0) - ledger.recorded)
        return msgspec.structs.replace(ledger, in_flight=max(0, ledger.in_flight - found)) if found else ledger


_QUESTION = f"""
    select count(*) filter (counts) as rollouts, count(*) filter (retried and not superseded) as retried,
        count(*) filter (superseded) as superseded, count(*) filter (collides) as collides,
        count(*) filter (is_finished) as finished,
        count(distinct (run, {GROUP_COLUMNS})) filter (counts) as groups,
        count(*) filter (counts and isfinite(reward)) as rewarded,
        avg(reward) filter (counts and isfinite(reward)) as mean_reward,
        histogram(env) filter (counts) as envs, histogram(policy) filter (counts) as policies,
        histogram(stop_reason) filter (counts) as stop_reasons,
        histogram(session) as sessions
    from (select *, not superseded and not retried as counts, {FINISHED} as is_finished from every_rollout)
"""


def query_totals(run: Run) -> RunTotals:
    """The totals of a run of any size, from its tables."""
    row = next(run.sql(_QUESTION).dicts())
    counts = {name: _by_frequency(row[name] or {}) for name in ("envs", "policies", "stop_reasons", "sessions")}
    return RunTotals(**{**row, **counts})


class RolloutHead(msgspec.Struct):
    """What the totals need of a rollout's line."""

    id: str
    run: str
    env: str
    group: str
    index: int | None
    stop_reason: str
    reward: Float | None
    started_at: Timestamp
    ended_at: Timestamp
    split: str = "train"
    iteration: int = 0
    attempt: int = 0
    policy: str = ""
    session: str = ""
    status: str = "ok"
    seat: int | None = None


class _Error(msgspec.Struct):
    """What the totals need of a score's error."""

    layer: str
    type: str


class _ScoreHead(msgspec.Struct):
    """What the totals need of a score's line."""

    name: str
    value: Float | None
    created_at: Timestamp
    rollout: str | None = None
    session: str = ""
    error: _Error | None = None

    @property
    def is_interrupted(self) -> bool:
        """The condition `INTERRUPTED_SCORE`."""
        return self.value is None and self.error is not None and is_interruption(self.error.layer, self.error.type)


class SmallRun(msgspec.Struct, frozen=True):
    """The rollouts of a small run, as its lines tell them."""

    rollouts: list[RolloutHead]
    """All of them."""
    current: list[RolloutHead]
    """Those that no later session repeated."""
    counted: list[RolloutHead]
    """Of these, those that no later attempt played again."""
    collides: int
    """How many of those are of a place that another session has, too."""
    rewards: Mapping[str, float | None]
    """By id, the reward of each that counts, late scores included."""
    ungraded: Set[str]
    """The ids of those whose grading was interrupted."""
    problems: int
    """How much of the files could not be read."""


def read_small_run(path: Path) -> SmallRun:
    """What counts of a small run, from its lines: for very many of them that is quicker than making tables."""
    problems: list[ReadError] = []
    heads = [head for _, head in _records(path, ROLLOUTS, RolloutHead, problems.append)]
    counting = find_duplicates(heads, lambda times: RunReader(path).sessions(times))
    current = [head for number, head in enumerate(heads) if number not in counting.superseded]
    gone = counting.superseded | counting.retried
    counted = [head for number, head in enumerate(heads) if number not in gone]
    scores = [
        (place, score) for place, score in _records(path, SCORES, _ScoreHead, problems.append) if _is_reward(score)
    ]
    late = latest_rewards(scores)
    ungraded = late.keys() - {score.rollout for _, score in scores if not score.is_interrupted}
    known = {head.id: parse_number(late.get(head.id, head.reward)) for head in counted}
    return SmallRun(heads, current, counted, len(counting.collides), known, ungraded, len(problems))


def read_totals(path: Path) -> RunTotals:
    """The totals of a small run, from its lines."""
    return totals_of(read_small_run(path))


def totals_of(read: SmallRun) -> RunTotals:
    """The totals of what was read."""
    heads, current, counted = read.rollouts, read.current, read.counted
    known = [reward for head in counted if (reward := read.rewards[head.id]) is not None]
    numbers = [float(number) for number in known if math.isfinite(number)]
    return RunTotals(
        rollouts=len(counted),
        retried=len(current) - len(counted),
        superseded=len(heads) - len(current),
        collides=read.collides,
        finished=sum(_is_finished(head) and head.id not in read.ungraded for head in counted),
        groups=len({slot_of(head)[:-1] for head in counted}),
        rewarded=len(numbers),
        mean_reward=sum(numbers) / len(numbers) if numbers else None,
        envs=_by_frequency(Counter(head.env for head in counted)),
        policies=_by_frequency(Counter(head.policy for head in counted)),
        stop_reasons=_by_frequency(Counter(head.stop_reason for head in counted)),
        sessions=_by_frequency(Counter(head.session for head in heads)),
    )


def _is_reward(score: _ScoreHead) -> bool:
    return score.name == "reward" and score.rollout is not None


def _is_finished(head: RolloutHead) -> bool:
    """The condition `FINISHED` on a line that counts, but for its scores."""
    return not head.seat and (head.status != Status.CANCELLED or head.stop_reason == StopReason.EPISODE_ABORTED)


def _by_frequency(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _records(
    path: Path, folder: str, kind: type[Record], tell: Callable[[ReadError], None]
) -> Iterator[tuple[LineLocation, Record]]:
    decoder = msgspec.json.Decoder(kind)
    for place, line in Cursor(path, folder, tell).read():
        try:
            yield place, decoder.decode(line)
        except (ValueError, RecursionError):
            continue
