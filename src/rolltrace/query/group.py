"""One group as the tables and the records have it: few questions, whatever the size of the run."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from rolltrace.errors import InputError, RolltraceError, UnknownNameError
from rolltrace.query.run import Run
from rolltrace.query.run_totals import COUNTED_ROLLOUTS
from rolltrace.query.score_order import in_score_order
from rolltrace.query.table_schema import sql_literal
from rolltrace.store.sessions import Sessions
from rolltrace.trace.freeform import from_json_mapping
from rolltrace.trace.rollout import Failure, Rollout
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Layer

_KEY = 'split = ? and iteration = ? and env = ? and "group" = ?'
_GROUP = f"""
    select size, n, mean, spread, min, max, has_signal, run,
        (select count(*) from rollouts where retried and {_KEY} and rollouts.run = groups.run) as retried,
        (select count(*) from rollouts where collides and {_KEY} and rollouts.run = groups.run) as collides
    from groups where {_KEY}
"""
_MEMBERS = f"""
    select id from {COUNTED_ROLLOUTS} and {_KEY}
    order by reward is null, isnan(reward), reward desc, "index", id limit ?
"""
_SCORES = f"""
    select id, session, name, value, data, producer, "at", error_layer, error_type, error_message
    from scores where rollout is null and {_KEY}
"""


class Rewards(msgspec.Struct, frozen=True, kw_only=True):
    """The rewards of a group; each field is a column of the table `groups`."""

    size: int
    n: int
    mean: float | None
    spread: float | None
    min: float | None
    max: float | None
    has_signal: bool


class AboutGroup(NamedTuple):
    """A score about a group, as the table `scores` has it."""

    id: str
    session: str
    name: str
    value: float | None
    data: dict[str, Any]
    producer: str
    at: datetime
    error: Failure | None
    """Without its traceback."""
    rollout: None = None


class LoadedGroup(NamedTuple):
    """What is known of a group."""

    rewards: Rewards
    retried: int
    """How many attempts were tried again."""
    collides: int
    """How many members are of places that several sessions recorded at once."""
    rollouts: list[Rollout]
    """The members, in the order of their rewards."""
    scores: list[AboutGroup]
    """About the group as a whole, the earliest first."""


def load_group(run: Run, key: GroupKey, most: int) -> LoadedGroup:
    """The group of this name, with the `most` members that have the best rewards."""
    place = [key.split, key.iteration, key.env, key.group]
    found = list(run.sql(_GROUP, [*place, *place, *place]).dicts())
    if len(found) > 1:
        raise InputError(f"Expected a group of one run, got one that {len(found)} runs have: open one of them.")
    if not found:
        where = f"env {key.env!r}, iteration {key.iteration} of {key.split!r}"
        raise UnknownNameError(
            f"There is no group {key.group!r} of {where} in {run.path}: `rolltrace show` lists them."
        )
    rollouts = _read(run, [row[0] for row in run.sql(_MEMBERS, [*place, most])])
    row = found[0]
    return LoadedGroup(
        Rewards(**{name: row[name] for name in Rewards.__struct_fields__}),
        row["retried"],
        row["collides"],
        rollouts,
        _scores(run, place, rollouts),
    )


def _read(run: Run, ids: Sequence[str]) -> list[Rollout]:
    """The rollouts of these ids, in their order; one that can no longer be read is left out."""
    if not ids:
        return []
    try:
        read = {rollout.id: rollout for rollout in run.rollouts(where=f"id in ({', '.join(map(sql_literal, ids))})")}
    except RolltraceError:
        # A file was damaged since its table was made: one by one it costs only what it held.
        read = {}
    return [rollout for id_ in ids if (rollout := read.get(id_) or _get(run, id_)) is not None]


def _get(run: Run, rollout: str) -> Rollout | None:
    try:
        return run.get(rollout)
    except RolltraceError:
        return None


def _scores(run: Run, place: list[Any], rollouts: Sequence[Rollout]) -> list[AboutGroup]:
    """The scores about the group, without those of sessions that a member's session supersedes."""
    found = [_about_group(row) for row in run.sql(_SCORES, place)]
    scores = _in_order(run, found) if len(found) > 1 else found
    members = {rollout.session for rollout in rollouts}
    if members.issuperset(score.session for score in scores):
        return scores
    supersedes = Sessions(run.ledgers().values()).supersedes
    return [score for score in scores if not any(supersedes(member, score.session) for member in members)]


def _in_order(run: Run, scores: Sequence[AboutGroup]) -> list[AboutGroup]:
    """The scores by the rule of late scores, the latest last."""
    places = run.score_locations(f"id in ({', '.join(sql_literal(score.id) for score in scores)})")
    return in_score_order((places[score.id], score) for score in scores if score.id in places)


def _about_group(row: tuple[Any, ...]) -> AboutGroup:
    id_, session, name, value, data, producer, at, layer, kind, message = row
    error = None if layer is None else Failure(Layer(layer), kind or "", message or "")
    return AboutGroup(id_, session, name, value, _mapping(data), producer, at.replace(tzinfo=UTC), error)


def _mapping(text: str | None) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(text or "{}")
        return from_json_mapping(decoded) if isinstance(decoded, dict) else {}
    except (ValueError, RecursionError):
        return {}
