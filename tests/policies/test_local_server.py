"""The server of the embedded model: one per process, private to it, and ended with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from embedded import embedded_model
from rolltrace.errors import ContextOverflowError, PolicyError
from rolltrace.policies.policy import Request
from rolltrace.trace.message import Message, Sampling

pytestmark = pytest.mark.core

SMALL = {"slots": 1, "context_length": 256}
"""A server of their own for tests that end it."""


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


def request(text="Say one word.", *, max_tokens=4, **fields):
    return Request(messages=(Message("user", text),), sampling=Sampling(max_tokens=max_tokens), seed=1, **fields)


async def server(policy):
    from rolltrace.policies.llama.llama_server import SERVERS

    return await asyncio.wrap_future(SERVERS.get(policy.settings))


async def test_policies_share_a_server():
    """One server serves all policies with the same settings."""
    policies = [embedded_model(), embedded_model(name="other", extra={"grammar": 'root ::= "no"'})]
    first, second = await asyncio.gather(*(policy.complete(request()) for policy in policies))
    assert first.message.content
    assert second.message.content == "no"
    assert len({(await server(policy)).pid for policy in policies}) == 1
    for policy in policies:
        await policy.close()


def test_a_policy_lives_through_event_loops():
    """A policy can be used in one `asyncio.run` after the other."""
    policy = embedded_model(extra={"cache_prompt": False})

    async def ask():
        completion = await policy.complete(request(max_tokens=8))
        await policy.close()
        return completion.message.content, (await server(policy)).pid

    assert asyncio.run(ask()) == asyncio.run(ask())


async def test_requests_without_the_key_are_refused():
    """Requests without the right key are refused, and the server listens on loopback only."""
    policy = embedded_model()
    running = await server(policy)
    assert running.address.startswith("http://127.0.0.1:")

    def status(path, key=None, body=None):
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        asked = urllib.request.Request(running.address + path, body, headers)
        try:
            with urllib.request.urlopen(asked) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    for path in ("/props", "/slots", "/metrics", "/v1/models", "/lora-adapters"):
        assert await asyncio.to_thread(status, path) == 401, path
    for path in ("/v1/chat/completions", "/completion", "/tokenize", "/apply-template"):
        assert await asyncio.to_thread(status, path, "sk-wrong", b"{}") == 401, path
    assert await asyncio.to_thread(status, "/v1/models", running.key) == 200
    assert running.key not in repr(policy) + str(os.environ) + repr(policy.__getstate__())


@on_linux
def test_the_key_is_no_argument_of_the_process():
    """The key is not on the command line, which every user of a machine can list."""
    running = asyncio.run(server(embedded_model()))
    command = Path(f"/proc/{running.pid}/cmdline").read_bytes()
    assert b"rolltrace" in command
    assert running.key.encode() not in command


def test_slots_and_sampling_are_as_they_were_asked_for():
    """Each slot has the whole context length, and sampling is not truncated unless asked for."""
    policy = embedded_model()
    running = asyncio.run(server(policy))
    asked = urllib.request.Request(running.address + "/props", headers={"Authorization": f"Bearer {running.key}"})
    with urllib.request.urlopen(asked) as reply:
        props = msgspec.json.decode(reply.read())
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == policy.context_length == 2048
    sampling = props["default_generation_settings"]["params"]
    assert [sampling[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [1.0, 0, 1.0, 0.0]


async def test_a_prompt_that_is_too_long_is_an_overflow():
    """A prompt longer than the context raises `ContextOverflowError`."""
    policy = embedded_model()
    with pytest.raises(ContextOverflowError, match="2048"):
        await policy.complete(request("one two three " * 1000))
    await policy.close()


async def test_the_version_can_be_set_while_it_is_used():
    """Each completion has the version that was set when it was requested."""
    policy = embedded_model(version="1")
    assert (await policy.complete(request())).policy_version == "1"
    policy.version = 2
    assert (await policy.complete(request())).policy_version == 2
    await policy.close()


async def test_a_server_that_died_is_reported_and_restarted():
    """The request in flight fails and says how the process ended; the next one starts a new process."""
    policy = embedded_model(**SMALL)
    running = await server(policy)
    os.kill(running.pid, signal.SIGSTOP)  # so that it does not answer before it dies
    asking = asyncio.create_task(policy.complete(request()))
    await asyncio.sleep(0)  # the policy has found the server alive
    os.kill(running.pid, signal.SIGKILL)
    with pytest.raises(PolicyError, match="The embedded model's process was ended by signal 9 during a request"):
        await asking
    assert (await policy.complete(request())).message.content
    assert (await server(policy)).pid != running.pid
    await policy.close()


async def test_a_cancelled_caller_does_not_stop_the_start():
    """Cancelling one caller during the start leaves the server to the others."""
    policy = embedded_model(slots=1, context_length=256)
    impatient, patient = (asyncio.create_task(policy.complete(request())) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).message.content
    assert impatient.cancelled()
    await policy.close()


async def test_weights_that_cannot_be_loaded_are_reported(tmp_path):
    """The error has llama.cpp's reason, and each caller gets its own exception."""
    embedded_model()
    from rolltrace.policies.llama.weights import default_weights
    from rolltrace.policies.local import local_policy

    with default_weights().open("rb") as whole:
        (tmp_path / "cut.gguf").write_bytes(whole.read(5_000_000))
    policy = local_policy(str(tmp_path / "cut.gguf"), **SMALL)
    asked = [policy.complete(request()), policy.complete(request())]
    first, second = await asyncio.gather(*asked, return_exceptions=True)
    told = rf"llama.cpp cannot serve {tmp_path}/cut.gguf: .* model is corrupted or incomplete"
    for error in (first, second):
        with pytest.raises(PolicyError, match=told):
            raise error
    assert first is not second


