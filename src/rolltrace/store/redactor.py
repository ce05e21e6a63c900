"""Encodes the lines of a run, with as much of the text of each rollout and score as is to be recorded."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from rolltrace.store.recording import Level, Recording
from rolltrace.trace.blob import Blob
from rolltrace.trace.call import Call
from rolltrace.trace.codec import copy_score, decode_rollout, encode_rollout, encode_score
from rolltrace.trace.message import Message
from rolltrace.trace.quote import TextSource
from rolltrace.trace.rollout import Header, Outcome, Rollout
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Status
from rolltrace.trace.text_transform import BothTransforms, HashText, RedactText, TextTransform, transform_record

Record = TypeVar("Record", Rollout, Score)

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
        self._is_sampled = recording.level is Level.FULL and 0 < (recording.fraction or 0) < 1
        self._usual_transform = self._transform(is_hashed=self._may_hash_text())
        self._full_rollouts: dict[str, None] = {}
        self._awaiting_grade: dict[GroupKey, list[weakref.ref[RolloutBuilder]]] = {}
        """Rollouts that wait for their group's grade: its calls can quote them as they were recorded."""

    def transform_for(self, header: Header) -> TextTransform | None:
        """How the text of a rollout is transformed before it is recorded; None: not at all."""
        return self._transform(is_hashed=not self._is_full(header)) if self._is_sampled else self._usual_transform

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

    def encode_imported(self, line: EncodedRecord) -> EncodedRecord:
        """A line that was finished elsewhere, with as much of its text as is to be recorded."""
        if self._recording.calls is not False and self._redaction is None and not self._may_hash_text():
            return line
        rollout = decode_rollout(line.data)
        self._remember(rollout)
        transform = self.transform_for(rollout)
        drops_calls = self._recording.calls is False and bool(rollout.calls)
        if transform is None and not drops_calls:
            return line
        if drops_calls:
            rollout = replace(rollout, calls=())
        if transform is not None:
            rollout = self._transformed(rollout, transform, "the text of a rollout")
        return EncodedRecord(line.id, encode_rollout(rollout), _blobs_of(rollout, line.blobs))

    def encode_score(self, score: Score) -> EncodedRecord:
        """A late fact about a rollout or a group, as much of it as is recorded of that."""
        if self._recording.calls is False and score.calls:
            score = replace(score, calls=())
        sources = self._sources_of(score.group) if score.calls else []
        blobs = _carried(_said_in(score.calls)) if score.calls else {}
        transform = self._transform(is_hashed=self._hashes_text(score))
        if transform is None:
            return EncodedRecord("", encode_score(score, sources), tuple(blobs.values()))
        score = self._transformed(copy_score(score), transform, "the text of a score")
        kept = _carried(_said_in(score.calls))
        return EncodedRecord(
            "", encode_score(score, sources), tuple(blobs.get(name, blob) for name, blob in kept.items())
        )

    def _transform(self, *, is_hashed: bool) -> TextTransform | None:
        if not is_hashed:
            return self._redaction
        return _HASH_TEXT if self._redaction is None else BothTransforms(self._redaction, _HASH_TEXT)

    def _transformed(self, record: Record, transform: TextTransform, what: str) -> Record:
        """The record with its text transformed, or hashed if the user's function fails."""
        try:
            return transform_record(record, transform)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            self._on_failure(error, what)
            return transform_record(record, _HASH_TEXT)

    def _may_hash_text(self) -> bool:
        return self._recording.level is not Level.FULL or (self._recording.fraction or 0) < 1

    def _hashes_text(self, score: Score) -> bool:
        if not self._is_sampled:
            return self._may_hash_text()
        if (key := score.group) is not None:
            return self._recording.level_for_group(key) is not Level.FULL
        return score.rollout not in self._full_rollouts

    def _is_full(self, header: Header) -> bool:
        if not self._is_sampled:
            return not self._may_hash_text()
        return self._recording.level_for_group(header.group_key) is Level.FULL

    def _remember(self, header: Header) -> None:
        if self._is_sampled and self._is_full(header):
            self._full_rollouts[header.id] = None
            if len(self._full_rollouts) > _MAX_FULL_ROLLOUTS:
                self._full_rollouts.pop(next(iter(self._full_rollouts)), None)

    def _await_grade(self, rollout_builder: RolloutBuilder, recorded: TextSource) -> None:
        """Keep the text of a rollout as it was recorded, for as long as the runner keeps the draft."""
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


def _blobs_of(rollout: Rollout, blobs: tuple[Blob, ...]) -> tuple[Blob, ...]:
    """The blobs that the rollout's messages name, with their bytes where anybody has them."""
    messages = [*rollout.messages, *(step.response for step in rollout.steps if not isinstance(step.response, int))]
    messages += _said_in(rollout.calls)
    known = {blob.name: blob for blob in blobs}
    return tuple(known.get(name, blob) for name, blob in _carried(messages).items())


def _said_in(calls: Sequence[Call]) -> list[Message]:
    return [message for call in calls for message in (*call.prompt, call.reply) if message is not None]


def _carried(messages: Sequence[Message]) -> dict[str, Blob]:
    return {part.blob.name: part.blob for message in messages for part in message.parts if part.blob is not None}
