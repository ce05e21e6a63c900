"""The inside of the server's process: llama.cpp on loopback, until whoever started it is gone."""

import contextlib
import importlib
import json
import os
import signal
import sys
from typing import Any

from rolltrace.policies.llama.server_settings import MAX_SERVER_REQUESTS

_ERRORS_ONLY = 1
_CACHE_MIB = 512
"""Memory for prompts of conversations that lost their slot to another: reading one anew takes seconds."""
_HTTP_THREADS = 4 * MAX_SERVER_REQUESTS
"""Each waiting request holds one, and for some seconds each connection that a policy keeps for its next request."""


def main() -> None:
    """Start as the line at standard input says, tell the address, and serve until standard input ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to a whole job, it is for the caller, whose end ends this
    out = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    try:
        server = _start(json.loads(sys.stdin.readline()))
        told = {"address": server.listening_address}
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever started this process has to tell it
        server, told = None, {"error": f"{type(error).__name__}: {error}"}
    os.dup2(nowhere, 2)  # what went wrong until here is known; later noise would fill the disk
    with contextlib.suppress(OSError):
        out.write(json.dumps(told) + "\n")
        out.close()
        while server is not None and sys.stdin.read(1):
            pass
    os._exit(0)  # nobody waits for requests that nobody can answer to


def _start(settings: dict[str, Any]) -> Any:
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = settings["weights"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context_length"]  # it is divided among the slots
    params.kv_unified = False
    params.fit_params = False  # a context that was asked for is not made smaller
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = settings["threads"]
    params.n_threads_http = _HTTP_THREADS
    params.cache_ram_mib = _CACHE_MIB
    params.use_jinja = True
    if settings["template"] is not None:
        params.chat_template = settings["template"]
    params.verbosity = _ERRORS_ONLY
    params.ui = params.endpoint_slots = params.warmup = False
    _sample_plainly(params.sampling)
    return llama.Server(params)


def _sample_plainly(sampling: Any) -> None:
    """Unless a request says otherwise, draw from the distribution whose log-probabilities are told, whole."""
    sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p = 1.0, 0, 1.0, 0.0
