"""Every exception that Rolltrace raises on purpose.

    RolltraceError
    ├── InputError            (ValueError)        an argument or a file is wrong
    │   ├── UnknownNameError  (LookupError)       no env, policy or argument of that name
    │   ├── DataError                             a line of a data file is wrong
    │   └── RunExistsError    (FileExistsError)   a run is never overwritten
    ├── RunNotFoundError      (FileNotFoundError) there is no run at that path
    ├── StorageError          (OSError)           a disk or file system failed
    │   └── TempFolderError                       the temporary folder is full, or cannot be written to
    ├── QueryTimeoutError     (TimeoutError)      a statement exceeded its time limit
    ├── RecordError           (ValueError)        the bytes are not a record
    │   ├── ChecksumError                         the bytes have changed since they were written
    │   ├── OlderVersionError                     written in a version of the format that was never released
    │   └── NewerVersionError                     written by a newer version of the format
    ├── EnvError              (RuntimeError)      an environment was misused or broke its contract
    ├── PolicyError           (RuntimeError)      a policy could not answer
    │   ├── ContextOverflowError                  the prompt does not fit the policy's context
    │   ├── LimitReachedError                     the policy ends the rollout at a limit
    │   ├── RecordEndedError                      a replayed record has no further answer
    │   └── RoleError                             the policy of another role did not answer
    ├── GraderError           (RuntimeError)      a grader gave no usable grade
    │   └── NotGradableError                      the rollout lacks what the grader needs, such as a reference answer
    ├── WorkerError           (RuntimeError)      a call in a worker process failed or exceeded a limit
    └── ToolError             (RuntimeError)      a tool call failed; its text goes to the model

Each carries its message as the only argument, so that each pickles.
"""

import difflib
from collections.abc import Iterable

_MAX_LISTED = 40
"""An error about an unknown name lists all known names up to this number, otherwise only similar ones."""


class RolltraceError(Exception):
    """The base of every error here."""


class InputError(RolltraceError, ValueError):
    """An argument or a file is wrong."""


class UnknownNameError(InputError, LookupError):
    """No env, policy or argument has that name."""

    @classmethod
    def for_name(cls, kind: str, name: str, known: Iterable[str]) -> "UnknownNameError":
        """An error with the unknown name, the most similar known name, and the known names."""
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
    """There is no run at that path."""


class StorageError(RolltraceError, OSError):
    """A disk or file system failed: it is full, cannot be written to, or does not respond."""


class TempFolderError(StorageError):
    """The temporary folder is full, or cannot be written to."""


class QueryTimeoutError(RolltraceError, TimeoutError):
    """A statement exceeded its time limit."""


class RecordError(RolltraceError, ValueError):
    """The bytes are not a record."""


class ChecksumError(RecordError):
    """The bytes have changed since they were written."""


class OlderVersionError(RecordError):
    """The record was written in a version of the format that was never released."""


class NewerVersionError(RecordError):
    """The record was written by a newer version of the format."""


class EnvError(RolltraceError, RuntimeError):
    """An environment was misused, or broke its contract."""


class PolicyError(RolltraceError, RuntimeError):
    """A policy could not answer."""

    raw: str | None = None
    """The raw reply, if there was one, for the record."""


class ContextOverflowError(PolicyError):
    """The prompt does not fit the policy's context."""


class LimitReachedError(PolicyError):
    """The policy ends the rollout at a limit, without a failure."""

    stop_reason: str = "timeout"
    """The stop reason of the rollout."""


class RecordEndedError(PolicyError):
    """A replayed record has no further answer."""


class RoleError(PolicyError):
    """The policy of another role, such as grader, answerer or opponent, did not answer."""


class GraderError(RolltraceError, RuntimeError):
    """A grader gave no usable grade."""


class NotGradableError(GraderError):
    """The rollout lacks what the grader needs, such as a reference answer; `rolltrace regrade` skips it."""


class WorkerError(RolltraceError, RuntimeError):
    """A call in a worker process failed, or exceeded its time, its memory or the size of a reply."""

    timed_out: bool = False


class ToolError(RolltraceError, RuntimeError):
    """A tool call failed; the text goes to the model as the tool's answer."""
