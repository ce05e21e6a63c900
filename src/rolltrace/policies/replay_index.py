"""Finds recorded rollouts by identity, and calls of group graders by role and prompt."""

import hashlib
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Call, Header, Identity, Rollout
from rolltrace.trace.score import Score
from rolltrace.trace.strict_json import encode_lossy

_KEPT = 256
"""How many rollouts to cache, so that a rollout in play is not read again at every turn."""

RolloutKey = tuple[str, int, str, str, str, int | None, int]

SessionOrder = Callable[[str, str], bool]
"""Whether the first session supersedes the second."""


class RecordSource(Protocol):
    """A source of rollouts and scores, such as a `RunReader`."""

    def rollouts(self) -> Iterator[Rollout]:
        """All rollouts."""
        ...

    def scores(self) -> Iterator[Score]:
        """All scores."""
        ...

    def get(self, rollout: str) -> Rollout:
        """The rollout with this id."""
        ...

    def close(self) -> None:
        """Close open files."""
        ...


class InMemoryRecords:
    """Records in memory."""

    def __init__(self, rollouts: Iterable[Rollout], scores: Iterable[Score] = ()) -> None:
        self._rollouts = {rollout.id: rollout for rollout in rollouts}
        self._scores = tuple(scores)

    def rollouts(self) -> Iterator[Rollout]:
        """All rollouts."""
        return iter(self._rollouts.values())

    def scores(self) -> Iterator[Score]:
        """All scores."""
        return iter(self._scores)

    def get(self, rollout: str) -> Rollout:
        """The rollout with this id."""
        return self._rollouts[rollout]

    def close(self) -> None:
        """Do nothing."""


class ReplayIndex:
    """Thread-safe index. The first lookup reads all records once and stores only their locations."""

    def __init__(self, records: RecordSource, supersedes: SessionOrder = operator.gt) -> None:
        self._records = records
        self._supersedes = supersedes
        self._lock = threading.Lock()
        self._ids: dict[RolloutKey, tuple[str, str]] | None = None
        """Session and id by key. If two sessions played the same rollout, the superseding one counts."""
        self._calls: dict[tuple[str, bytes], list[Call]] | None = None
        self._read: dict[str, Rollout] = {}

    def rollout(self, identity: Identity) -> Rollout | None:
        """The recorded rollout with the same index in the same group, whatever its id."""
        with self._lock:
            if self._ids is None:
                self._ids = self._index()
            found = self._ids.get(rollout_key(identity))
            return None if found is None else self._load(found[1])

    def group_calls(self, role: str, prompt: Sequence[Message]) -> list[Call]:
        """Recorded calls of group graders with this role and prompt, in order."""
        with self._lock:
            if self._calls is None:
                self._calls = self._index_calls()
            return self._calls.get((role, prompt_digest(prompt)), [])

    def close(self) -> None:
        """Close open files. They are opened again when needed."""
        with self._lock:
            self._records.close()

    def _load(self, rollout: str) -> Rollout:
        found = self._read.pop(rollout, None) or self._records.get(rollout)
        if len(self._read) >= _KEPT:
            del self._read[next(iter(self._read))]
        self._read[rollout] = found
        return found

    def _index(self) -> dict[RolloutKey, tuple[str, str]]:
        ids: dict[RolloutKey, tuple[str, str]] = {}
        for rollout in self._records.rollouts():
            key, place = rollout_key(rollout), (rollout.session, rollout.id)
            ids[key] = self._newer(place, ids.get(key, place))
        return ids

    def _newer(self, one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
        """The session that counts; of colliding sessions, the one with the larger id."""
        if self._supersedes(one[0], other[0]):
            return one
        return other if self._supersedes(other[0], one[0]) else max(one, other)

    def _index_calls(self) -> dict[tuple[str, bytes], list[Call]]:
        found: dict[tuple[str, bytes], list[Call]] = {}
        for score in self._records.scores():
            for call, prompt in zip(score.calls, full_prompts(score.calls), strict=True):
                found.setdefault((call.role, prompt_digest(prompt)), []).append(call)
        return found


def rollout_key(whose: Identity | Header) -> RolloutKey:
    """The key that two plays of the same rollout share."""
    return (whose.split, whose.iteration, whose.env, whose.task, whose.group, whose.index, whose.attempt)


def prompt_digest(prompt: Sequence[Message]) -> bytes:
    """A digest that identifies a prompt."""
    return hashlib.sha256(encode_lossy({"prompt": prompt}, [])).digest()


def full_prompts(calls: Sequence[Call]) -> list[tuple[Message, ...]]:
    """The full prompt of each call, including the conversation that it continues."""
    prompts: list[tuple[Message, ...]] = []
    for call in calls:
        before: tuple[Message, ...] = ()
        if call.continues_call is not None and 0 <= call.continues_call < len(prompts):
            reply = calls[call.continues_call].reply
            before = (*prompts[call.continues_call], *(() if reply is None else (reply,)))
        prompts.append((*before, *call.prompt))
    return prompts
