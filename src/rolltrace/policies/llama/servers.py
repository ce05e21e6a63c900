"""The servers of this process: each is started once, shared by whoever wants it, and stopped with the process."""

import atexit
import os
import threading
from concurrent.futures import Future

from rolltrace.errors import PolicyError
from rolltrace.policies.llama.llama_server import LlamaServer
from rolltrace.policies.llama.server_settings import ServerSettings

_STARTING = threading.Lock()
"""Held while a process is started, and while this one is forked: the child can then close every pipe that it got."""
_SERVERS: dict[ServerSettings, Future[LlamaServer]] = {}
_PROCESSES: set[LlamaServer] = set()


def get_server(settings: ServerSettings) -> Future[LlamaServer]:
    """The server with these settings, as soon as it is ready; one that has ended is started anew."""
    with _STARTING:
        known = _SERVERS.get(settings)
        if known is not None and not _is_iteration_finished(known):
            return known
        ready: Future[LlamaServer] = Future()
        ready.set_running_or_notify_cancel()  # whoever stops waiting for it does not stop it for others
        _SERVERS[settings] = ready
    threading.Thread(target=_start, args=(settings, ready), name="rolltrace-local", daemon=True).start()
    return ready


def stop_servers() -> None:
    """End all of them; whoever asks later starts new ones."""
    with _STARTING:
        _SERVERS.clear()
        ended = list(_PROCESSES)
        _PROCESSES.clear()
    for server in ended:
        server.stop()


def _is_iteration_finished(known: Future[LlamaServer]) -> bool:
    return known.done() and (known.exception() is not None or not known.result().alive)


def _start(settings: ServerSettings, ready: Future[LlamaServer]) -> None:
    try:
        with _STARTING:
            if _SERVERS.get(settings) is not ready:
                raise PolicyError("The embedded model was stopped before it was started.")
            for dead in [server for server in _PROCESSES if not server.alive]:
                dead.stop()
                _PROCESSES.remove(dead)
            server = LlamaServer(settings)
            _PROCESSES.add(server)
        server.wait_until_ready()
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        ready.set_exception(error)
    else:
        ready.set_result(server)


def _forget_all() -> None:
    """In a forked process: the servers are the parent's, and end with it; this process starts its own."""
    _STARTING.release()
    for server in _PROCESSES:
        server.detach_after_fork()
    _PROCESSES.clear()
    _SERVERS.clear()


atexit.register(stop_servers)
os.register_at_fork(before=_STARTING.acquire, after_in_parent=_STARTING.release, after_in_child=_forget_all)
