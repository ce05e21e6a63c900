"""The main function of a worker process: runs one call after the other, and replies to each in JSON or bytes."""

import contextlib
import functools
import json
import math
import os
import pickle
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

_MAX_MESSAGE_CHARS = 2000
LENGTH_BYTES = 8
RAW = b"="
"""The first byte of a reply of bytes; any other reply is a JSON object."""


def with_length_prefix(data: bytes) -> bytes:
    """The data with its length before it."""
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def main() -> None:
    """Serve the pipes at standard input and output until the parent closes them."""
    requests, replies = _own_pipes()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler sends it to the whole job; the parent handles it
    _limit_memory(json.loads(sys.argv[2]))
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    while True:
        # Only the parent sends pickles. It never unpickles a reply, which hostile code may have written.
        prepare, function, args, cpu_seconds = pickle.loads(waiting.get())  # noqa: S301
        prepared = _reply(prepare)
        _write(replies, prepared)
        failed = prepared.startswith(b'{"error"')
        _write(replies, prepared if failed else _reply(functools.partial(_call, cpu_seconds, function, args)))


def _limit_memory(size: int | None) -> None:
    """Limit private memory, which does not include mapped libraries."""
    if size is not None:
        with contextlib.suppress(ValueError, OSError):  # not every system has this limit
            resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _listen(requests: IO[bytes], waiting: "queue.SimpleQueue[bytes]") -> None:
    """Read requests; when the parent has closed the pipe, kill this process and everything that it started."""
    try:
        while head := requests.read(LENGTH_BYTES):
            waiting.put(requests.read(int.from_bytes(head, "big")))
    finally:
        os.killpg(0, signal.SIGKILL)


def _write(replies: IO[bytes], data: bytes) -> None:
    replies.write(with_length_prefix(data))
    replies.flush()


def _call(cpu_seconds: float, function: Any, args: Any) -> Any:
    """Call the function; the system kills this process when it has used its CPU seconds."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, 0 if cpu_seconds == math.inf else cpu_seconds)
    try:
        return function(*args)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _reply(function: Callable[[], Any]) -> bytes:
    try:
        value = function()
        return RAW + value if isinstance(value, bytes) else json.dumps({"value": value}, default=repr).encode()
    except BaseException as error:  # noqa: BLE001 - foreign code on hostile text may raise anything
        return json.dumps({"error": [type(error).__name__, str(error)[:_MAX_MESSAGE_CHARS]]}).encode()


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Move the two pipes away from standard input and output, so that code that prints cannot write a reply."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(devnull, standard)
    return requests, replies
