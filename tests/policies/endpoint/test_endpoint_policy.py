"""The endpoint as a policy: its arguments, and where it can be used."""

import asyncio
import gc
import pickle
from functools import partial

import pytest

from policies.endpoint.misbehaving import Server, says
from rolltrace.arguments import call_with_arguments
from rolltrace.errors import InputError
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Policy, Request
from rolltrace.policies.validation import check_policy
from rolltrace.trace.message import Message

HELLO = Request(messages=(Message("user", "Hi."),))


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://host/api/v3", "https://host/api/v3"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("http://[::1]:80", "http://[::1]:80/v1"),
    ],
)
def test_a_specification(given, base):
    """`MODEL@BASE_URL` with or without /v1; the model's name may hold an @."""
    policy = EndpointPolicy(f"org/model@2@{given}")
    assert (policy.model, policy.base_url, policy.name) == ("org/model@2", base, "org/model@2")
    assert isinstance(policy, Policy)
    check_policy(policy)


def test_arguments_come_as_text():
    """Arguments from the command line are text, and are converted to the types of the signature."""
    args = {
        "retries": "1", "timeout": "2.5", "extra": '{"a": null}', "send_reasoning": "false",
        "version": "12", "name": "mine", "context_length": "512",
    }  # fmt: skip
    policy = call_with_arguments(partial(EndpointPolicy, "m@http://h"), args, "openai:m")
    assert (policy.name, policy.version, policy.context_length) == ("mine", "12", 512)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_in_flight": 0},
        {"timeout": 0.0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"retries": -1},
        {"dialect": "klingon"},
        {"extra": {"temperature": 0.0}},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    """Settings that cannot work are found before the first request."""
    with pytest.raises(InputError, match="Expected"):
        EndpointPolicy("m", "http://h", **wrong)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "http://",
        "h:80",
        "http://h:port",
        "",
        "http://a b",
        "http://a..b",
        "http://-a",
        "http://[::g]",
        "http://" + "a" * 64,
        "http://a%20b",
    ],
)
def test_what_is_no_address_is_refused(url):
    """Only http and https, with a host."""
    with pytest.raises(InputError, match="Expected a base URL"):
        EndpointPolicy("m", url)


def test_a_policy_works_in_one_loop_after_the_other():
    """Connections belong to an event loop; the next loop opens its own, whether or not the policy was closed."""

    async def once(policy_of, close):
        async with Server(says()) as server:
            policy = policy_of(server.url)
            completion = await policy.complete(HELLO)
            if close:
                await policy.close()
        return completion.message.content

    policy = EndpointPolicy("m", "http://127.0.0.1:9", retries=0)

    def moved(url):
        policy.base_url = f"{url}/v1"
        return policy

    assert [asyncio.run(once(moved, close=True)) for _ in range(2)] == ["Hello."] * 2


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_closing_is_forgotten(caplog):
    """A policy that was left open in a loop that has ended works in the next, and keeps no session of the first."""
    policy = EndpointPolicy("m", "http://127.0.0.1:9", retries=0)

    async def once(policy):
        async with Server(says()) as server:
            policy.base_url = f"{server.url}/v1"
            completion = await policy.complete(HELLO)
        return completion.message.content

    assert [asyncio.run(once(policy)) for _ in range(3)] == ["Hello."] * 3
    asyncio.run(policy.close())
    del policy
    gc.collect()
    assert "Unclosed client session" not in caplog.text


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_many_at_once_after_several_loops_have_ended(caplog):
    """The first request closes the sessions of ended loops, and all requests share one new session."""
    policy = EndpointPolicy("m", "http://127.0.0.1:9", retries=0)
    loops = [asyncio.new_event_loop() for _ in range(3)]

    async def ask(times):
        async with Server(says()) as server:
            policy.base_url = f"{server.url}/v1"
            asked = (policy.complete(HELLO) for _ in range(times))
            found = await asyncio.gather(*asked, return_exceptions=True)
        return [one if isinstance(one, Exception) else one.message.content for one in found]

    for loop in loops:
        assert loop.run_until_complete(ask(1)) == ["Hello."]
    for loop in loops:
        loop.close()

    async def ask_and_close():
        said = await ask(4)
        await policy.close()
        return said

    assert asyncio.run(ask_and_close()) == ["Hello."] * 4
    del loop, loops
    gc.collect()
    assert "Unclosed client session" not in caplog.text


@pytest.mark.parametrize(("files", "in_flight"), [(1024, 384), (256, 1), (1_000_000, 512), (-1, 512), (300, 22)])
def test_two_policies_leave_files_to_the_process(monkeypatch, files, in_flight):
    """By default, a policy uses only a part of the file descriptors that the process may open."""
    resource = pytest.importorskip("resource")
    limit = resource.RLIM_INFINITY if files < 0 else files
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert EndpointPolicy("m", "http://h").max_in_flight == in_flight
    assert EndpointPolicy("m", "http://h", max_in_flight=700).max_in_flight == 700


async def test_a_policy_pickles_without_its_connections():
    """A copy in another process opens its own."""
    async with Server(says()) as server:
        policy = EndpointPolicy("m", server.url, version=3)
        await policy.complete(HELLO)
        copy = pickle.loads(pickle.dumps(policy))
        completion = await copy.complete(HELLO)
        await policy.close()
        await copy.close()
    assert (completion.message.content, completion.policy_version) == ("Hello.", 3)


@pytest.fixture
async def noting():
    """A server, and the client port of each request that it got."""
    ports = []

    async def note(request):
        ports.append(request.transport.get_extra_info("peername")[1])
        return await says()(request)

    async with Server(note) as server:
        yield server, ports


async def test_connections_are_kept_and_closed(noting):
    """Sequential requests share one connection; `close` closes it, and the next request opens another."""
    server, ports = noting
    policy = EndpointPolicy("m", server.url)
    for _ in range(3):
        await policy.complete(HELLO)
    await policy.close()
    await policy.complete(HELLO)
    await policy.close()
    await policy.close()
    assert len(set(ports[:3])) == 1
    assert len(set(ports)) == 2


async def test_the_end_of_a_block_closes(noting):
    """`async with` closes the connections; the policy can be used again and opens new ones."""
    server, ports = noting
    policy = EndpointPolicy("m", server.url)
    for _ in range(2):
        async with policy:
            await policy.complete(HELLO)
            await policy.complete(HELLO)
    first, second, third, fourth = ports
    assert first == second != third == fourth
