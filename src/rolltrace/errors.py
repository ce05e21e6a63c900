"""Every exception that Rolltrace raises on purpose.

    RolltraceError
    ├── InputError            (ValueError)        what a person or a file gave is wrong
    │   ├── UnknownNameError  (LookupError)       no env, policy or argument of that name
    │   ├── DataError                             a line of a data file is wrong
    │   └── RunExistsError    (FileExistsError)   a run is never overwritten
    ├── RunNotFoundError      (FileNotFoundError) there is no run at that place
    ├── StorageError          (OSError)           a disk or file system failed
    ├── QueryTimeoutError     (TimeoutError)      a statement took longer than it may
    ├── RecordError           (ValueError)        bytes that are not a record
    │   ├── ChecksumError                         the bytes are not those that were written
    │   ├── OlderVersionError                     written in a version of the format that was never released
    │   └── NewerVersionError                     written by a newer version of the format
    ├── EnvError              (RuntimeError)      an environment was misused or broke its contract
    ├── PolicyError           (RuntimeError)      a policy could not answer
    │   ├── ContextOverflowError                  the prompt does not fit the policy's context
    │   └── RoleError                             whoever plays another role of an env did not answer
    ├── GraderError           (RuntimeError)      a grader gave no usable grade
    ├── WorkerError           (RuntimeError)      a call in a worker process failed or exceeded a limit
    └── ToolError             (RuntimeError)      a tool call failed; its text goes to the model

Each carries its message as the only argument, so that each pickles.
"""

import difflib
from collections.abc import Iterable

_MAX_LISTED = 40
"""So many names are all told where one is unknown; of more, those that are near."""


class RolltraceError(Exception):
    """The base of every error here."""


class InputError(RolltraceError, ValueError):
    """What a person or a file gave is wrong."""


class UnknownNameError(InputError, LookupError):
    """No env, policy or argument has that name."""

    @classmethod
    def for_name(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """Name what was asked for, the nearest known name, and all known names."""
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=_MAX_LISTED, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        listed = names if len(names) <= _MAX_LISTED else near
        more = f", and {len(names) - len(listed)} others" if len(listed) < len(names) else ""
        listing = f" Known: {', '.join(listed)}{more}." if listed else f" {len(names)} are known." if names else ""
        return cls(f"There is no {kind} {name!r}.{hint}{listing}")


class DataError(InputError):
    """A line of a data file is wrong."""


class RunExistsError(InputError, FileExistsError):
    """A run is never overwritten."""


class RunNotFoundError(RolltraceError, FileNotFoundError):
    """There is no run at that place."""


class StorageError(RolltraceError, OSError):
    """A disk or file system failed: it is full, cannot be written to, or gave no answer."""


class QueryTimeoutError(RolltraceError, TimeoutError):
    """A statement took longer than it may."""


class RecordError(RolltraceError, ValueError):
    """Bytes that are not a record."""


class ChecksumError(RecordError):
    """The bytes are not those that were written."""


class OlderVersionError(RecordError):
    """The record was written in a version of the format that was never released."""


class NewerVersionError(RecordError):
    """The record was written by a newer version of the format."""


class EnvError(RolltraceError, RuntimeError):
    """An environment was misused, or broke its contract."""


class PolicyError(RolltraceError, RuntimeError):
    """A policy could not answer."""

    raw: str | None = None
    """What it answered instead, where there was something; the record keeps it."""


class ContextOverflowError(PolicyError):
    """The prompt does not fit the policy's context."""


class RoleError(PolicyError):
    """Whoever plays another role of an env, such as its grader, answerer or opponent, did not answer."""


class GraderError(RolltraceError, RuntimeError):
    """A grader gave no usable grade."""


class WorkerError(RolltraceError, RuntimeError):
    """A call in a worker process failed, or exceeded its time, its memory or the size of a reply."""

    timed_out: bool = False


class ToolError(RolltraceError, RuntimeError):
    """A tool call failed; the text goes to the model as the tool's answer."""
