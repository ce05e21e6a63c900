"""The inside of a worker process: takes one call after the other, and answers each in JSON."""

import contextlib
import functools
import json
import os
import pickle
import queue
import resource
import signal
import threading
from collections.abc import Callable
from typing import IO, Any

_LARGEST_MEMORY = 4 * 2**30
_MAX_MESSAGE_CHARS = 2000
LENGTH_BYTES = 8


def with_length_prefix(data: bytes) -> bytes:
    """The bytes, after their number."""
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def main() -> None:
    """Serve the pipes at standard input and output until the caller is gone."""
    requests, replies = _own_pipes()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to a whole job, it is for the caller, whose end ends this
    with contextlib.suppress(ValueError, OSError):  # some systems do not bound it
        resource.setrlimit(resource.RLIMIT_AS, (_LARGEST_MEMORY, resource.RLIM_INFINITY))
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    while True:
        # Pickle is read in this direction only: the caller trusts itself, and not what comes back.
        prepare, function, args, seconds = pickle.loads(waiting.get())  # noqa: S301
        prepared = _answer(prepare)
        _write(replies, prepared)
        failed = prepared.startswith(b'{"error"')
        _write(replies, prepared if failed else _answer(functools.partial(_within, seconds, function, args)))


def _listen(requests: IO[bytes], waiting: "queue.SimpleQueue[bytes]") -> None:
    """Read calls as they come; once the caller is gone, end this process with whatever it is doing or has started."""
    try:
        while head := requests.read(LENGTH_BYTES):
            waiting.put(requests.read(int.from_bytes(head, "big")))
    finally:
        os.killpg(0, signal.SIGKILL)


def _write(replies: IO[bytes], data: bytes) -> None:
    replies.write(with_length_prefix(data))
    replies.flush()


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
        return json.dumps({"error": [type(error).__name__, str(error)[:_MAX_MESSAGE_CHARS]]}).encode()


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The two pipes, moved away from standard input and output, so that nothing that prints can write a reply."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    return requests, replies
