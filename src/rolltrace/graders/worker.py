"""A process that does work which may not end: killed when it exceeds its time, its memory or its reply's size."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import IO, Any, cast

from rolltrace.errors import DataError, EnvError, GraderError, InputError, UnknownNameError
from rolltrace.graders.worker_process import LENGTH_BYTES, with_length_prefix

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rolltrace.graders.worker_process import main; main()"
)
_KEPT = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV",
    "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "MPLCONFIGDIR",
}  # fmt: skip
_KEPT_PREFIXES = ("LC_", "PYTHON", "XDG_")
"""Of the caller's environment, what a program needs to start: other people's code gets none of its keys and tokens."""
_SET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Without a fixed hash seed, what is drawn from a set differs from process to process."""
_PREPARING_SECONDS = 300.0
_PATIENCE = 6.0
"""How many times its seconds of computing a call may take by the clock: the machine may be busy."""
_DYING_SECONDS = 1.0
"""How long a process may go on after its end of the pipe is closed."""
_LARGEST_REPLY = 16 * 2**20
_CHUNK = 2**20
_INPUT_ERRORS = {kind.__name__: kind for kind in (InputError, UnknownNameError, DataError)}


class WorkerProcess:
    """One process, and the pipes to it. One thread at a time gives it work; any may end it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=_environment(),
            start_new_session=True,  # an interrupt from the keyboard is for the caller
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._requests.fileno(), False)
        self._expired = False

    @property
    def alive(self) -> bool:
        """Whether it can be given work; one that was just told to end may still be there."""
        return not self._expired and self._process.poll() is None

    def call(self, request: bytes, seconds: float) -> Any:
        """What the function returned, or the error that says why there is nothing."""
        deadline = time.monotonic() + _PREPARING_SECONDS
        self._send(with_length_prefix(request), deadline)
        prepared = self._receive(deadline)
        if prepared is None:
            raise EnvError(f"A worker process did not start. {self._why_not(_PREPARING_SECONDS)}")
        reply = self._receive(time.monotonic() + seconds * _PATIENCE)
        if error := self._decoded(prepared).get("error"):
            raise EnvError(f"A worker process could not be prepared: {error[0]}: {error[1]}")
        if reply is None:
            raise GraderError(self._why_not(seconds))
        return _value(self._decoded(reply))

    def kill_now(self) -> None:
        """End what it is doing, with whatever it has started; whoever waits for it learns that."""
        self._expired = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it, and give back what it held."""
        self.kill_now()
        self._process.wait()
        self._close()

    def detach_after_fork(self) -> None:
        """In a forked process: leave it to the one that started it, which alone may then keep it alive."""
        self._process.poll()  # it is no child of this process, and is noted to have ended
        self._close()

    def _close(self) -> None:
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):
                pipe.close()

    def _send(self, data: bytes, deadline: float) -> None:
        """Write all of it, unless the process is gone."""
        left = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while left and self._ready(self._requests, select.POLLOUT, deadline):
                left = left[self._requests.write(left) or 0 :]

    def _receive(self, deadline: float) -> bytes | None:
        """What comes next; None where the process is gone, or did not answer in time and was ended."""
        head = self._read(LENGTH_BYTES, deadline)
        if head is None:
            return None
        length = int.from_bytes(head, "big")
        if length > _LARGEST_REPLY:
            self.kill_now()
            raise GraderError(f"Expected a reply of at most {_LARGEST_REPLY} bytes, got {length}.")
        return self._read(length, deadline)

    def _read(self, size: int, deadline: float) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            part = self._ready(self._replies, select.POLLIN, deadline) and self._replies.read(
                min(size - len(data), _CHUNK)
            )
            if not part:
                return None
            data += part
        return bytes(data)

    def _ready(self, pipe: IO[bytes], event: int, deadline: float) -> bool:
        """Whether the pipe can be used, or has been closed, by then; otherwise the process is ended."""
        poll = select.poll()
        poll.register(pipe, event)
        if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return True
        self.kill_now()
        return False

    def _decoded(self, data: bytes) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(data)
        except (ValueError, RecursionError) as error:
            self.kill_now()
            raise GraderError(f"Expected a reply in JSON, got {data[:100]!r}.") from error
        return reply

    def _why_not(self, seconds: float) -> str:
        """Why there is no reply."""
        expired = self._expired
        try:
            code = self._process.wait(_DYING_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_now()
            return "The process that worked on it closed its pipe."
        if expired or code == -signal.SIGPROF:
            return f"It took more than {seconds:g} seconds, and was stopped."
        return f"The process that worked on it ended with code {code}."


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    return kept | _SET


def _value(reply: dict[str, Any]) -> Any:
    if "error" not in reply:
        return reply["value"]
    kind, message = reply["error"]
    raise _INPUT_ERRORS[kind](message) if kind in _INPUT_ERRORS else GraderError(f"{kind}: {message}")
