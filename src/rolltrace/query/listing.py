"""The runs below a directory, with the few numbers that can be had quickly."""

import math
import os
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from rolltrace.errors import RecordError, RolltraceError, RunNotFoundError
from rolltrace.query.run import open_run
from rolltrace.store.cursor import Cursor
from rolltrace.store.layout import LEDGER, ROLLOUTS, RUN_FILE, SCORES, is_run
from rolltrace.store.ledger import Ledger, decode_ledger
from rolltrace.store.problems import Problem
from rolltrace.store.reader import RunReader
from rolltrace.trace.careful import json_encoder
from rolltrace.trace.numbers import Float, restore_number, wire_number

MOST_BYTES = 32_000_000
"""A run with more bytes of rollouts is not read for a listing: its numbers are those of its cache, or none."""


_TAIL = 64_000
"""How many bytes at the end of a ledger are looked through for its last line."""


class State(StrEnum):
    """How a run stands, as its ledgers tell."""

    CLOSED = "closed"
    """Every session was closed, and nothing was lost."""
    OPEN = "open"
    """A session is not closed: it is being written, or its writer died."""
    LOST = "lost"
    """Something that was begun is not in the run."""
    UNKNOWN = "unknown"
    """There is no ledger."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a listing. What could not be had quickly is None."""

    name: str
    """Where it is, from the directory on that was listed."""
    path: str
    run: str | None
    """The run's id."""
    created_at: datetime | None
    written_at: datetime | None
    """When a ledger was last written."""
    state: State
    rollouts: int
    """How many the ledgers say were recorded, each attempt counting."""
    lost: int
    """How many were begun and are not there, in sessions that were closed, or were dropped in any."""
    groups: int | None = None
    envs: tuple[str, ...] | None = None
    policies: tuple[str, ...] | None = None
    mean_reward: Float | None = None
    """Over the rollouts that have a finite reward."""
    bytes: int = 0
    """On disk, with all that was derived."""


class _Head(msgspec.Struct):
    """What a listing reads of a rollout."""

    id: str
    split: str
    iteration: int
    env: str
    group: str
    policy: str
    reward: Float | None


class _Late(msgspec.Struct):
    """What a listing reads of a score."""

    name: str
    value: Float | None
    at: str
    rollout: str | None = None


def list_runs(folder: str | Path) -> list[Listed]:
    """Every run in or below a directory, the newest first."""
    place = Path(folder)
    if not place.is_dir():
        raise RunNotFoundError(
            f"Expected a directory that holds runs, found {'a file' if place.exists() else 'none'} at {place}."
        )
    listed = [_describe(path, place) for path in find_runs(place)]
    return sorted(listed, key=lambda run: (run.created_at is not None, run.created_at or 0, run.path), reverse=True)


def find_runs(folder: Path) -> Iterator[Path]:
    """Where the runs are; links are not followed, hidden directories and what is inside a run not entered."""
    for path, folders, files in os.walk(folder):
        if RUN_FILE in files or (ROLLOUTS in folders and is_run(Path(path))):
            folders.clear()
            yield Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def encode_listed(listed: Listed) -> bytes:
    """A run of a listing as one JSON object."""
    fields = {name: wire_number(getattr(listed, name)) for name in listed.__struct_fields__}
    return json_encoder.encode(fields)


def _describe(path: Path, folder: Path) -> Listed:
    reader = RunReader(path)
    ledgers = _last_ledgers(path)
    lost = sum(
        sum(ledger.unrecordable.values()) + sum(ledger.dropped.values()) + ledger.in_flight * ledger.closed
        for ledger in ledgers
    )
    state = State.CLOSED if ledgers else State.UNKNOWN
    if lost:
        state = State.LOST
    elif not all(ledger.closed for ledger in ledgers):
        state = State.OPEN
    return Listed(
        name=path.name if path == folder else str(path.relative_to(folder)),
        path=str(path),
        run=None if reader.info is None else reader.info.id,
        created_at=None if reader.info is None else reader.info.created_at,
        written_at=max((ledger.at for ledger in ledgers), default=None),
        state=state,
        rollouts=sum(ledger.recorded for ledger in ledgers),
        lost=lost,
        bytes=_size(path),
        **_details(path),
    )


def _details(path: Path) -> dict[str, Any]:
    if _size(path / ROLLOUTS) <= MOST_BYTES:
        return _read_details(path)
    if any((path / "cache").glob("rollouts-*.parquet")):
        try:
            return _ask_details(path)
        except RolltraceError:
            return {}
    return {}


def _read_details(path: Path) -> dict[str, Any]:
    """Read the head of every rollout, which takes a fraction of reading the rollout."""
    groups, envs, policies = set(), set(), set()
    rewards: dict[str, Any] = {}
    for head in _records(path, ROLLOUTS, _Head):
        groups.add((head.split, head.iteration, head.env, head.group))
        envs.add(head.env)
        policies.add(head.policy)
        rewards[head.id] = head.reward
    latest: dict[str, str] = {}
    for score in _records(path, SCORES, _Late):
        if score.name == "reward" and score.rollout in rewards and score.at >= latest.get(score.rollout, ""):
            latest[score.rollout] = score.at
            rewards[score.rollout] = score.value
    numbers = [
        number for value in rewards.values() if value is not None and math.isfinite(number := restore_number(value))
    ]
    return {
        "groups": len(groups),
        "envs": tuple(sorted(envs)),
        "policies": tuple(sorted(policies)),
        "mean_reward": sum(number / len(numbers) for number in numbers) if numbers else None,
    }


def _ask_details(path: Path) -> dict[str, Any]:
    """Ask the tables, which are there already for a large run."""
    question = """
        select count(distinct (split, iteration, env, "group")), list_sort(list(distinct env)),
            list_sort(list(distinct policy)), avg(reward) filter (isfinite(reward))
        from rollouts
    """
    with open_run(path) as run:
        row = run.sql(question).fetchone()
    if row is None:
        return {}
    groups, envs, policies, mean = row
    return {"groups": groups, "envs": tuple(envs or ()), "policies": tuple(policies or ()), "mean_reward": mean}


def _records(path: Path, folder: str, kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    for _, line in Cursor(path, folder, _pass_over).read():
        try:
            yield decoder.decode(line)
        except (ValueError, RecursionError):
            continue


def _pass_over(problem: Problem) -> None:
    """A listing does not tell what cannot be read; `rolltrace check` does."""


def _last_ledgers(path: Path) -> list[Ledger]:
    """The last ledger of each session, from the ends of the files: a session that takes long writes very many."""
    latest: dict[str, Ledger] = {}
    for file in (path / LEDGER).glob("*.jsonl"):
        ledger = _last_ledger(file)
        if ledger is not None and (ledger.session not in latest or ledger.at >= latest[ledger.session].at):
            latest[ledger.session] = ledger
    return list(latest.values())


def _last_ledger(file: Path) -> Ledger | None:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
            lines = stream.read(_TAIL).splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return decode_ledger(line)
        except RecordError:
            continue  # torn, or cut where reading began
    return None


def _size(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - one of very many
            except OSError:
                continue  # gone since it was listed
    return total
