"""Encodes the lines of a run, with as much of the text of each rollout and score as is to be recorded."""

import contextlib
import weakref
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rolltrace.store.recording import Level, Recording
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import copy_score, encode_score
from rolltrace.trace.message import Message
from rolltrace.trace.quote import TextSource
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Status
from rolltrace.trace.text_transform import BothTransforms, HashText, RedactText, TextTransform, transform_record

_HASH_TEXT = HashText()
_MAX_FULL_ROLLOUTS = 100_000
"""Rollouts known to belong to a group that is recorded in full; late scores of older ones are recorded as numbers."""
_MAX_GROUPS = 4_000
"""Groups whose members are remembered until they are graded; calls about older ones are stored whole."""


class Redactor:
    """Hashes and redacts text. If redacting fails, the text is hashed and `on_failure` is called."""

    def __init__(self, recording: Recording, on_failure: Callable[[Exception, str], None]) -> None:
        self._recording = recording
        self._redaction = None if recording.redact is None else RedactText(recording.redact)
        self._on_failure = on_failure
        hashed = _HASH_TEXT if self._redaction is None else BothTransforms(self._redaction, _HASH_TEXT)
        self._transforms: dict[Level, TextTransform | None] = {Level.FULL: self._redaction, Level.NUMBERS: hashed}
        self._default_transform = self._transforms.get(recording.level or Level.FULL)
        self._is_sampled = recording.level is Level.FULL and recording.fraction is not None and recording.fraction < 1
        self._full_rollouts: dict[str, None] = {}
        self._awaiting_grade: dict[GroupKey, list[weakref.ref[RolloutBuilder]]] = {}
        """Rollouts that wait for their group's grade: its calls can quote them as they were recorded."""

    def transform_for(self, header: Header) -> TextTransform | None:
        """How the text of a rollout is transformed before it is recorded; None: not at all."""
        if self._is_sampled:
            return self._transforms[self._recording.level_for_group(header.group_key)]
        return self._default_transform

    def encode_rollout(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> EncodedRecord:
        """The line of a rollout that has ended."""
        has_calls = self._recording.calls is not False
        try:
            line = rollout_builder.encode(outcome, calls=has_calls)
        except Exception as error:
            if self._redaction is None or rollout_builder.transform is _HASH_TEXT:
                raise
            self._on_failure(error, "the text of a rollout")
            rollout_builder.transform = _HASH_TEXT
            line = rollout_builder.encode(outcome, calls=has_calls)
        if self._is_sampled:
            self._remember(rollout_builder.header)
        if outcome["reward"] is None and outcome["status"] is Status.OK and line.conversation is not None:
            self._await_grade(rollout_builder, line.conversation.text._replace(rollout=rollout_builder.id))
        return line

    def encode_score(self, score: Score, quotes: Sequence[TextSource] = ()) -> EncodedRecord:
        """A late fact about a rollout or a group, as much of it as is recorded of that; calls may quote `quotes`."""
        if self._recording.calls is False and score.calls:
            score = replace(score, calls=())
        sources = [*quotes, *self._sources_of(score.group)] if score.calls else []
        blobs = _carried(_said_in(score.calls)) if score.calls else {}
        transform = self._transforms[self._level_of(score)]
        if transform is None:
            return EncodedRecord("", encode_score(score, sources), tuple(blobs.values()))
        score = copy_score(score)
        try:
            score = transform_record(score, transform)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            self._on_failure(error, "the text of a score")
            score = transform_record(score, _HASH_TEXT)
        kept = _carried(_said_in(score.calls))
        return EncodedRecord(
            "", encode_score(score, sources), tuple(blobs.get(name, blob) for name, blob in kept.items())
        )

    def _level_of(self, score: Score) -> Level:
        if score.group is not None:
            return self._recording.level_for_group(score.group)
        if self._is_sampled:
            return Level.FULL if score.rollout in self._full_rollouts else Level.NUMBERS
        return self._recording.level or Level.FULL

    def _remember(self, header: Header) -> None:
        if self._recording.level_for_group(header.group_key) is Level.FULL:
            self._full_rollouts[header.id] = None
            if len(self._full_rollouts) > _MAX_FULL_ROLLOUTS:
                self._full_rollouts.pop(next(iter(self._full_rollouts)), None)

    def _await_grade(self, rollout_builder: RolloutBuilder, recorded: TextSource) -> None:
        """Keep the text of a rollout as it was recorded, for as long as the runner keeps its builder."""
        rollout_builder.recorded_text = recorded
        members = self._awaiting_grade.setdefault(rollout_builder.header.group_key, [])
        members.append(weakref.ref(rollout_builder))
        if len(members).bit_count() == 1:  # at each power of two, so that looking through all stays cheap
            for reference in [reference for reference in members if reference() is None]:
                with contextlib.suppress(ValueError):  # another thread was quicker
                    members.remove(reference)
        if len(self._awaiting_grade) > _MAX_GROUPS:
            self._awaiting_grade.pop(next(iter(self._awaiting_grade)), None)

    def _sources_of(self, group: GroupKey | None) -> list[TextSource]:
        """The members of a group as they were recorded."""
        members = [] if group is None else [reference() for reference in self._awaiting_grade.pop(group, ())]
        return [member.recorded_text for member in members if member is not None and member.recorded_text is not None]


def _said_in(calls: Sequence[Call]) -> list[Message]:
    return [message for call in calls for message in (*call.prompt, call.reply) if message is not None]


def _carried(messages: Sequence[Message]) -> dict[str, Blob]:
    return {part.blob.name: part.blob for message in messages for part in message.parts if part.blob is not None}
