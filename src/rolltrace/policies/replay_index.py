"""Finds recorded rollouts by identity, and calls of group graders by role and prompt."""

import hashlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Protocol

from rolltrace.errors import RecordError
from rolltrace.trace.call import Call
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Identity, Rollout
from rolltrace.trace.score import Score
from rolltrace.trace.strict_json import encode_lossy

MAX_CACHED = 256
"""How many rollouts to cache, so that a rollout is not read again at every turn."""

rollout_key = attrgetter("split", "iteration", "env", "task", "group", "index", "attempt")
"""The key that two plays of the same rollout share."""


class RecordSource(Protocol):
    """A source of rollouts and scores, such as a `Run`."""

    def identities(self) -> Iterator[Identity]:
        """Which rollouts there are, without superseded ones."""

    def scores(self) -> Iterator[Score]:
        """All scores."""

    def get(self, rollout: str) -> Rollout:
        """The rollout with this id."""

    def close(self) -> None:
        """Close open files."""


class ReplayIndex:
    """Thread-safe index. The first lookup reads which rollouts there are; a rollout is read when it is replayed."""

    def __init__(self, records: RecordSource) -> None:
        self._records = records
        self._lock = threading.Lock()
        self._load = lru_cache(MAX_CACHED)(records.get)

    def rollout(self, identity: Identity) -> Rollout | None:
        """The recorded rollout with the same index in the same group, whatever its id."""
        key = rollout_key(identity)
        with self._lock:
            for _, rollout in self._ids.get(hash(key), ()):
                with suppress(RecordError):  # its line cannot be decoded
                    if rollout_key(recorded := self._load(rollout)) == key:
                        return recorded
            return None

    def group_calls(self, role: str, prompt: Sequence[Message]) -> list[Call]:
        """Recorded calls of group graders with this role and prompt, in order."""
        with self._lock:
            return self._calls.get((role, prompt_digest(prompt)), [])

    def close(self) -> None:
        """Close open files. They are opened again when needed."""
        with self._lock:
            self._records.close()

    @cached_property
    def _ids(self) -> dict[int, list[tuple[str, str]]]:
        """Sessions and ids by the hash of the key. If several sessions played a rollout, the last one comes first."""
        ids: dict[int, list[tuple[str, str]]] = {}
        for identity in self._records.identities():
            ids.setdefault(hash(rollout_key(identity)), []).append((sys.intern(identity.session), identity.id))
        for sessions in ids.values():
            sessions.sort(reverse=True)
        return ids

    @cached_property
    def _calls(self) -> dict[tuple[str, bytes], list[Call]]:
        calls: dict[tuple[str, bytes], list[Call]] = {}
        for score in self._records.scores():
            for call, prompt in with_full_prompts(score.calls):
                calls.setdefault((call.role, prompt_digest(prompt)), []).append(call)
        return calls


def prompt_digest(prompt: Sequence[Message]) -> bytes:
    """A digest that identifies a prompt."""
    return hashlib.sha256(encode_lossy({"prompt": prompt}, [])).digest()


def with_full_prompts(calls: Sequence[Call]) -> list[tuple[Call, tuple[Message, ...]]]:
    """Each call with its full prompt, including the conversation that it continues."""
    prompts: list[tuple[Message, ...]] = []
    for call in calls:
        before: tuple[Message, ...] = ()
        if call.continues_call is not None and 0 <= call.continues_call < len(prompts):
            reply = calls[call.continues_call].reply
            before = (*prompts[call.continues_call], *(() if reply is None else (reply,)))
        prompts.append((*before, *call.prompt))
    return list(zip(calls, prompts, strict=True))
