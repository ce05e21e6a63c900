"""What an audit found, with the evidence to look it up by."""

from enum import StrEnum
from typing import Any

import msgspec


class Severity(StrEnum):
    """How bad it is; what is only worth knowing fails no check."""

    ERROR = "error"
    """Something is lost or wrong: numbers drawn from the run may be wrong."""
    WARNING = "warning"
    """Something is incomplete, or looks like a mistake."""
    INFO = "info"
    """Worth knowing; nothing is wrong."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where."""

    message: str
    """What was expected and what was found, in a sentence."""
    rollout: str | None = None
    """The id of the rollout it is about."""
    address: str | None = None
    """Where that rollout or its group stands in the run: SPLIT/ENV/ITERATION/GROUP/INDEX."""
    session: str | None = None
    file: str | None = None
    """From the run's directory on; a segment is named without endings, which sealing changes."""
    offset: int | None = None
    """The first byte of the line, uncompressed."""
    data: dict[str, Any] = {}
    """The numbers and names behind it."""
