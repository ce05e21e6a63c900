"""The criteria of a rubric, from a file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rolltrace.envs.dataset_rows import read_rows
from rolltrace.errors import DataError, InputError
from rolltrace.graders.rubric_grader import Criterion, criterion_names

_MARK = b"\xef\xbb\xbf"
"""What some editors put before UTF-8."""


def read_criteria(path: str | Path) -> tuple[Criterion, ...]:
    """The criteria of a file: one JSON list, or one JSON object a line."""
    if not _holds_list(path):
        criteria = read_rows(path, Criterion)
    else:
        try:
            criteria = msgspec.json.decode(Path(path).read_bytes().removeprefix(_MARK), type=list[Criterion])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path}: expected a list of criteria {{text, weight, name}}: {error}.") from error
    try:
        validate_criteria(criteria)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return tuple(criteria)


def validate_criteria(criteria: Sequence[Criterion]) -> None:
    """Refuse criteria that no rubric can be made of."""
    try:
        criterion_names(criteria)
    except InputError as error:
        reason = str(error)
        raise DataError(f"{reason[:1].lower()}{reason[1:]}") from error


def _holds_list(path: str | Path) -> bool:
    """Whether it is a JSON list; what cannot be read is left to whoever reads it in full."""
    try:
        return Path(path).read_bytes().removeprefix(_MARK).lstrip().startswith(b"[")
    except (OSError, ValueError):
        return False
