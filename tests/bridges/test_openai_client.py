"""Calls of the clients of the `openai` package become steps, on every way that a call can go."""

import asyncio
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

import rolltrace
from loopback import chat, serving
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message

pytestmark = pytest.mark.warns("dropped", "history_not_continued", "reward_missing")

openai = pytest.importorskip("openai")

WHICH = {"env": "chat", "task": "t", "group": "g", "index": 0}
QUESTION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": PARAMETERS}}
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
DELTAS = [
    {"role": "assistant", "content": "Let "},
    {"content": "me see."},
    {"tool_calls": [CALL]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "2}"}}]},
]
TEXT = {"type": "output_text", "text": "4", "annotations": []}
USAGE = {"input_tokens": 7, "output_tokens": 1, "total_tokens": 8}
RESPONSE = {
    "id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": [], "usage": USAGE,
    "output": [{"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [TEXT]}],
    "parallel_tool_calls": True, "tool_choice": "auto",
}  # fmt: skip


async def answer(request: web.Request) -> web.StreamResponse:
    """The server: it does what the model's name says."""
    if request.method != "POST":
        return web.json_response({"object": "list", "data": []})
    body = await request.json()
    if body["model"] == "broken":
        return web.json_response({"error": {"message": "no such model"}}, status=400)
    if request.path.endswith("/responses"):
        if not body.get("stream"):
            return web.json_response(RESPONSE)
        delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "4"}
        done = {"type": "response.completed", "response": RESPONSE}
        return await _send(request, [{**event, "sequence_number": n} for n, event in enumerate((delta, done))])
    if body.get("stream"):
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in DELTAS]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}})
        if body["model"] == "cut":
            del chunks[2:]
        shared = {"id": "s", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return await _send(request, [{**shared, **chunk} for chunk in chunks], cut=body["model"] == "cut")
    completion = {"id": "x", "created": 1, **chat("4")}
    choices = [{**completion["choices"][0], "index": n} for n in range(body.get("n") or 1)]
    return web.json_response({**completion, "choices": choices})


async def _send(request: web.Request, events: list[dict[str, object]], cut: bool = False) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
    if cut:
        request.transport.abort()
    else:
        await response.write(b"data: [DONE]\n\n")
    return response


@pytest.fixture(scope="module")
def address():
    """The address of the server. Certificates that the machine's settings name are not needed, and may not exist."""
    with serving(answer) as url, pytest.MonkeyPatch.context() as settings:
        settings.delenv("SSL_CERT_FILE", raising=False)
        settings.delenv("SSL_CERT_DIR", raising=False)
        yield url


@pytest.fixture(params=["sync", "async"])
def api(request, address):
    """A client that is recorded, asked in the same way whether it is sync or not."""
    kind = openai.OpenAI if request.param == "sync" else openai.AsyncOpenAI
    loop = asyncio.new_event_loop()
    client = kind(api_key="sk-secret", base_url=address, max_retries=0)
    recorded = rolltrace.record_calls(client)

    async def consume(stream, most):
        events = []
        if most != 0:
            async for event in stream:
                events.append(event)
                if len(events) == most:
                    break
        return events

    def wait(value):
        return loop.run_until_complete(value) if hasattr(value, "__await__") else value

    def read(stream, most=None):
        if hasattr(stream, "__aiter__"):
            return loop.run_until_complete(consume(stream, most))
        return list(islice(stream, most))

    yield SimpleNamespace(client=client, recorded=recorded, wait=wait, read=read, chat=client.chat.completions)
    recorded.undo()
    wait(client.close())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def only(run):
    """The one rollout so far."""
    assert run.flush()
    [rollout] = RunReader(run.path).rollouts()
    return rollout


def test_a_call_is_a_step(run, api):
    """Prompt, answer, tools, settings, usage and time of the call are in the step, which has no reward yet."""
    messages = [dict(message) for message in QUESTION]
    with run.rollout(**WHICH) as r:
        api.wait(api.chat.create(model="m", messages=messages, tools=[TOOL], temperature=0.5, max_completion_tokens=9))
        messages[1]["content"] = "changed later"
        r.grade(1.0)
    rollout = only(run)
    [step] = rollout.steps
    assert [message.content for message in step.trace.prompt] == ["Be brief.", "2 + 2?"]
    assert step.trace.policy_response == Message("assistant", "4")
    assert (step.usage, step.termination, step.env_reward) == (rolltrace.Usage(3, 2), "eos", None)
    assert rollout.tools[step.tools][0].name == "add"
    assert (rollout.sampling[step.sampling].temperature, rollout.sampling[step.sampling].max_tokens) == (0.5, 9)
    assert step.extra["api_response"]["id"] == "x"
    assert step.seconds > 0
    assert rollout.reward == 1.0
    assert b"sk-secret" not in b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())


