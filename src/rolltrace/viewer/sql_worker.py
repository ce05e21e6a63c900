"""A process that runs what people write in SQL, so that no statement can take the server's memory or time.

It reads tasks from standard input and writes answers to standard output, each with its length before it.
"""

import contextlib
import os
import struct
import sys
from typing import BinaryIO

import msgspec

from rolltrace.viewer.api import Api, RequestParameters
from rolltrace.viewer.http_errors import http_error_of
from rolltrace.viewer.open_runs import OpenRuns

MAX_MEMORY = 3 << 29
"""How many bytes the process may ask for, stacks of threads included; more is refused, or ends it and nothing else."""

LENGTH = struct.Struct(">Q")


class SqlTask(msgspec.Struct, frozen=True):
    """A question and its parameters."""

    question: str
    parameters: tuple[tuple[str, str], ...]


def main(folder: str) -> None:
    """Answer until there is nobody left who asks."""
    _limit_memory()
    answers, tasks = _own_output(), sys.stdin.buffer
    library = OpenRuns(folder, room=1)
    questions = Api(library)
    with contextlib.closing(library):
        while (body := _read(tasks)) is not None:
            task = msgspec.json.decode(body, type=SqlTask)
            try:
                answer = b"+" + questions.handle(task.question, RequestParameters(task.parameters))
            except MemoryError:
                return  # whoever asked is told why it ended
            except Exception as error:  # noqa: BLE001 - whatever it is, the next question is answered
                answer = b"-" + msgspec.json.encode(http_error_of(error))
            answers.write(LENGTH.pack(len(answer)) + answer)
            answers.flush()


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))


def _own_output() -> BinaryIO:
    """Standard output for answers alone: what anything else prints goes to standard error."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return own


def _read(tasks: BinaryIO) -> bytes | None:
    head = tasks.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return tasks.read(LENGTH.unpack(head)[0])


if __name__ == "__main__":
    main(sys.argv[1])
