"""One process with llama.cpp in it, and the address and key under which it answers."""

import contextlib
import json
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, cast

from rolltrace.errors import PolicyError
from rolltrace.policies.llama.places import LoopSemaphores
from rolltrace.policies.llama.server_settings import MAX_SERVER_REQUESTS, ServerSettings

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rolltrace.policies.llama.server_main import main; main()"
)
_REASON = re.compile(r"error loading model: (.*)")
_ERROR_LINE = re.compile(r"^\S+ E (?:\S+ +\S+: )?(.*)$", re.MULTILINE)
_MAX_REASON_CHARS = 500
_READY_SECONDS = 600.0
"""How long the weights may take to load: large ones come from a slow disk."""
_ENDING_SECONDS = 1.0
"""How long a process may go on after its connections are closed."""


class LlamaServer:
    """A server of local weights. It ends when it is stopped, and when this process ends, in whatever way.

    It listens on loopback only, and answers only to the key that it was given through a pipe: no other user of the
    machine can know that.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.key = secrets.token_urlsafe(32)
        self.address = ""
        self.places = LoopSemaphores(MAX_SERVER_REQUESTS)
        """How many may ask at once; all policies of this server share them."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the server is ready, or has failed
        self._process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # an interrupt from the keyboard is for the caller
        )
        self._orders = cast("IO[bytes]", self._process.stdin)
        self._news = cast("IO[bytes]", self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether it is there to be asked."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Which process it is."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Load the weights, and learn the address."""
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            self._process.kill()  # which ends the wait for its news

        timer = threading.Timer(_READY_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        news = self._first_news()
        timer.cancel()
        if overdue.is_set() or "address" not in news:
            late = f"it was not ready within {_READY_SECONDS:g} s, and was ended" if overdue.is_set() else None
            reason = late or self._why_not(news.get("error"))
            self.stop()
            raise PolicyError(f"llama.cpp cannot serve {self.settings.weights}: {reason}")
        self._errors.close()
        self.address = news["address"]

    def _first_news(self) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            self._orders.write(json.dumps(self.settings.for_process(self.key)).encode() + b"\n")
            self._orders.flush()
        told = self._news.readline()
        news: dict[str, Any] = json.loads(told) if told.endswith(b"\n") else {}
        return news

    def exit_reason(self) -> str | None:
        """How the process ended, in words; None if it goes on, for which one that is just ending gets a moment."""
        try:
            code = self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def stop(self) -> None:
        """End it, and give back what it held."""
        self._process.kill()
        self._process.wait()
        self._close()

    def detach_after_fork(self) -> None:
        """In a forked process: leave it to the one that started it, which alone may then keep it alive."""
        self._process.poll()  # it is no child of this process, and is noted to have ended
        self._close()

    def _close(self) -> None:
        for file in (self._orders, self._news, self._errors):
            with contextlib.suppress(OSError):
                file.close()

    def _why_not(self, error: str | None) -> str:
        """What llama.cpp complained of, else what was raised, else how the process ended."""
        self._errors.seek(0)
        log = self._errors.read().decode("utf-8", "replace")
        found = _REASON.search(log) or _ERROR_LINE.search(log)
        if found:
            return found[1][:_MAX_REASON_CHARS]
        if error:
            return error[:_MAX_REASON_CHARS]
        return f"its process {self.exit_reason() or 'closed its pipe'}"
