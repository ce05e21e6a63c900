"""The main function of the server process: serves llama.cpp on loopback until the parent process exits."""

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
"""Cache for prompts of conversations that lost their slot: processing a prompt again takes seconds."""
_HTTP_THREADS = 4 * MAX_SERVER_REQUESTS
"""Each waiting request occupies a thread, and so does each idle connection for some seconds."""


def main() -> None:
    """Read the settings from standard input, write the address or an error, and serve until standard input closes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler sends it to the whole job; the parent handles it
    out = os.fdopen(os.dup(1), "w")
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 1)
    try:
        server = start_server(json.loads(sys.stdin.readline()))
        status = {"address": server.listening_address}
    except Exception as error:  # noqa: BLE001 - the parent reports it
        server, status = None, {"error": f"{type(error).__name__}: {error}"}
    os.dup2(devnull, 2)  # the parent reads errors only until here, and later output would fill the disk
    with contextlib.suppress(OSError):
        out.write(json.dumps(status) + "\n")
        out.close()
        while server is not None and sys.stdin.read(1):
            pass
    os._exit(0)  # without waiting for requests whose client is gone


def start_server(settings: dict[str, Any]) -> Any:
    """Load the weights and listen, as `ServerSettings.for_process` says."""
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = settings["weights"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context_length"]  # it is divided among the slots
    params.kv_unified = False
    params.fit_params = False  # do not shrink the requested context
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = settings["threads"]
    params.n_threads_http = _HTTP_THREADS
    params.cache_ram_mib = _CACHE_MIB
    params.use_jinja = True
    if settings["template"] is not None:
        params.chat_template = settings["template"]
    params.verbosity = _ERRORS_ONLY
    params.ui = params.endpoint_slots = params.warmup = False
    # Requests without sampling settings draw from the full distribution, which the log-probabilities are of.
    sampling = params.sampling
    sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p = 1.0, 0, 1.0, 0.0
    return llama.Server(params)
