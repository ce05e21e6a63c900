"""Starting the web server, and ending it at once and cleanly."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn

from rolltrace.errors import InputError
from rolltrace.viewer.access import check_token, host_names
from rolltrace.viewer.server import make_app

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound to


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; the error says what stands in the way."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # Only through a socket that names its protocol does the loop send small answers at once.
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(
            f"Expected an address of this machine to listen at, got {host!r}: {error.strerror}."
        ) from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}. Choose another with --port; 0 is any."
        ) from error
    return listening


def make_server(
    folder: str | Path, listening: socket.socket, *, token: str, host: str, on_ready: Callable[[], None] | None = None
) -> "ViewerServer":
    """A server over the runs below a folder, for a socket that listens at `host`."""
    check_token(token)
    port = listening.getsockname()[1]
    names = host_names(host, port) + ([f"{socket.gethostname()}:{port}"] if host in _ANY else [])
    app = make_app(folder, token=token, port=port, hosts=names, any_address=host in _ANY)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, lifespan="on", timeout_graceful_shutdown=1,
        ws="none", proxy_headers=False,
    )  # fmt: skip
    return ViewerServer(config, on_ready)


def serve(
    folder: str | Path, listening: socket.socket, *, token: str, host: str, on_ready: Callable[[], None] | None = None
) -> None:
    """Serve until the process is told to end, by Ctrl-C or otherwise."""
    make_server(folder, listening, token=token, host=host, on_ready=on_ready).run(sockets=[listening])


class ViewerServer(uvicorn.Server):
    """Says when it is ready; and a signal ends it as if all were done, which it is."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self._on_ready is not None and not self.should_exit:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Heed signals without raising them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
