"""Makes the lines of a run: as much of each rollout and score as is to be recorded."""

import contextlib
import weakref
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rolltrace.store.recording import Level, Recording
from rolltrace.trace.blob import Blob
from rolltrace.trace.codec import decode_rollout, decode_score, encode_rollout, encode_score
from rolltrace.trace.message import Message
from rolltrace.trace.quote import TextSource, text_source
from rolltrace.trace.rollout import Call, Outcome, Rollout
from rolltrace.trace.rollout_builder import EncodedRecord, RolloutBuilder
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Status
from rolltrace.trace.text_transform import HashText, RedactText, transform_rollout, transform_score

_WITHHOLDING = HashText()
_MAX_FULL_ROLLOUTS = 100_000
"""Rollouts known to belong to a group that is kept in full; of older ones, late scores are kept as numbers."""
_MAX_GROUPS = 4_000
"""Groups whose members are remembered until they are graded; calls about older ones are stored whole."""


class Redactor:
    """Hashes and redacts text. If redacting fails, the text is hashed and `on_failure` is called."""

    def __init__(self, recording: Recording, on_failure: Callable[[Exception, str], None]) -> None:
        self._recording = recording
        self._redaction = None if recording.redact is None else RedactText(recording.redact)
        self._on_failure = on_failure
        self._is_sampled = recording.level is Level.FULL and 0 < (recording.fraction or 0) < 1
        self._full_rollouts: dict[str, None] = {}
        self._awaiting_grade: dict[GroupKey, list[weakref.ref[RolloutBuilder]]] = {}
        """Rollouts that wait for their group's grade: its calls can quote them as they were recorded."""

    def encode_rollout(self, rollout_builder: RolloutBuilder, outcome: Outcome) -> EncodedRecord:
        """A rollout that has ended."""
        level = self._recording.level_for_group(rollout_builder.header.group_key)
        line = rollout_builder.encode(outcome, calls=self._recording.calls is not False)
        self._remember(line.id, level)
        awaits_grade = outcome["reward"] is None and outcome["status"] is Status.OK
        if level is Level.FULL and self._redaction is None:
            if awaits_grade:
                self._await_grade(rollout_builder, rollout_builder.text_source._replace(rollout=rollout_builder.id))
            return line
        line, rollout = self._transform(line, decode_rollout(line.data), level)
        if awaits_grade:
            self._await_grade(rollout_builder, text_source(rollout, rollout.id))
        return line

    def encode_imported(self, line: EncodedRecord) -> EncodedRecord:
        """A line that was finished elsewhere, with as much of its text as is to be recorded."""
        recording = self._recording
        is_all = recording.level is Level.FULL and (recording.fraction is None or recording.fraction >= 1)
        if is_all and recording.calls is not False and not self._redaction:
            return line
        rollout = decode_rollout(line.data)
        level = recording.level_for_group(rollout.group_key)
        self._remember(line.id, level)
        if recording.calls is False and rollout.calls:
            rollout = replace(rollout, calls=())
        elif level is Level.FULL and not self._redaction:
            return line
        return self._transform(line, rollout, level)[0]

    def encode_score(self, score: Score) -> EncodedRecord:
        """A late fact about a rollout or a group, as much of it as is recorded of that."""
        if self._recording.calls is False and score.calls:
            score = replace(score, calls=())
        sources = self._sources_of(score.group) if score.calls else []
        blobs = _carried(_said_in(score.calls)) if score.calls else {}
        withholds = self._hashes_text(score)
        if not withholds and self._redaction is None:
            return EncodedRecord("", encode_score(score, sources), tuple(blobs.values()))
        score = decode_score(encode_score(score, quotes=False))
        if self._redaction is not None:
            try:
                score = transform_score(score, self._redaction)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                self._on_failure(error, "the text of a score")
                withholds = True
        if withholds:
            score = transform_score(score, _WITHHOLDING)
        kept = _carried(_said_in(score.calls))
        return EncodedRecord(
            "", encode_score(score, sources), tuple(blobs.get(name, blob) for name, blob in kept.items())
        )

    def _hashes_text(self, score: Score) -> bool:
        if not self._is_sampled:
            return self._recording.level is Level.NUMBERS or (self._recording.fraction or 0) < 1
        if (key := score.group) is not None:
            return self._recording.level_for_group(key) is not Level.FULL
        return score.rollout not in self._full_rollouts

    def _remember(self, rollout: str, level: Level) -> None:
        if self._is_sampled and level is Level.FULL:
            self._full_rollouts[rollout] = None
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

    def _transform(self, line: EncodedRecord, rollout: Rollout, level: Level) -> tuple[EncodedRecord, Rollout]:
        if self._redaction is not None:
            try:
                rollout = transform_rollout(rollout, self._redaction)
            except Exception as error:  # noqa: BLE001 - as above
                self._on_failure(error, "the text of a rollout")
                level = Level.NUMBERS
        if level is Level.NUMBERS:
            rollout = transform_rollout(rollout, _WITHHOLDING)
        return EncodedRecord(line.id, encode_rollout(rollout), _blobs_of(rollout, line.blobs)), rollout


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
