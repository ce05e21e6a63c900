"""Which rollouts of a small run count, from its lines: the same as `repeats` finds in tables."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from rolltrace.store.ledger import Ledger
from rolltrace.store.sessions import Sessions, Span
from rolltrace.trace.json_numbers import INT64_LIMIT


class HasSlot(Protocol):
    """What is known of a rollout from its line."""

    run: str
    split: str
    iteration: int
    env: str
    group: str
    index: int
    attempt: int
    session: str
    started_at: datetime
    ended_at: datetime


Play = tuple[str, int]
"""The session and the attempt."""


class Duplicates(NamedTuple):
    """Places in a list of lines or plays."""

    superseded: set[int]
    """Those that a later session repeated."""
    retried: set[int]
    """Those that a later attempt played again."""
    collides: set[int]
    """Of those that count, those of whose place another session has one that counts, too."""


def find_duplicates(lines: Sequence[HasSlot], ledgers: Callable[[], Iterable[Ledger]]) -> Duplicates:
    """What counts of these lines; `ledgers` is asked where they are of several sessions."""
    by_place: dict[Any, list[int]] = {}
    for number, line in enumerate(lines):
        by_place.setdefault(slot_of(line), []).append(number)
    counting = Duplicates(set(), set(), set())
    names = {line.session for line in lines}
    sessions = _sessions(lines, ledgers()) if len(names) > 1 else Sessions(())
    for numbers in by_place.values():
        if len(numbers) > 1:
            found = resolve_slot([(lines[number].session, lines[number].attempt) for number in numbers], sessions)
            for known, new in zip(counting, found, strict=True):
                known.update(numbers[place] for place in new)
    return counting


def slot_of(line: HasSlot) -> tuple[Any, ...]:
    """What attempts and sessions of one rollout share; the last is its place in the group."""
    return line.run, line.split, _fitting(line.iteration), line.env, line.group, _fitting(line.index)


def resolve_slot(plays: Sequence[Play], sessions: Sessions) -> Duplicates:
    """What counts of the plays of one place in a group."""
    superseded = sessions.superseded({session for session, _ in plays})
    teams = [(sessions.job_of(session), session in superseded) for session, _ in plays]
    last: dict[tuple[str, bool], int] = {}
    for team, (_, attempt) in zip(teams, plays, strict=True):
        last[team] = max(last.get(team, attempt), attempt)
    gone = {place for place, (session, _) in enumerate(plays) if session in superseded}
    retried = {place for place, (_, attempt) in enumerate(plays) if attempt < last[teams[place]]}
    left = set(range(len(plays))) - gone - retried
    is_shared = len({plays[place][0] for place in left}) > 1
    return Duplicates(gone, retried, left if is_shared else set())


def _sessions(lines: Iterable[HasSlot], ledgers: Iterable[Ledger]) -> Sessions:
    known = list(ledgers)
    with_ledger = {ledger.session for ledger in known}
    spans: dict[str, Span] = {}
    for line in lines:
        if line.session not in with_ledger:
            first, last = spans.get(line.session, (line.started_at, line.ended_at))
            spans[line.session] = min(first, line.started_at), max(last, line.ended_at)
    return Sessions(known, spans)


def _fitting(number: int) -> int | None:
    """As a column of the tables holds it, which leaves out what is wider than 64 bits."""
    return number if -INT64_LIMIT <= number < INT64_LIMIT else None
