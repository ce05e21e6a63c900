"""The rollouts of a run that count, and their totals: for the listing, the summary and the viewer."""

import math
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rolltrace.query.run import Run
from rolltrace.query.score_order import latest_rewards
from rolltrace.query.table_schema import FINISHED, GROUP_COLUMNS
from rolltrace.store.cursor import Cursor, LineLocation
from rolltrace.store.layout import ROLLOUTS, SCORES
from rolltrace.store.ledger import Ledger
from rolltrace.store.object_files import files_of
from rolltrace.store.read_errors import ReadError
from rolltrace.trace.failure import is_interruption
from rolltrace.trace.field_types import Timestamp
from rolltrace.trace.json_numbers import INT64_LIMIT, Float, parse_number
from rolltrace.trace.stop_reasons import Status, StopReason

COUNTED_ROLLOUTS = "rollouts where not retried"
"""The rollouts that count, in SQL: for each index of a group the last attempt that is not superseded."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a run. A rollout counts unless a later attempt or a later session played it again."""

    rollouts: int
    """How many count."""
    retried: int
    """Retried attempts; no other number counts them."""
    superseded: int
    """Rollouts that a later session played again; no other number counts them."""
    collides: int
    """Rollouts that count although a session that overlaps has one of the same slot that counts, too."""
    finished: int
    """How many episodes that count are finished: rollouts, but in games only those of the first seat."""
    groups: int
    rewarded: int
    """How many have a finite reward."""
    mean_reward: float | None
    """The mean over those."""
    envs: Mapping[str, int]
    """The number of rollouts of each, the most frequent first."""
    policies: Mapping[str, int]
    stop_reasons: Mapping[str, int]
    sessions: Mapping[str, int]
    """The number of rollouts of each session, in the files of any session, including those that do not count."""

    def reconcile(self, ledger: Ledger) -> Ledger:
        """The ledger without rollouts in flight that are in the files after all.

        A rollout that was started before a fork and ended after it is in the files of the forked process. A writer that
        was killed may have written lines that its last ledger does not count.
        """
        extra = max(0, self.sessions.get(ledger.session, 0) - ledger.recorded)
        return msgspec.structs.replace(ledger, in_flight=max(0, ledger.in_flight - extra)) if extra else ledger


_TOTALS_QUERY = f"""
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
    row = next(run.sql(_TOTALS_QUERY).dicts())
    counts = {name: _by_frequency(row[name] or {}) for name in ("envs", "policies", "stop_reasons", "sessions")}
    return RunTotals(**{**row, **counts})


class RolloutHead(msgspec.Struct):
    """The fields of a rollout's line that the totals need."""

    id: str
    run: str
    env: str
    group: str
    index: int | None
    stop_reason: str
    reward: Float | None
    split: str = "train"
    iteration: int = 0
    attempt: int = 0
    policy: str = ""
    session: str = ""
    status: str = "ok"
    seat: int | None = None


class _Error(msgspec.Struct):
    """The fields of a score's error that the totals need."""

    layer: str
    type: str


class _ScoreHead(msgspec.Struct):
    """The fields of a score's line that the totals need."""

    id: str
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


Record = TypeVar("Record", RolloutHead, _ScoreHead)


class SmallRun(msgspec.Struct, frozen=True):
    """The rollouts of a small run of one session, from its lines, which are all sound."""

    rollouts: list[RolloutHead]
    """All of them."""
    scores: int
    """How many scores there are."""
    counted: list[RolloutHead]
    """Those that were not retried."""
    rewards: Mapping[str, float | None]
    """By id, the reward of each counted rollout, including late scores."""
    ungraded: Set[str]
    """The ids of those whose grading was interrupted."""


def read_small_run(path: Path) -> SmallRun | None:
    """Read the lines of a small run, which takes a hundredth of the time to make its tables.

    None if its rollouts are of several sessions, or if a line is damaged or repeated: the tables say what counts.
    """
    rollouts, scores = _read_lines(path, ROLLOUTS, RolloutHead), _read_lines(path, SCORES, _ScoreHead)
    if rollouts is None or scores is None or len({head.session for _, head in rollouts}) > 1:
        return None
    heads = [head for _, head in rollouts]
    last: dict[tuple[Any, ...], int] = {}
    for head in heads:
        last[_slot(head)] = max(head.attempt, last.get(_slot(head), head.attempt))
    counted = [head for head in heads if _slot(head)[-1] is None or head.attempt == last[_slot(head)]]
    late = latest_rewards(scores)
    graded = {score.rollout for _, score in scores if score.name == "reward" and not score.is_interrupted}
    rewards = {head.id: parse_number(late.get(head.id, head.reward)) for head in counted}
    return SmallRun(heads, len(scores), counted, rewards, late.keys() - graded)


def totals_of(run: SmallRun) -> RunTotals:
    """The totals of a small run that was read."""
    heads, counted = run.rollouts, run.counted
    rewards = [reward for head in counted if (reward := run.rewards[head.id]) is not None]
    numbers = [float(reward) for reward in rewards if math.isfinite(reward)]
    return RunTotals(
        rollouts=len(counted),
        retried=len(heads) - len(counted),
        superseded=0,
        collides=0,
        finished=sum(_is_finished(head) and head.id not in run.ungraded for head in counted),
        groups=len({_slot(head)[:-1] for head in counted}),
        rewarded=len(numbers),
        mean_reward=sum(numbers) / len(numbers) if numbers else None,
        envs=_by_frequency(Counter(head.env for head in counted)),
        policies=_by_frequency(Counter(head.policy for head in counted)),
        stop_reasons=_by_frequency(Counter(head.stop_reason for head in counted)),
        sessions=_by_frequency(Counter(head.session for head in heads)),
    )


def _slot(head: RolloutHead) -> tuple[Any, ...]:
    """The group of a rollout, and its index in it; None instead of integers that no column holds."""
    iteration, index = (
        None if number is None or not -INT64_LIMIT <= number < INT64_LIMIT else number
        for number in (head.iteration, head.index)
    )
    return head.run, head.split, iteration, head.env, head.group, index


def _is_finished(head: RolloutHead) -> bool:
    """The condition `FINISHED` for a line that counts, without its scores."""
    return not head.seat and (head.status != Status.CANCELLED or head.stop_reason == StopReason.EPISODE_ABORTED)


def _by_frequency(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _read_lines(path: Path, folder: str, kind: type[Record]) -> list[tuple[LineLocation, Record]] | None:
    """The records of a folder; None if one cannot be read, or has the id of another."""
    decoder = msgspec.json.Decoder(kind)
    errors: list[ReadError] = []
    records = []
    for location, line in Cursor(files_of(path), folder, errors.append).read():
        try:
            records.append((location, decoder.decode(line)))
        except (ValueError, RecursionError):
            return None
    is_repeated = len({record.id for _, record in records}) < len(records)
    return None if errors or is_repeated else records
