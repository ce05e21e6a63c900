"""The reward of a rollout, which scores may have changed since its line was written."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

from rolltrace.query.run import Run
from rolltrace.query.tables import literal


class Rewarded(Protocol):
    """What is known of a rollout's reward from its line; a whole rollout is one."""

    @property
    def id(self) -> str:
        """Unique everywhere."""
        ...

    @property
    def reward(self) -> Any:
        """The total known when it ended."""
        ...


class Late(Protocol):
    """What is known of a score; a whole score is one."""

    @property
    def rollout(self) -> str | None:
        """The rollout that it is about."""
        ...

    @property
    def name(self) -> str:
        """What it says."""
        ...

    @property
    def value(self) -> Any:
        """How much."""
        ...

    @property
    def at(self) -> datetime:
        """When it was said."""
        ...


def latest_rewards(rollouts: Iterable[Rewarded], scores: Iterable[Late]) -> dict[str, Any]:
    """The reward of each rollout by id: its latest score named `reward`, else what its line says.

    Of several scores of one moment the last given counts, as in SQL: by file, then by line.
    """
    latest: dict[str, Late] = {}
    for score in scores:
        if score.name == "reward" and score.rollout is not None:
            before = latest.get(score.rollout)
            if before is None or score.at >= before.at:
                latest[score.rollout] = score
    return {rollout.id: latest[rollout.id].value if rollout.id in latest else rollout.reward for rollout in rollouts}


def ask_rewards(run: Run, rollouts: Iterable[Rewarded]) -> dict[str, float | None]:
    """The same of some rollouts of a run, from its tables."""
    line_rewards: dict[str, float | None] = {rollout.id: rollout.reward for rollout in rollouts}
    if not line_rewards:
        return {}
    ids = ", ".join(map(literal, line_rewards))
    return line_rewards | dict(run.sql(f"select id, reward from every_rollout where id in ({ids})").fetchall())
