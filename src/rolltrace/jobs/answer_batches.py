"""Grades the answers of many stored rollouts at once, in worker processes, and reads only what a check needs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolltrace.errors import NotGradableError, RecordError, RolltraceError
from rolltrace.graders.answer_grader import AnswerGrader, AnswerInput
from rolltrace.query.record_reader import LineReader
from rolltrace.query.regrade_scope import LineRow
from rolltrace.store.cursor import LineLocation
from rolltrace.store.reader import RunReader
from rolltrace.store.run_files import RunFiles
from rolltrace.trace.codec import check_checksum
from rolltrace.trace.stop_reasons import Termination


class _Message(msgspec.Struct, gc=False):
    content: str = ""


class _Step(msgspec.Struct, gc=False):
    response: int | _Message
    extra: dict[str, Any] = {}
    termination: Termination | None = None


class _Line(msgspec.Struct):
    """The fields of a rollout's line that an answer check needs."""

    id: str
    steps: list[_Step]
    messages: list[_Message]
    task_data: dict[str, Any] = {}
    env_args: dict[str, Any] = {}


class BatchResult(msgspec.Struct, array_like=True, gc=False):
    """The grade of one rollout, or why it has none."""

    rollout: str
    reward: float | None = None
    reward_data: Mapping[str, Any] = {}
    extra: Mapping[str, Any] = {}
    skipped: str | None = None


def grade_batch(files: RunFiles, grader: AnswerGrader, rows: Sequence[LineRow]) -> bytes:
    """The results for the rollouts at these locations, as a JSON array."""
    reader = RunReader(files)
    with LineReader(reader) as lines:
        return msgspec.json.encode([_grade(grader, reader, lines, row) for row in rows])


def decode_results(data: bytes) -> list[BatchResult]:
    """The results that `grade_batch` returned."""
    return msgspec.json.decode(data, type=list[BatchResult])


def _grade(grader: AnswerGrader, reader: RunReader, lines: LineReader, row: LineRow) -> BatchResult:
    rollout = row[1]
    try:
        grade = grader.grade_quickly(_read(reader, lines, row))
    except NotGradableError as error:
        return BatchResult(rollout, skipped=str(error))
    except (RolltraceError, OSError):
        return BatchResult(rollout, skipped="its line cannot be read")
    return BatchResult(rollout, grade.reward, grade.reward_data, grade.extra)


def _read(reader: RunReader, lines: LineReader, row: LineRow) -> AnswerInput:
    """What the check needs of a line; if its file was changed since, the rollout is looked up by id."""
    _, rollout, file, offset, length = row
    try:
        line = lines.line(LineLocation(file, offset, length))
        check_checksum(line)
        record = _decoder.decode(line)
        if record.id == rollout:
            last = record.steps[-1]
            text = record.messages[last.response] if isinstance(last.response, int) else last.response
            is_well_formed = last.termination is None or last.termination.well_formed
            return AnswerInput(text.content, is_well_formed, last.extra, record.task_data, record.env_args)
    except (OSError, RecordError, msgspec.MsgspecError, IndexError):
        pass
    return AnswerInput.of_rollout(reader.get(rollout))


_decoder = msgspec.json.Decoder(_Line)
