"""The recording proxy passes every byte on, and records every answer, whatever happens to the connection."""

import asyncio
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tracemalloc
from contextlib import asynccontextmanager

import aiohttp
import pytest
import zstandard
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import rolltrace
from loopback import chat, serving
from rolltrace.bridges.api_calls import EventStream, decompress
from rolltrace.bridges.proxy import RecordingProxy
from rolltrace.store.reader import RunReader

pytestmark = pytest.mark.warns("dropped", "empty_responses", "history_not_continued", "index_gaps", "reward_missing")

STREAMS = 200


def chunk(text, **fields):
    """An event of a stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, **fields}
    return f"data: {json.dumps({'id': 's', 'choices': [choice]}, ensure_ascii=False)}\n\n".encode()


def body_of(seed):
    """The bytes of a stream, and the text in it."""
    rng = random.Random(seed)
    words = [f"{rng.random()} ünï " for _ in range(rng.randrange(1, 40))]
    ending = chunk("", finish_reason="stop") + b"data: [DONE]\n\n"
    return b"".join(map(chunk, words)) + ending, "".join(words)


async def answer(request: web.Request) -> web.StreamResponse:
    """The server: what it does is the name of the model."""
    if request.method == "GET":
        return web.json_response({"query": request.query_string, "headers": dict(request.headers)})
    body = await request.json()
    kind, _, seed = body["model"].partition(" ")
    if kind == "error":
        return web.json_response({"error": {"message": "overloaded"}}, status=503)
    if kind in ("stream", "cut", "gone"):
        data = body_of(int(seed))[0]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Seed": seed})
        await response.prepare(request)
        rng, place = random.Random(seed), 0
        end = len(data) // 2 if kind == "cut" else len(data)
        while place < end:  # pieces that end anywhere
            size = rng.randrange(1, 400)
            await response.write(data[place : min(place + size, end)])
            place += size
            await asyncio.sleep(0)
        if kind == "cut":
            request.transport.abort()
        return response
    if kind == "squeezed":
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(body_of(int(seed))[0]), headers=headers)
    if kind == "odd":
        return web.Response(body=b'data: {"choices": [5]}\n\n' + body_of(1)[0], content_type="text/event-stream")
    completion = chat("4")
    completion["choices"] = [{**completion["choices"][0], "index": number} for number in range(body.get("n") or 1)]
    if kind == "gzip":
        data = gzip.compress(json.dumps(completion).encode())
        return web.Response(body=data, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})
    return web.json_response(completion)


@pytest.fixture(scope="module")
def upstream():
    """The address of the server."""
    with serving(answer) as url:
        yield url


@asynccontextmanager
async def proxied(upstream, run, **settings):
    """A client of a proxy in front of the server, with paths below the proxy's address."""
    runner = web.AppRunner(RecordingProxy(upstream, run, **settings).app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0)) as client:
        yield client
    await runner.cleanup()


def ask(client, model="m", path="/v1/chat/completions", headers=None, **fields):
    """Send a request for a chat completion."""
    messages = [{"role": "user", "content": f"Who is {model}?"}]
    return client.post(path, json={"model": model, "messages": messages, **fields}, headers=headers or {})


def recorded(run):
    """All rollouts so far."""
    assert run.flush()
    return list(RunReader(run.path).rollouts())


async def test_many_streams_at_once(upstream, run):
    """Bytes are passed on unchanged, and each request is recorded: whole, cut, refused, or given up by its client."""
    kinds = ("stream", "stream", "stream", "cut", "error", "gone")

    async def one(client, seed):
        kind = kinds[seed % len(kinds)]
        got = b""
        try:
            async with ask(client, f"{kind} {seed}", stream=True) as response:
                async for piece in response.content.iter_chunked(97):
                    got += piece
                    if kind == "gone":
                        break
                    if seed % 7 == 0:  # a slow client
                        await asyncio.sleep(0.001)
        except aiohttp.ClientPayloadError:
            assert kind == "cut"
        whole = body_of(seed)[0]
        if kind == "stream":
            assert got == whole
        elif kind != "error":
            assert whole.startswith(got)

    async with proxied(upstream, run) as client:
        await asyncio.gather(*(one(client, seed) for seed in range(STREAMS)))
    rollouts = {rollout.messages[0].content: rollout for rollout in recorded(run)}
    assert len(rollouts) == STREAMS
    for seed in range(STREAMS):
        kind = kinds[seed % len(kinds)]
        rollout, text = rollouts[f"Who is {kind} {seed}?"], body_of(seed)[1]
        if kind == "stream":
            [step] = rollout.steps
            assert (step.trace.policy_response.content, step.termination, rollout.status) == (text, "eos", "ok")
        elif kind == "error":
            assert (rollout.error.type, "overloaded" in rollout.error.message) == ("HTTP 503", True)
            assert [message.content for message in rollout.pending_messages] == [f"Who is error {seed}?"]
        else:
            assert all(text.startswith(step.trace.policy_response.content) for step in rollout.steps)
            assert rollout.status != "ok" or kind == "gone"


