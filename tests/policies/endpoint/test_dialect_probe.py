"""A server is asked who it is once for all, and seldom where it cannot say."""

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
    """A server that lists its models in these ways, in turn and the last ever after, and a policy of it."""

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
    """For each answer that was asked for: whether its tokens were, too."""
    return ["return_token_ids" in sent for sent in server.sent]


async def test_many_at_once_ask_once():
    """All who begin together wait for one list of models, and what it says holds."""
    async with asked(VLLM) as (server, policy):
        await complete(policy, 32)
        await complete(policy, 3)
    assert len(server.asked) == 1
    assert wanted_tokens(server) == [True] * 35


@pytest.mark.parametrize("answer", [(200, PAGE), (200, ""), (404, "none"), (401, "no"), (301, "moved")])
async def test_what_will_not_pass_is_asked_once(answer):
    """A web page, a refusal or a redirect in the place of the list is the last word for this policy."""
    async with asked(answer, VLLM) as (server, policy):
        await complete(policy, 32)
        skip_time(2 * REPROBE_SECONDS)
        await complete(policy, 3)
    assert len(server.asked) == 1
    assert wanted_tokens(server) == [False] * 35
    [reason] = policy.missing_token_reasons
    assert reason.startswith("the server does not list its models: ")


async def test_what_may_pass_is_asked_again_once_and_then_in_a_minute():
    """A failing list costs two requests a minute, whatever else is asked; once it is there, tokens are had."""
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


async def test_no_retries_are_none_for_the_list():
    """A policy that is told not to ask again does not."""
    async with asked((502, PAGE), retries=0) as (server, policy):
        await complete(policy, 4)
    assert len(server.asked) == 1


async def test_who_stops_waiting_does_not_stop_the_others():
    """A caller that is cancelled leaves the list to the others; closing the policy ends the wait for it."""
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


async def test_a_copy_asks_for_itself():
    """A policy that was pickled while the server failed does not keep quiet by another machine's clock."""
    async with asked((502, PAGE), VLLM, retries=0) as (server, policy):
        await complete(policy, 1)
        async with pickle.loads(pickle.dumps(policy)) as copy:
            await complete(copy, 1)
    assert wanted_tokens(server) == [False, True]
