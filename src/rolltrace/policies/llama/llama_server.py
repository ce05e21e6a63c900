"""llama.cpp server processes: one for each set of settings, shared by all policies with these settings."""

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from typing import IO, Any, cast
from weakref import WeakKeyDictionary

from rolltrace.errors import PolicyError
from rolltrace.policies.llama.server_settings import MAX_SERVER_REQUESTS, ServerSettings
from rolltrace.policies.llama.shared_servers import ServerAddress, SharedServerFiles
from rolltrace.processes.child_processes import START_LOCK, register_owner

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rolltrace.policies.llama.server_main import main; main()"
)
_REASON = re.compile(r"error loading model: (.*)")
_ERROR_LINE = re.compile(r"^\S+ E (?:\S+ +\S+: )?(.*)$", re.MULTILINE)
_MAX_REASON_CHARS = 500
READY_SECONDS = 600.0
"""How long the weights may take to load: large files may be on a slow disk."""
_POLL_SECONDS = 0.1
"""How often a process looks whether another one has started a shared server."""
_EXIT_SECONDS = 1.0
"""How long a process may take to exit after its connections are closed."""


class LoopSemaphores:
    """One semaphore per event loop: `async with semaphores.for_this_loop():`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def for_this_loop(self) -> asyncio.Semaphore:
        """The semaphore of the running event loop."""
        return self._loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._number))


class LlamaServer:
    """A server of local weights. It exits when it is stopped, and when this process exits, even if that is killed.

    It listens on loopback only, and requires a key that it gets through a pipe, so that other users of the machine
    cannot use it.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.key = secrets.token_urlsafe(32)
        self.address = ""
        self.request_slots = LoopSemaphores(MAX_SERVER_REQUESTS)
        """Limits the requests in flight; all policies of this server share it."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the server is ready, or has failed
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self._stdin = cast("IO[bytes]", self._process.stdin)
        self._stdout = cast("IO[bytes]", self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the weights are loaded and the address is known."""
        timed_out = threading.Event()

        def kill() -> None:
            timed_out.set()
            self._process.kill()  # so that reading its first line returns

        timer = threading.Timer(READY_SECONDS, kill)
        timer.daemon = True
        timer.start()
        status = self._read_status()
        timer.cancel()
        if timed_out.is_set() or "address" not in status:
            late = f"it was not ready within {READY_SECONDS:g} s, and was stopped" if timed_out.is_set() else None
            reason = late or self._why_not_ready(status.get("error"))
            self.stop()
            raise PolicyError(f"llama.cpp cannot serve {self.settings.weights}: {reason}")
        self._errors.close()
        self.address = status["address"]

    def _read_status(self) -> dict[str, Any]:
        """Send the settings, and read the line with the address or an error."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(json.dumps(self.settings.for_process(self.key)).encode() + b"\n")
            self._stdin.flush()
        line = self._stdout.readline()
        status: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return status

    def exit_reason(self) -> str | None:
        """How the process ended; None if it still runs after a second."""
        try:
            code = self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def stop(self) -> None:
        """Kill it, and release its pipes and files."""
        self._process.kill()
        self._process.wait()
        self._close()

    def detach_after_fork(self) -> None:
        """In a forked process: close the pipes, so that only the parent keeps it alive."""
        self._process.poll()  # it is not a child of this process, so Popen notes that it has ended
        self._close()

    def _close(self) -> None:
        for file in (self._stdin, self._stdout, self._errors):
            with contextlib.suppress(OSError):
                file.close()

    def _why_not_ready(self, error: str | None) -> str:
        """The error in llama.cpp's log, otherwise the exception, otherwise how the process ended."""
        self._errors.seek(0)
        log = self._errors.read().decode("utf-8", "replace")
        line = _REASON.search(log) or _ERROR_LINE.search(log)
        if line:
            return line[1][:_MAX_REASON_CHARS]
        if error:
            return error[:_MAX_REASON_CHARS]
        return f"its process {self.exit_reason() or 'closed its pipe'}"