async def test_a_named_rollout(upstream, run):
    """Requests that name a rollout are its steps, by header or by path, until a reward ends it."""
    headers = {
        "X-Rolltrace-Rollout": "r1",
        "X-Rolltrace-Env": "sums",
        "X-Rolltrace-Group": "g",
        "X-Rolltrace-Index": "3",
    }
    async with proxied(upstream, run) as client:
        for path, more in (("/v1/chat/completions", headers), ("/rollout/r1/v1/chat/completions", None)):
            async with ask(client, path=path, headers=more) as response:
                assert (await response.json())["choices"][0]["message"]["content"] == "4"
        async with ask(client, "error", headers=headers) as response:
            assert response.status == 503
        async with client.post("/rolltrace/end", json={"rollout": "r1", "reward": 0.5, "data": {"a": 1.0}}) as response:
            assert response.status == 200
        async with ask(client, headers=headers) as response:  # too late
            assert response.status == 200
        async with client.post(
            "/rolltrace/score", json={"rollout": "r1", "name": "advantage", "value": 2.0}
        ) as response:
            assert response.status == 200
        for path, body, status in (
            ("end", {"rollout": "r1"}, 404), ("end", {"reward": 1}, 400), ("score", {"rollout": "r1"}, 400)
        ):  # fmt: skip
            async with client.post(f"/rolltrace/{path}", json=body) as response:
                assert (response.status, "Expected" in (await response.json())["error"]["message"]) == (status, True)
    assert not run.flush()  # the late step
    [rollout] = RunReader(run.path).rollouts()
    assert (rollout.id, rollout.env, rollout.group, rollout.index, rollout.reward) == ("r1", "sums", "g", 3, 0.5)
    assert [step.trace.policy_response.content for step in rollout.steps] == ["4", "4"]
    assert [call.error.type for call in rollout.calls] == ["HTTP 503"]
    assert run.ledger.dropped_after_end["step"] == 1
    with rolltrace.open_run(run.path) as opened:
        assert [score.value for score in opened.scores(where="name = 'advantage'")] == [2.0]


async def test_rollouts_of_their_own(upstream, run):
    """Each choice is a member of a group; compressed answers are read; other endpoints pass unrecorded."""
    async with proxied(upstream, run) as client:
        async with ask(client, n=3) as response:
            assert len((await response.json())["choices"]) == 3
        async with ask(client, "gzip") as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert (await response.json())["choices"][0]["message"]["content"] == "4"
        secrets = {"Authorization": "Bearer sk-secret", "X-Rolltrace-Env": "e"}
        async with client.get("/v1/models?a=1", headers=secrets) as response:
            seen = await response.json()
        async with ask(client, headers={"X-Rolltrace-Index": "first"}) as response:
            assert (response.status, "whole number" in await response.text()) == (400, True)
    assert (seen["query"], seen["headers"]["Authorization"]) == ("a=1", "Bearer sk-secret")
    assert "X-Rolltrace-Env" not in seen["headers"]
    rollouts = recorded(run)
    sizes = sorted([one.group for one in rollouts].count(group) for group in {one.group for one in rollouts})
    assert (sizes, sorted(one.index for one in rollouts)) == ([1, 3], [0, 0, 1, 2])
    assert {one.steps[0].trace.policy_response.content for one in rollouts} == {"4"}
    assert b"sk-secret" not in b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())


async def test_who_may_use_it(upstream, run):
    """With a token, requests without it are refused; a server that is not there is an error of the gateway."""
    async with proxied(upstream, run, token="t0ken") as client:
        for token, status in ((None, 401), ("wrong", 401), ("t0ken", 200)):
            async with ask(client, headers={"X-Rolltrace-Token": token} if token else {}) as response:
                assert response.status == status
    async with proxied("http://127.0.0.1:1/v1", run) as client, ask(client) as response:
        assert (response.status, "did not answer" in await response.text()) == (502, True)
    assert sorted(one.status for one in recorded(run)) == ["error", "ok"]


