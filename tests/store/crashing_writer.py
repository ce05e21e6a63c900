"""Kills writers: for each order that comes in on standard input, forks a process that writes a run until it dies.

An order is one JSON object a line: the place of the run, and either `acknowledgements` and `seconds`, after which the
writer is killed from outside; or `operation`, the number of the operation on files at which it kills itself; or
`moment` and `occurrence`, the name of an operation and which of that name. The answer, one JSON object, says which ids
were acknowledged by `flush`, and at which operation it died, if any.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path

from rolltrace.errors import RunExistsError
from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.trace.blob import Blob
from rolltrace.trace.message import Message, Part

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "link")


class Saboteur:
    """Counts operations on files, and kills the process at a chosen one, whatever thread it is in."""

    def __init__(self, order, tell):
        self._moment = order.get("moment")
        self._left = order.get("operation") or order["occurrence"]
        self._tell = tell
        self._lock = threading.Lock()
        for name in OPERATIONS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name, original):
        def call(*arguments, **named):
            with self._lock:
                self._left -= self._moment in (None, f"{name} {_kind(_place(arguments[0]))}")
                if self._left == 0:
                    self._die(name, original, arguments)
            return original(*arguments, **named)

        return call

    def _die(self, name, original, arguments):
        """Does half of the operation if it can be split, and kills the process."""
        place = _place(arguments[0])
        if name == "write":
            original(arguments[0], arguments[1][: len(arguments[1]) // 2])
        elif name == "fsync" and Path(place).name.startswith("."):
            os.truncate(place, Path(place).stat().st_size // 2)
        self._tell(f"!{name} {_kind(place)}")
        os.kill(os.getpid(), signal.SIGKILL)


def _place(argument):
    return str(Path(f"/proc/self/fd/{argument}").readlink() if isinstance(argument, int) else argument)


def _kind(place):
    path = Path(place)
    if not path.suffixes and not path.name.startswith("."):
        return "blob" if path.name.startswith("sha256-") else path.name
    hidden = "unfinished " if path.name.startswith(".") else ""
    ending = "".join(path.suffixes[-2:]) if "jsonl" in path.name else ""
    return f"{hidden}{path.parent.name}{ending if not hidden else ''}"


def write(run, tell, rollouts):
    """Writes a run and reports each id that is flushed; with `rollouts=None` it never stops."""
    trace = Recording(segment_bytes=2000)
    with contextlib.suppress(RunExistsError):
        create_run(run, trace=trace)
    writer = create_run(run, join=True, trace=trace)
    unsafe = []
    number = 0
    while rollouts is None or number < rollouts:
        with writer.rollout(env="sums", task="t", group=str(number), index=0) as recorder:
            shown = Part("image", blob=Blob.of(f"image {number}".encode()))
            recorder.step([Message("user", f"{number} + {number}?" * (number % 7), parts=(shown,))], "4", 1.0)
        writer.score(recorder.id, "advantage", 0.5)
        unsafe.append(recorder.id)
        number += 1
        if number % 3 == 0 and writer.flush():
            for rollout in unsafe:
                tell(rollout)
            unsafe = []
    writer.close()


def perish(order, pipe):
    """The body of the forked process."""
    real_write = os.write

    def tell(text):
        real_write(pipe, f"{text}\n".encode())

    if "seconds" not in order:
        Saboteur(order, tell)
    write(order["run"], tell, 10 if "seconds" not in order else None)
    tell("!end")


def obey(order):
    """Forks a writer, waits until it is dead, and returns what it reported."""
    told, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(told)
            perish(order, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(pipe)
    heard = b""
    if "seconds" in order:
        while heard.count(b"\n") < order["acknowledgements"] and (data := os.read(told, 1 << 16)):
            heard += data
        select.select([], [], [], order["seconds"])
        os.kill(child, signal.SIGKILL)
    while data := os.read(told, 1 << 16):
        heard += data
    os.close(told)
    _, status = os.waitpid(child, 0)
    lines = heard.decode().splitlines()
    ends = [line[1:] for line in lines if line.startswith("!")]
    return {
        "acknowledged": [line for line in lines if not line.startswith("!")],
        "died_at": ends[0] if ends else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)  # noqa: T201
