"""Building blocks for tests of records: headers, outcomes, one-step lines, and values of every JSON-like kind."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from rolltrace.trace.codec import decode_rollout
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder
from rolltrace.trace.stop_reasons import Status, StoppedBy, StopReason

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ENDED = datetime(2026, 1, 2, 3, 4, 7, tzinfo=UTC)

QUESTION = Message("user", "2 + 2?")
ANSWER = Message("assistant", "4")


def header(**fields: Any) -> Header:
    """A header with the fields that tests do not care about filled in."""
    required = {"id": "rollout", "run": "run", "env": "arithmetic", "task": "1", "group": "1", "index": 0}
    return Header(**{**required, "started_at": STARTED, **fields})


def outcome(**fields: Any) -> Outcome:
    """A good end, apart from the fields given."""
    good = Outcome(
        ended_at=ENDED,
        status=Status.OK,
        stop_reason=StopReason.COMPLETED,
        stopped_by=StoppedBy.ENV,
        error=None,
        reward=1.0,
        reward_so_far=1.0,
        unclamped_reward=None,
    )
    return {**good, **fields}  # type: ignore[typeddict-item]


def one_step(header_fields: dict[str, Any] | None = None, **step: Any) -> RolloutBuilder:
    """A draft of one question and one answer."""
    rollout_builder = RolloutBuilder(header(**(header_fields or {})))
    rollout_builder.extend([QUESTION])
    rollout_builder.mark_prompt_sent()
    rollout_builder.step(ANSWER, **{"reward": 1.0, **step})
    return rollout_builder


def finished(rollout_builder: RolloutBuilder, **fields: Any) -> Rollout:
    """The rollout of a draft, by way of a line that any JSON reader can read."""
    return read(rollout_builder.encode(outcome(**fields)))


def read(line: EncodedRecord) -> Rollout:
    """The rollout of a line that any JSON reader can read."""
    strict(line.data)
    return decode_rollout(line.data)


def strict(line: bytes) -> Any:
    """A line as the standard library reads it, which must be without any leniency."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line.decode("utf-8", "strict"), parse_constant=refuse)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
"""Any text that UTF-8 can hold."""
HOSTILE_TEXT = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"])), max_size=12)
"""Any text at all, lone surrogates included."""
KEYS = st.one_of(TEXT, st.sampled_from(["$float", "$bytes", "$unrepresentable", "$$float", "$", "$x", "value", "type"]))
NUMBERS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.sampled_from([2**63, 2**200, -(2**64), 0.1 + 0.2, -0.0])
)


LEAVES = st.one_of(st.none(), NUMBERS, TEXT, st.binary(max_size=12))


def json_like(leaves: st.SearchStrategy[Any] = LEAVES) -> Any:
    """Nested maps and lists; by default of all that comes back from a record as it went in."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
        max_leaves=20,
    )


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types throughout, NaN and the sign of zero included."""
    return repr(one) == repr(other)
