"""The inside of a worker process: takes one call after the other, and answers each in JSON."""

import contextlib
import functools
import json
import os
import pickle
import resource
import signal
from collections.abc import Callable
from typing import IO, Any

_LARGEST_MEMORY = 4 * 2**30
_LONGEST_MESSAGE = 2000
_LENGTH_BYTES = 8


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write so many bytes, after their number."""
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """What one `write_frame` wrote; None where the other end is gone."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    data = stream.read(length)
    return data if len(data) == length else None


def main() -> None:
    """Serve the pipes at standard input and output until the caller is gone."""
    requests, replies = _own_pipes()
    with contextlib.suppress(ValueError, OSError):  # some systems do not bound it
        resource.setrlimit(resource.RLIMIT_AS, (_LARGEST_MEMORY, resource.RLIM_INFINITY))
    while (request := read_frame(requests)) is not None:
        # Pickle is read in this direction only: the caller trusts itself, and not what comes back.
        prepare, function, args, seconds = pickle.loads(request)  # noqa: S301
        prepared = _answer(prepare)
        write_frame(replies, prepared)
        failed = prepared.startswith(b'{"error"')
        write_frame(replies, prepared if failed else _answer(functools.partial(_within, seconds, function, args)))


def _within(seconds: float, function: Any, args: Any) -> Any:
    """Call it; when it has computed for longer, the system ends this process, whatever it is doing."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(function: Callable[[], Any]) -> bytes:
    try:
        return json.dumps({"value": function()}, default=repr).encode()
    except BaseException as error:  # noqa: BLE001 - foreign code on hostile text may raise anything
        return json.dumps({"error": [type(error).__name__, str(error)[:_LONGEST_MESSAGE]]}).encode()


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The two pipes, moved away from standard input and output, so that nothing that prints can write a reply."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    return requests, replies
