"""The summary of a play: counts of groups, rollouts, stop reasons and errors."""

import time
from collections import Counter
from pathlib import Path

import msgspec

from rolltrace.jobs.workers.reports import GroupReport
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.store.ledger import Ledger

_MAX_ERRORS = 10
_MAX_MESSAGE_CHARS = 500


class PlaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of playing one environment."""

    path: str
    """Where the run is."""
    run: str
    """The run's id."""
    env: str
    policy: str
    groups: int
    """Groups played."""
    groups_without_reward: int
    """Groups of which no member has a reward."""
    rollouts: int
    """Members of the groups; only the last attempt of a retried one counts."""
    statuses: dict[str, int]
    stop_reasons: dict[str, int]
    errors: dict[str, int]
    """Count of each failure by layer, type and message; only the most common ones."""
    mean_reward: float | None
    """Over the rollouts that have a reward."""
    rewarded: int
    """How many rollouts have a reward."""
    seconds: float
    ledger: Ledger
    unused_roles: list[str] = []
    """Roles with a policy that was never used: their names may be misspelled."""
    roles_played_by_policy: list[str] = []
    """Other roles that the policy itself played, because they had no policy."""

    workers_lost: int = 0
    """Workers that died while they played."""
    groups_replayed: int = 0
    """Groups that were played again because their worker died."""

    @property
    def succeeded(self) -> bool:
        """Whether every group has a reward, and everything was recorded."""
        return self.groups_without_reward == 0 and self.ledger.complete


class SummaryCounter:
    """Counts groups as they finish."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._groups = 0
        self._without_reward = 0
        self._rollouts = 0
        self._statuses: Counter[str] = Counter()
        self._stop_reasons: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._rewarded = 0
        self._total_reward = 0.0

    def add(self, result: GroupResult | GroupReport) -> None:
        """Count a group."""
        rewards = [reward for reward in result.rewards if reward is not None]
        self._groups += 1
        self._without_reward += not rewards
        self._rewarded += len(rewards)
        for reward in rewards:
            self._total_reward += reward
        for member in result.members:
            self._rollouts += 1
            self._statuses[str(member.status)] += 1
            self._stop_reasons[str(member.stop_reason)] += 1
            if (error := member.error or member.grade_failure) is not None:
                self._errors[f"{error.layer} · {error.type}: {error.message[:_MAX_MESSAGE_CHARS]}"] += 1

    def summary(self, path: Path, env: str, policy: str, ledger: Ledger) -> PlaySummary:
        """Return the summary of the run at `path`."""
        return PlaySummary(
            path=str(path),
            run=ledger.run,
            env=env,
            policy=policy,
            groups=self._groups,
            groups_without_reward=self._without_reward,
            rollouts=self._rollouts,
            statuses=dict(self._statuses),
            stop_reasons=dict(self._stop_reasons),
            errors=dict(self._errors.most_common(_MAX_ERRORS)),
            mean_reward=self._total_reward / self._rewarded if self._rewarded else None,
            rewarded=self._rewarded,
            seconds=time.perf_counter() - self._started,
            ledger=ledger,
        )