class SharedLlamaServer:
    """A server that another process of this machine has started."""

    def __init__(self, server: ServerAddress, files: SharedServerFiles) -> None:
        self.address = server.address
        self.key = server.key
        self.request_slots = LoopSemaphores(MAX_SERVER_REQUESTS)
        """Limits the requests in flight of this process."""
        self._server = server
        self._files = files

    @property
    def alive(self) -> bool:
        """Whether that process lives, and the server is still its server."""
        return not self._files.is_owned() and self._files.read() == self._server

    def exit_reason(self) -> str | None:
        """How it ended; None if it has not."""
        return None if self.alive else "was ended by the process that had started it"


AnyServer = LlamaServer | SharedLlamaServer


class LlamaServers:
    """The servers of this process. Each is started when a policy first needs it."""

    def __init__(self) -> None:
        self._by_settings: dict[ServerSettings, Future[AnyServer]] = {}
        self._started: set[LlamaServer] = set()
        self._job = ""
        self._shared: dict[ServerSettings, SharedServerFiles] = {}
        register_owner(self)

    def share(self, job: str) -> None:
        """Share servers with the other processes of this machine that name the same job."""
        with START_LOCK:
            self._job = job
            self._forget_ready()

    def stop_sharing(self) -> None:
        """End the sharing, and remove its files. A server of another process is not used any more."""
        with START_LOCK:
            self._job = ""
            self._forget_ready()
            shared, self._shared = self._shared, {}
        for files in shared.values():
            files.leave()

    def _forget_ready(self) -> None:
        """Make the next `get` look again for a server. One of this process that runs is used again."""
        self._by_settings = {settings: server for settings, server in self._by_settings.items() if not server.done()}

    def get(self, settings: ServerSettings) -> Future[AnyServer]:
        """The server with these settings, once it is ready. One that has exited is started again."""
        with START_LOCK:
            known = self._by_settings.get(settings)
            if known is not None and not _has_ended(known):
                return known
            ready: Future[AnyServer] = Future()
            ready.set_running_or_notify_cancel()  # a caller that is cancelled does not cancel it for others
            self._by_settings[settings] = ready
        threading.Thread(target=self._start, args=(settings, ready), name="rolltrace-local", daemon=True).start()
        return ready

    def stop(self) -> None:
        """Stop all of them; a later `get` starts new ones."""
        with START_LOCK:
            self._by_settings.clear()
            servers = list(self._started)
            self._started.clear()
        for server in servers:
            server.stop()

    def detach_after_fork(self) -> None:
        """In a forked process: leave the servers to the parent; this process starts its own."""
        for server in self._started:
            server.detach_after_fork()
        self._started.clear()
        self._by_settings.clear()

    def _start(self, settings: ServerSettings, ready: Future[AnyServer]) -> None:
        try:
            job = self._job
            server = self._share_or_start(job, settings, ready) if job else self._start_here(settings, ready)
        except BaseException as error:  # noqa: BLE001 - the future raises it in the callers
            ready.set_exception(error)
        else:
            ready.set_result(server)

    def _share_or_start(self, job: str, settings: ServerSettings, ready: Future[AnyServer]) -> AnyServer:
        with START_LOCK:
            files = self._shared.setdefault(settings, SharedServerFiles(job, settings))
        while not files.is_owned():
            if (shared := files.read()) is not None:
                return SharedLlamaServer(shared, files)
            time.sleep(_POLL_SECONDS)
        try:
            files.write(None)
            server = self._start_here(settings, ready)
            files.write(ServerAddress(server.address, server.key))
        except BaseException:
            files.release()  # so that another process tries, and has an error of its own
            raise
        return server

    def _start_here(self, settings: ServerSettings, ready: Future[AnyServer]) -> LlamaServer:
        """The server of this process with these settings, which is started unless it runs already."""
        with START_LOCK:
            if self._by_settings.get(settings) is not ready:
                raise PolicyError("The embedded model was stopped before it was started.")
            for ended in [server for server in self._started if not server.alive]:
                ended.stop()
                self._started.remove(ended)
            for running in self._started:
                if running.settings == settings and running.address:
                    return running
            server = LlamaServer(settings)
            self._started.add(server)
        server.wait_until_ready()
        return server


def _has_ended(server: Future[AnyServer]) -> bool:
    return server.done() and (server.exception() is not None or not server.result().alive)


SERVERS = LlamaServers()