SCRIPT = """
import asyncio, os, signal, sys
from rolltrace.policies.policy import Request
from rolltrace.policies.llama.llama_server import SERVERS
from rolltrace.policies.local import local_policy
from rolltrace.trace.message import Message, Sampling

policy = local_policy(slots=1, context_length=256)
ASKED = Request(messages=(Message("user", "Say one word."),), sampling=Sampling(max_tokens=4), seed=1)

def ask():
    async def run():
        answer = (await policy.complete(ASKED)).message.content
        await policy.close()
        return answer
    assert asyncio.run(run())
    return SERVERS.get(policy.settings).result().pid

print(ask(), flush=True)
"""
FORK = """
child = os.fork()
if child == 0:
    print(ask(), flush=True)
    sys.exit(0)  # what is registered for the end runs in the child too
assert os.waitpid(child, 0)[1] == 0
print(ask(), flush=True)
"""


def run_script(more, stdin=subprocess.DEVNULL):
    """The pids of the servers that a program started, its return code and its standard error."""
    embedded_model()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + more], stdin=stdin, capture_output=True, text=True, timeout=300
    )
    return [int(line) for line in done.stdout.split()], done.returncode, done.stderr


def is_gone(pid):
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@on_linux
def test_the_server_ends_with_the_process_and_says_nothing():
    """A forked child leaves its parent's server alone, and has its own, which ends with it."""
    (before, child, after), code, errors = run_script(FORK)
    assert (code, errors) == (0, "")
    assert before == after != child
    assert is_gone(before)
    assert is_gone(child)


KILL = """
if os.fork() == 0:
    os.closerange(1, 3)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_the_server_ends_with_a_process_that_is_killed():
    """The server ends although its process was killed and a forked child of it still runs."""
    theirs, ours = os.pipe()
    try:
        [pid], code, _ = run_script(KILL, stdin=theirs)
        assert code == -signal.SIGKILL
        patience = time.monotonic() + 60
        while not is_gone(pid) and time.monotonic() < patience:
            time.sleep(0.01)
        assert is_gone(pid)
    finally:
        os.close(ours)
        os.close(theirs)
