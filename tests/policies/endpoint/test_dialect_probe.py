"""A server is probed for its dialect once, and rarely again if the probe fails."""

import asyncio
import pickle
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from policies.endpoint.misbehaving import Server, completion, replies
from rolltrace.policies.endpoint import backoff
from rolltrace.policies.endpoint.dialects import REPROBE_SECONDS
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Request
from rolltrace.trace.message import Message
from stage import skip_time

HELLO = Request(messages=(Message("user", "Hi."),), include_tokens=True)
VLLM = {"data": [{"id": "m", "owned_by": "vllm"}]}
PAGE = "<!DOCTYPE html><html>Welcome</html>"


async def no_sleep(seconds):
    pass


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch):
    monkeypatch.setattr(backoff, "sleep", no_sleep)


@asynccontextmanager
async def asked(*answers, **settings):
    """A server that lists its models with these replies in turn (repeating the last), and a policy that uses it."""

    def list_models(body):
        answer = answers[min(len(server.asked), len(answers)) - 1]
        return answer if isinstance(answer, dict) else web.Response(status=answer[0], text=answer[1])

    server = Server(replies(completion("Hello")), others={"/v1/models": list_models})
    async with server, EndpointPolicy("m", server.url, **settings) as policy:
        yield server, policy


async def complete(policy, times):
    found = await asyncio.gather(*(policy.complete(HELLO) for _ in range(times)))
    assert [one.message.content for one in found] == ["Hello"] * times


def wanted_tokens(server):
    """For each completion request: whether it asked for token ids."""
    return ["return_token_ids" in sent for sent in server.sent]


async def test_many_at_once_ask_once():
    """Concurrent first requests share one probe of the list of models, and its result is kept."""
    async with asked(VLLM) as (server, policy):
        await complete(policy, 32)
        await complete(policy, 3)
    assert len(server.asked) == 1
    assert wanted_tokens(server) == [True] * 35


@pytest.mark.parametrize("answer", [(200, PAGE), (200, ""), (404, "none"), (401, "no"), (301, "moved")])
async def test_a_permanent_probe_failure_is_not_retried(answer):
    """If the list of models is a web page, a refusal or a redirect, this policy does not probe again."""
    async with asked(answer, VLLM) as (server, policy):
        await complete(policy, 32)
        skip_time(2 * REPROBE_SECONDS)
        await complete(policy, 3)
    assert len(server.asked) == 1
    assert wanted_tokens(server) == [False] * 35
    [reason] = policy.missing_token_reasons
    assert reason.startswith("the server does not list its models: ")


async def test_a_transient_probe_failure_is_retried_each_minute():
    """A failing probe costs two requests a minute, whatever else is asked; once it succeeds, tokens are requested."""
    async with asked((502, PAGE), (502, PAGE), (429, "slow"), (503, "later"), VLLM) as (server, policy):
        await complete(policy, 32)
        assert len(server.asked) == 2
        await complete(policy, 32)
        assert len(server.asked) == 2
        skip_time(REPROBE_SECONDS)
        await complete(policy, 8)
        assert len(server.asked) == 4
        skip_time(REPROBE_SECONDS)
        await complete(policy, 8)
        await complete(policy, 8)
    assert len(server.asked) == 5
    assert wanted_tokens(server) == [False] * 72 + [True] * 16


async def test_no_retries_apply_to_the_probe_too():
    """With `retries=0` the probe is not retried either."""
    async with asked((502, PAGE), retries=0) as (server, policy):
        await complete(policy, 4)
    assert len(server.asked) == 1


async def test_a_cancelled_caller_does_not_cancel_the_probe():
    """A cancelled caller leaves the probe running for the others; closing the policy ends it."""
    reached, left = asyncio.Event(), asyncio.Event()

    async def hang(body):
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with Server(replies(completion("Hello")), others={"/v1/models": hang}) as server:
        policy = EndpointPolicy("m", server.url)
        first, second = (asyncio.create_task(policy.complete(HELLO)) for _ in range(2))
        await reached.wait()
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert not left.is_set()
        await policy.close()
        await left.wait()
        assert (await second).message.content == "Hello"
        [reason] = policy.missing_token_reasons
        assert "does not list its models" not in reason, "the wait was cancelled, and did not time out"
        await policy.close()


async def test_a_pickled_policy_probes_again():
    """A copy does not inherit the time of the last probe, which is of another machine's clock."""
    async with asked((502, PAGE), VLLM, retries=0) as (server, policy):
        await complete(policy, 1)
        async with pickle.loads(pickle.dumps(policy)) as copy:
            await complete(copy, 1)
    assert wanted_tokens(server) == [False, True]