@pytest.mark.parametrize("way", ["create", "stream helper", "streaming response"])
def test_a_stream_is_one_step(run, api, way):
    """The pieces of a stream are put together: text, tool calls, finish reason and usage."""
    arguments = {"model": "m", "messages": QUESTION, "tools": [TOOL]}

    async def read_async(manager):
        async with manager as stream:
            opened = await stream.parse() if way == "streaming response" else stream
            return [event async for event in opened]

    def read(manager):
        if hasattr(manager, "__aenter__"):
            return api.wait(read_async(manager))
        with manager as stream:
            return list(stream.parse() if way == "streaming response" else stream)

    with run.rollout(**WHICH):
        if way == "create":
            assert len(api.read(api.wait(api.chat.create(**arguments, stream=True)))) == 6
        elif way == "stream helper":
            assert read(api.chat.stream(**arguments))
        else:
            assert len(read(api.chat.with_streaming_response.create(**arguments, stream=True))) == 6
    [step] = only(run).steps
    response = step.trace.policy_response
    assert (response.content, step.termination, step.usage) == ("Let me see.", "tool_calls", rolltrace.Usage(9, 4))
    assert [(call.id, call.name, call.arguments) for call in response.tool_calls] == [("c1", "add", '{"a": 2}')]
    assert "partial" not in step.extra


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api(run, api, stream):
    """Instructions and items of the input are messages; tool calls and their results keep their ids."""
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]},
        {"type": "reasoning", "id": "q", "summary": [{"type": "summary_text", "text": "easy"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ]
    with run.rollout(**WHICH):
        made = api.wait(api.client.responses.create(model="m", instructions="Be brief.", input=items, stream=stream))
        if stream:
            assert len(api.read(made)) == 2
    [step] = only(run).steps
    prompt = step.trace.prompt
    assert [(message.role, message.content) for message in prompt] == [
        ("system", "Be brief."), ("user", "2 + 2?"), ("assistant", ""), ("assistant", ""), ("tool", "4")
    ]  # fmt: skip
    assert (prompt[2].reasoning, prompt[3].tool_calls[0].name, prompt[4].tool_call_id) == ("easy", "add", "c1")
    assert (step.trace.policy_response.content, step.usage) == ("4", rolltrace.Usage(7, 1))


def test_raw_responses_and_copies_of_the_client(run, api):
    """A raw response is recorded from its bytes; a client made by `with_options` is recorded, too."""
    with run.rollout(**WHICH):
        raw = api.wait(api.chat.with_raw_response.create(model="m", messages=QUESTION))
        assert raw.parse().choices[0].message.content == "4"
        api.wait(api.client.with_options(timeout=20).chat.completions.create(model="m", messages=QUESTION))
        api.wait(api.client.models.list())  # not a call of the policy
    assert [step.trace.policy_response.content for step in only(run).steps] == ["4", "4"]


def test_several_choices(run, api):
    """Of several choices the first is the step, and the others are kept."""
    with run.rollout(**WHICH):
        api.wait(api.chat.create(model="m", messages=QUESTION, n=3))
    [step] = only(run).steps
    assert [choice["message"]["content"] for choice in step.extra["other_choices"]] == ["4", "4"]


def test_an_error_of_the_server_keeps_the_prompt(run, api):
    """The failed call is recorded with its error, and is raised; what follows is recorded as usual."""
    with run.rollout(**WHICH):
        with pytest.raises(openai.BadRequestError):
            api.wait(api.chat.create(model="broken", messages=QUESTION))
        api.wait(api.chat.create(model="m", messages=QUESTION[1:]))
    rollout = only(run)
    [call], [step] = rollout.calls, rollout.steps
    assert (call.role, call.error.type, [message.content for message in call.prompt]) == (
        "policy", "BadRequestError", ["Be brief.", "2 + 2?"]
    )  # fmt: skip
    assert [message.content for message in step.trace.prompt] == ["2 + 2?"]


@pytest.mark.parametrize(("most", "content"), [(2, "Let me see."), (1, "Let "), (0, "")])
def test_an_abandoned_stream(run, api, most, content):
    """A stream that is not read to its end is recorded when the rollout ends, as far as it was read."""
    with run.rollout(**WHICH):
        stream = api.wait(api.chat.create(model="m", messages=QUESTION, stream=True))
        api.read(stream, most)
    [step] = only(run).steps
    assert (step.trace.policy_response.content, step.extra["partial"]) == (content, True)
    del stream


def test_a_stream_that_is_cut(run, api):
    """What came before the connection broke is recorded, with the error, which is raised."""
    with run.rollout(**WHICH), pytest.raises(Exception, match=r"closed|onnection") as raised:
        api.read(api.wait(api.chat.create(model="cut", messages=QUESTION, stream=True)))
    [step] = only(run).steps
    assert (step.trace.policy_response.content, step.extra["partial"]) == ("Let me see.", True)
    assert step.extra["error"].startswith(raised.type.__name__)


def test_an_answer_after_the_end_is_dropped_and_counted(run, api):
    """A call that outlives its rollout is dropped without an error, and counted."""
    r = run.rollout(**WHICH)
    recorded = rolltrace.record_calls(api.client, rollout=r)
    r.end()
    api.wait(recorded.client.chat.completions.create(model="m", messages=QUESTION))
    assert not run.flush()
    assert (run.ledger.dropped_after_end["step"], recorded.failed) == (1, 0)


def test_outside_of_any_rollout(run, api, caplog):
    """Nothing is recorded, which is said once."""
    for _ in range(2):
        api.wait(api.chat.create(model="m", messages=QUESTION))
    assert api.recorded.outside == 2
    assert len([text for text in caplog.messages if "outside of any rollout" in text]) == 1
    assert run.ledger.dispatched == 0


def test_undo(run, api):
    """Afterwards the client is as it was; recording a client twice is recording it once."""
    assert rolltrace.record_calls(api.client) is api.recorded
    api.recorded.undo()
    assert not {"request", "copy", "with_options"} & vars(api.client).keys()
    with run.rollout(**WHICH):
        api.wait(api.chat.create(model="m", messages=QUESTION))
    assert only(run).steps == ()


def test_recording_never_raises_into_the_caller(run, api, monkeypatch, caplog):
    """If recording itself fails, the call succeeds; failures are counted, and logged once."""
    monkeypatch.setattr("rolltrace.bridges.openai_client.record_answer", lambda *_, **__: 1 / 0)
    with run.rollout(**WHICH):
        for _ in range(2):
            assert api.wait(api.chat.create(model="m", messages=QUESTION)).choices[0].message.content == "4"
    assert api.recorded.failed == 2
    assert len([text for text in caplog.messages if "ZeroDivisionError" in text]) == 1


def test_threads(run, address):
    """A client bound to a rollout records the calls of a thread pool in it; the client itself does not know them."""
    with (
        openai.OpenAI(api_key="k", base_url=address) as client,
        run.rollout(**WHICH) as r,
        ThreadPoolExecutor(8) as pool,
    ):
        bound = rolltrace.record_calls(client, rollout=r).client
        asked = [
            pool.submit(bound.chat.completions.create, model="m", messages=[{"role": "user", "content": str(n)}])
            for n in range(40)
        ]
        for one in asked:
            one.result()
    steps = only(run).steps
    assert {step.trace.prompt[-1].content for step in steps} == set(map(str, range(40)))
    assert {step.trace.policy_response.content for step in steps} == {"4"}


def test_only_clients_are_recorded():
    """Anything else is named."""
    with pytest.raises(rolltrace.RolltraceError, match="Expected a client of the openai package, got dict"):
        rolltrace.record_calls({})


def test_the_guide_runs(address, tmp_path):
    """The guide's blocks are one program."""
    guide = Path(__file__).parents[2] / "docs" / "guides" / "record-openai-calls.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL))
    settings = os.environ | {"OPENAI_BASE_URL": address, "OPENAI_API_KEY": "k"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["0 outside, 0 failed", *["(1, '4', 2)"] * 4]