@pytest.mark.parametrize("model", ["m", "odd"])
async def test_a_rollout_that_is_left_alone(upstream, run, model):
    """A named rollout without requests ends by itself, whatever the answers were; at shutdown, the others do."""
    async with proxied(upstream, run, idle_seconds=0.05) as client:
        async with ask(client, model, headers={"X-Rolltrace-Rollout": "idle"}) as response:
            assert response.status == 200
        async with asyncio.timeout(30):
            while run.ledger.recorded == 0:  # noqa: ASYNC110 - only the ledger says so
                await asyncio.sleep(0.01)
    async with proxied(upstream, run) as client, ask(client, headers={"X-Rolltrace-Rollout": "open"}) as response:
        assert response.status == 200
    assert {one.id: one.stop_reason for one in recorded(run)} == {"idle": "idle", "open": "shutdown"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command(upstream, tmp_path, number):
    """It prints its address, records, and ends cleanly on a signal."""
    words = [sys.executable, "-m", "rolltrace", "proxy", "--upstream", upstream, "--out", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        address = process.stdout.readline().strip()

        async def use():
            async with aiohttp.ClientSession() as client:
                for _ in range(2):
                    path = f"{address}/chat/completions"
                    async with ask(client, path=path, headers={"X-Rolltrace-Rollout": "r"}) as response:
                        assert response.status == 200

        asyncio.run(use())
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Recorded 1 rollouts" in errors) == (0, True), errors
    [rollout] = RunReader(tmp_path / "run").rollouts()
    assert (len(rollout.steps), rollout.stop_reason) == (2, "shutdown")
    [ledger] = RunReader(tmp_path / "run").ledgers().values()
    assert ledger.closed


def test_wrong_use(tmp_path):
    """An address that others can reach needs a token, and the server an address."""
    for words in (["--upstream", "http://127.0.0.1:1", "--host", "0.0.0.0"], ["--upstream", "localhost:1"]):
        command = [sys.executable, "-m", "rolltrace", "proxy", *words, "--out", str(tmp_path / "run")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, "Expected" in ran.stderr) == (2, True)


async def test_streams_that_are_read_at_their_end(upstream, run):
    """A compressed stream is recorded, too; one that cannot be understood is passed on, and recorded as an error."""
    async with proxied(upstream, run) as client:
        async with ask(client, "squeezed 1", stream=True) as response:
            assert await response.read() == body_of(1)[0]
        async with ask(client, "odd", stream=True) as response:
            assert (await response.read()).endswith(body_of(1)[0])
    first, second = recorded(run)
    assert first.steps[0].trace.policy_response.content == body_of(1)[1]
    assert (second.status, second.error.type, second.error.layer) == ("error", "AttributeError", "policy")


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_an_answer_that_unpacks_to_much_more(encoding, compress):
    """No more of it is unpacked than is recorded; of one that was cut, what came."""
    packed = compress(random.Random(0).randbytes(1 << 20) + bytes(64 << 20))
    tracemalloc.start()
    try:
        assert len(decompress(packed, encoding, 2 << 20)) == 2 << 20
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert 0 < len(decompress(packed[: len(packed) // 2], encoding, 2 << 20)) < 1 << 20


async def test_cookies_stay_with_their_client(run):
    """What the server sets for one client is passed on to that client, and never sent for another."""

    async def greet(request: web.Request) -> web.Response:
        response = web.json_response({"cookies": dict(request.cookies)})
        response.set_cookie("who", "first")
        return response

    with serving(greet) as url:
        async with proxied(url.replace("127.0.0.1", "localhost"), run) as client:
            for _ in range(2):
                async with client.get("/v1/models", headers={"Cookie": "mine=1"}) as response:
                    assert await response.json() == {"cookies": {"mine": "1"}}
                    assert "who=first" in response.headers["Set-Cookie"]
                client.cookie_jar.clear()


@given(st.lists(st.integers(0, 300), max_size=30), st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]))
def test_a_stream_is_the_same_in_any_pieces(sizes, separator):
    """Events are read alike wherever the pieces of a stream end, and however its lines do."""
    data = body_of(2)[0].replace(b"\n\n", separator)
    stream = EventStream()
    for size in sizes:
        stream.add(data[:size])
        data = data[size:]
    stream.add(data)
    assert stream.answer["choices"][0]["message"]["content"] == body_of(2)[1]
