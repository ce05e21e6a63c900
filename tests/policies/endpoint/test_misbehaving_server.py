"""Whatever a server does, the rollout ends as in "Every way out of a rollout", with the raw reply in the record."""

import asyncio
import json
from unittest.mock import patch

import pytest

from policies.endpoint.misbehaving import (
    Server,
    call,
    calls,
    completion,
    drips,
    gzipped,
    hangs,
    replies,
    resets,
    says,
    waits,
)
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.envs.tools import Tool
from rolltrace.errors import ContextOverflowError
from rolltrace.policies.endpoint import backoff
from rolltrace.policies.endpoint.api_key import EnvironmentApiKey
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.endpoint.http_client import MAX_REPLY_BYTES
from rolltrace.policies.endpoint.server_errors import error_from_status
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.message import Message
from stage import Stage

RETRIES = 2
MODEL = "parrot"


def look(at: str) -> str:
    """Look at something.

    Args:
        at: what to look at

    """
    return f"You see the {at}."


def listen() -> str:
    """Listen."""
    return "You hear nothing."


class Played:
    """What one rollout against a server left behind."""

    def __init__(self, server, rollout, slept):
        self.server = server
        self.rollout = rollout
        self.slept = slept


async def play(*behaviours, limits=Limits(), roles=None, **settings):
    """Plays one conversation with a tool by the real runner, against a server with these behaviours."""
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    async with Server(*behaviours) as server:
        policy = EndpointPolicy(MODEL, server.url, **{"retries": RETRIES, "timeout": 60.0, **settings})
        sink = MemorySink()
        stage = Stage(lambda _: ToolEnv([Message("user", "Look around.")], [Tool(look), Tool(listen)]))
        try:
            with patch.object(backoff, "sleep", sleep):
                _ = [group async for group in Runner(policy, sink=sink, limits=limits).play([stage])]
        finally:
            await policy.close()
    [rollout] = sink.rollouts
    assert rollout.policy == MODEL
    return Played(server, rollout, slept)


def expect_failure(played, *words, asked, raw):
    """Asserts a failure of the policy: the total is null, and the prompt and the raw reply are kept."""
    rollout = played.rollout
    assert (rollout.status, rollout.stop_reason, rollout.reward, rollout.steps) == ("error", "error", None, ())
    assert (rollout.error.layer, rollout.error.type) == ("policy", "PolicyError")
    for word in words:
        assert word in rollout.error.message
    assert [message.content for message in rollout.pending_messages] == ["Look around."]
    assert rollout.pending_raw == raw
    assert len(played.server.sent) == asked
    assert len(played.slept) == asked - 1


def expect_answer(played, content="Hello.", *, asked=1):
    rollout = played.rollout
    assert (rollout.status, rollout.stop_reason) == ("ok", "completed")
    assert rollout.steps[-1].trace.policy_response.content == content
    assert len(played.server.sent) == asked


async def test_a_good_answer():
    """The prompt is sent with its tools, and the answer is recorded with its usage."""
    played = await play(says("Hello."), version=4)
    expect_answer(played)
    step = played.rollout.steps[0]
    assert (step.termination, step.raw, step.parse_error, step.policy_version) == ("eos", None, None, 4)
    assert (step.usage.prompt_tokens, step.usage.completion_tokens) == (7, 3)
    [sent] = played.server.sent
    assert sent["model"] == MODEL
    assert sent["messages"] == [{"role": "user", "content": "Look around."}]
    assert sent["tools"][0]["function"]["name"] == "look"
    assert sent["tools"][0]["function"]["parameters"]["required"] == ["at"]


# Connections


async def test_a_slow_first_byte_is_asked_for_again():
    """A request without a first byte in time is retried, and fails the rollout if all retries do."""
    expect_answer(await play(hangs(), says()), asked=2)
    expect_failure(await play(hangs()), "no complete reply within 60 s", "asked 3 times", asked=3, raw=None)


async def test_a_slow_drip_is_cut():
    """A reply that drips without end is given up at the time-out; the bytes so far are kept."""
    played = await play(drips([b'{"choices"', *[b" "] * 200], seconds=1.0), retries=0)
    rollout = played.rollout
    assert "no complete reply within 60 s" in rollout.error.message
    assert rollout.pending_raw.startswith('{"choices"')
    assert len(rollout.pending_raw) < 210


async def test_a_reset_is_asked_for_again():
    """A connection that breaks before or during a reply is retried; the bytes so far are kept."""
    expect_answer(await play(resets(), resets(b'{"choices": ['), says()), asked=3)
    expect_failure(await play(resets()), MODEL, "asked 3 times", asked=3, raw=None)
    expect_failure(await play(resets(b'{"choices": [')), "asked 3 times", asked=3, raw='{"choices": [')


async def test_a_server_that_is_not_running():
    """The error of a refused connection names the address."""
    async with Server() as server:
        url = server.url
    sink = MemorySink()
    policy = EndpointPolicy(MODEL, url, retries=0)
    stage = Stage(lambda _: ToolEnv([Message("user", "Look around.")], [Tool(look)]))
    _ = [group async for group in Runner(policy, sink=sink).play([stage])]
    await policy.close()
    assert url in sink.rollouts[0].error.message
    assert "ClientConnectorError" in sink.rollouts[0].error.message


@pytest.mark.parametrize(
    "behaviour",
    [
        drips(
            [bytes([byte]) for byte in b'{"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}']
        ),
        gzipped(completion()),
        replies(completion(), content_type="text/plain"),
    ],
    ids=["chunked", "gzip", "wrong content type"],
)
async def test_odd_transport_is_no_failure(behaviour):
    """Chunks, compression and a wrong content type are accepted if the reply can be read."""
    expect_answer(await play(behaviour))


async def test_a_reply_of_ten_megabytes():
    """A long answer is recorded whole."""
    text = "long " * 2_000_000
    played = await play(says(text))
    assert played.rollout.steps[0].trace.policy_response.content == text


async def test_a_reply_without_end():
    """A reply that exceeds the largest size is not read to its end."""
    sent = []

    def endless():
        while True:
            sent.append(b" " * 4_000_000)
            yield sent[-1]

    played = await play(drips(endless()))
    rollout = played.rollout
    assert f"at most {MAX_REPLY_BYTES:,} bytes" in rollout.error.message
    assert (len(rollout.pending_raw), len(played.server.sent)) == (100_000, 1)
    assert len(sent) * 4_000_000 < 1.5 * MAX_REPLY_BYTES


# Statuses

BUSY = {"error": {"message": "slow down", "type": "rate_limit", "code": 429}}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_a_failure_that_passes_is_asked_for_again(status):
    """Status 429 and server errors are retried, and fail the rollout if they persist."""
    expect_answer(await play(replies(BUSY, status), replies(BUSY, status), says()), asked=3)
    raw = '{"error": {"message": "slow down", "type": "rate_limit", "code": 429}}'
    expect_failure(await play(replies(BUSY, status)), f"status {status}: slow down", "asked 3 times", asked=3, raw=raw)


async def test_retry_after_is_honoured():
    """A retry waits as long as Retry-After says, slightly more at most, and never more than a minute."""
    played = await play(
        replies(BUSY, 429, headers={"Retry-After": "7"}), replies(BUSY, 429, headers={"Retry-After": "86400"}), says()
    )
    expect_answer(played, asked=3)
    first, second = played.slept
    assert 7.0 <= first <= 7.5
    assert second == 60.0


async def test_without_retry_after_the_waits_grow():
    """Without Retry-After, waits are drawn from a range that doubles."""
    played = await play(replies(BUSY, 429), retries=6)
    assert len(played.slept) == 6
    assert all(0.0 <= wait <= 0.5 * 2**place for place, wait in enumerate(played.slept))
    assert len(set(played.slept)) == 6


@pytest.mark.parametrize(
    ("status", "hint"), [(400, ""), (401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "base URL"), (422, "")]
)
async def test_a_refused_request_is_not_sent_again(status, hint):
    """A request that the server rejects is not retried: it would be rejected again."""
    played = await play(replies({"error": {"message": "not so"}}, status))
    expect_failure(played, f"status {status}: not so", hint, asked=1, raw='{"error": {"message": "not so"}}')


async def test_an_exhausted_quota_is_not_waited_for():
    """A 429 for an exhausted quota is not retried: it does not pass by waiting."""
    body = {"error": {"message": "You exceeded your quota.", "type": "insufficient_quota"}}
    played = await play(replies(body, 429))
    assert len(played.server.sent) == 1
    assert "exceeded your quota" in played.rollout.error.message


async def test_a_redirect_is_not_followed():
    """A redirect is not followed, because the key is for one server; the error names the new address."""
    async with Server(says()) as elsewhere:
        location = f"{elsewhere.url}/v1/chat/completions"
        played = await play(replies("moved", 307, headers={"Location": f"{location}?secret=1"}))
        assert elsewhere.sent == []
    expect_failure(played, "status 307", f"to {elsewhere.url}:", asked=1, raw="moved")
    assert "secret" not in played.rollout.error.message


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, {"error": {"code": "context_length_exceeded", "message": "Too long.", "type": "invalid_request_error"}}),
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 6048 tokens. However, you requested 6616 tokens.",
                "code": 400,
            },
        ),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "request (35031 tokens) exceeds the available context size (2048 tokens)",
                    "type": "exceed_context_size_error",
                    "n_ctx": 2048,
                }
            },
        ),
        (400, {"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}}),
        (
            422,
            {
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4090",
                "error_type": "validation",
            },
        ),
        (200, {"error": {"code": 400, "message": "maximum context length is 8 tokens"}}),
        (400, {"error": {"message": "Provider returned error", "metadata": {"raw": "prompt is too long: 9 > 8"}}}),
        (400, {"error": {"message": "x" * 600 + " prompt is too long"}}),
        (400, "y " * 1500 + "prompt is too long"),
    ],
    ids=["openai", "vllm", "llama.cpp", "sglang", "tgi", "gateway", "metadata", "late", "late text"],
)
async def test_a_prompt_that_is_too_long(status, body):
    """Each server's message for a prompt that is too long is recognised as a context overflow."""
    played = await play(replies(body, status))
    rollout = played.rollout
    assert (rollout.status, rollout.stop_reason, rollout.stopped_by) == ("ok", "context_overflow", "runner")
    assert (rollout.reward, rollout.steps, len(played.server.sent)) == (-0.1, (), 1)


@pytest.mark.parametrize(
    ("message", "overflow"),
    [
        ("The prompt's 9 tokens exceeds the maximum allowed length of 8.", True),
        ("This model's maximum prompt length is 8 but the request contains 9 tokens.", True),
        ("the input length exceeds the context length", True),
        ("The number of tokens to keep from the initial prompt is greater than the context length", True),
        ("Prompt length 9 exceeds maximum input length 8.", True),
        ("prompt length (9) + max_tokens (1) should not exceed max_seq_len (8)", True),
        ("too many tokens: 9", True),
        ("Your input exceeds the context window of this model.", True),
        ("The context window is too small for this prompt.", True),
        ("Unknown parameter: 'context window'.", False),
        ("Unknown parameter: 'max_seq_len'.", False),
    ],
)
def test_the_words_of_an_overflow(message, overflow):
    """Each known message counts as an overflow; one that only mentions the context window does not."""
    body = json.dumps({"error": {"message": message}}).encode()
    error = error_from_status(400, body, where="m at h", key=EnvironmentApiKey("KEY"))
    assert isinstance(error, ContextOverflowError) == overflow


async def test_too_many_tokens_a_minute_is_no_overflow():
    """A rate limit on tokens is a rate limit, not an overflow."""
    body = {"error": {"message": "Rate limit reached: maximum context length of 8 tokens a minute."}}
    expect_answer(await play(replies(body, 429), says()), asked=2)


# Replies that are not completions


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"choices": [{"message"', "truncated"),
        ("", "truncated"),
        ("null", "null"),
        ('{"choices": []}', "no choices"),
        ("{}", "no choices"),
        ('{"choices": [{"message": "hello"}]}', "Expected `object`"),
        ('{"choices": {"message": "hello"}}', "Expected `array | null`"),
        ('{"choices": [{}]}', "message"),
        ('{"choices": [{"message": {"content": "He"}, "finish_reason": "abort"}]}', "aborted"),
        ("[" * 100_000, ""),
    ],
)
async def test_a_reply_that_is_not_a_completion(body, words):
    """It is retried, and then fails as an error of the policy, not as a parse error of the model's text."""
    expect_answer(await play(replies(body), says()), asked=2)
    expect_failure(await play(replies(body)), "Expected a chat completion", words, asked=3, raw=body)


async def test_a_web_page_is_asked_for_again():
    """A web page with status 200 may be a proxy's during a restart, so it is retried; the error names the base URL."""
    page = "<!DOCTYPE html><html>Welcome</html>"
    expect_answer(await play(replies(page, content_type="text/html"), says()), asked=2)
    played = await play(replies(page, content_type="text/html"))
    expect_failure(played, "web page", "base URL", "asked 3 times", asked=3, raw=page)
    played = await play(replies(page, 502, content_type="text/html"))
    expect_failure(played, "status 502", "Welcome", asked=3, raw=page)


# What the model wrote


async def test_a_refusal_is_what_was_said():
    """A refusal becomes the answer's text, marked as a refusal."""
    played = await play(says(None, refusal="I will not."))
    expect_answer(played, "I will not.")
    assert played.rollout.steps[0].trace.policy_response.other.to_dict() == {"refusal": True}
    assert '"refusal": "I will not."' in played.rollout.steps[0].raw


async def test_a_filtered_answer_is_malformed():
    """An answer that a content filter cut is malformed."""
    played = await play(says("I ha", finish_reason="content_filter"))
    rollout = played.rollout
    assert (rollout.stop_reason, rollout.reward, rollout.steps[0].termination) == ("parse_error", -1.0, "malformed")
    assert "content_filter" in rollout.steps[0].parse_error
    assert rollout.steps[0].raw == '{"role": "assistant", "content": "I ha"}'


async def test_a_cut_answer():
    """An answer that is cut at the token limit ends a conversation."""
    rollout = (await play(says("I ha", finish_reason="length"))).rollout
    assert (rollout.stop_reason, rollout.reward) == ("max_tokens", -0.1)


async def test_tool_calls_with_broken_arguments():
    """Arguments are kept as the model wrote them; if no call can be parsed, the turn is a parse error."""
    played = await play(calls(call(arguments='{"at": ')))
    rollout = played.rollout
    assert (rollout.stop_reason, rollout.reward) == ("parse_error", -0.1)
    step = rollout.steps[0]
    assert step.trace.policy_response.tool_calls[0].arguments == '{"at": '
    assert "JSON object" in step.parse_error
    assert '{\\"at\\": ' in step.raw


@pytest.mark.parametrize("arguments", ["", "null", "  \n", " null\t", None])
async def test_a_call_without_arguments(arguments):
    """Empty, blank or null arguments mean none: the call runs, is kept as written, and is resent as an object."""
    played = await play(calls(call("listen", arguments)), says())
    expect_answer(played, asked=2)
    _, answer, tool = played.server.sent[1]["messages"]
    assert (answer["tool_calls"][0]["function"]["arguments"], tool["content"]) == ("{}", "You hear nothing.")
    [first, _] = played.rollout.steps
    [recorded] = first.trace.policy_response.tool_calls
    assert (recorded.arguments, first.parse_error) == ("{}" if arguments is None else arguments, None)


async def test_a_call_without_the_arguments_that_its_tool_needs():
    """A call without its required arguments is parsed, and the model is told what is missing."""
    played = await play(calls(call("look", "")), says())
    expect_answer(played, asked=2)
    assert "missing required field `at`" in played.server.sent[1]["messages"][2]["content"]


async def test_a_broken_call_can_be_sent_again():
    """Servers refuse arguments that are not JSON, so the next request wraps them."""
    played = await play(
        calls(call(arguments='{"at": '), call("peek at!", "[1]", id="c2")),
        says(),
        limits=Limits(max_parse_retries=1),
    )
    expect_answer(played, asked=2)
    first, second = played.server.sent[1]["messages"][1]["tool_calls"]
    assert first["function"] == {"name": "look", "arguments": '{"unreadable":"{\\"at\\": "}'}
    assert second["function"] == {"name": "peek_at_", "arguments": '{"unreadable":"[1]"}'}
    recorded = played.rollout.steps[1].trace.prompt[1].tool_calls
    assert [made.arguments for made in recorded] == ['{"at": ', "[1]"]


async def test_unknown_tools_are_told_to_the_model():
    """An unknown tool is answered with an error, and play continues."""
    played = await play(calls(call("fly", "{}")), says())
    expect_answer(played, asked=2)
    assert "fly" in played.server.sent[1]["messages"][2]["content"]


@pytest.mark.parametrize("identity", [None, "", "same"])
async def test_missing_ids_are_made_up(identity):
    """A call without an id gets one of its own, which its answer names; raw keeps what came."""
    fields = {} if identity is None else {"id": identity}
    given = [{"type": "function", "function": call()["function"], **fields} for _ in range(2)]
    played = await play(calls(*given), says())
    expect_answer(played, asked=2)
    _, answer, *tools = played.server.sent[1]["messages"]
    ids = [made["id"] for made in answer["tool_calls"]]
    assert ids == ["same" if identity == "same" else "call_1_0", "call_1_1"]
    assert [tool["tool_call_id"] for tool in tools] == ids
    assert [tool["content"] for tool in tools] == ["You see the wall."] * 2
    assert '"tool_calls"' in played.rollout.steps[0].raw


async def test_tool_calls_of_the_wrong_type():
    """An entry of `tool_calls` that is not a call counts as an unreadable call."""
    rollout = (await play(calls("look!", 7, {"function": None}))).rollout
    assert rollout.stop_reason == "parse_error"
    assert '"look!"' in rollout.steps[0].raw


# Many at once, and the end


async def test_the_cap_holds():
    """No more requests than `max_in_flight` run at once."""
    release = asyncio.Event()
    full = asyncio.Event()

    async def slow(request):
        if server.in_flight == 3:
            full.set()
        await release.wait()
        return await says()(request)

    async with Server(slow) as server:
        policy = EndpointPolicy(MODEL, server.url, max_in_flight=3, retries=0)
        stage = Stage(lambda _: ToolEnv([Message("user", "Hi.")], [Tool(look)]), episodes=12)
        sink = MemorySink()

        async def run():
            _ = [group async for group in Runner(policy, sink=sink, concurrency=12).play([stage])]

        running = asyncio.create_task(run())
        await full.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        release.set()
        await running
        await policy.close()
    assert server.most_in_flight == 3
    assert [rollout.status for rollout in sink.rollouts] == ["ok"] * 12


async def test_a_cancelled_request_is_closed_at_once():
    """Cancelling a request closes its connection, and the rollout is recorded as `cancelled`."""
    async with Server(waits()) as server:
        policy = EndpointPolicy(MODEL, server.url)
        stage = Stage(lambda _: ToolEnv([Message("user", "Hi.")], [Tool(look)]))
        sink = MemorySink()

        async def run():
            _ = [group async for group in Runner(policy, sink=sink).play([stage])]

        running = asyncio.create_task(run())
        await server.reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.left.wait()
        await policy.close()
    [rollout] = sink.rollouts
    assert (rollout.status, rollout.stop_reason) == ("cancelled", "cancelled")
    assert [message.content for message in rollout.pending_messages] == ["Hi."]


async def test_each_step_has_the_version_that_answered():
    """The version is the one that was set when the request was sent, not when the answer came."""
    async with Server(calls(call()), says()) as server:
        policy = EndpointPolicy(MODEL, server.url, version=1)
        behave = server.behaviours

        async def train(request):
            policy.version = "step-2"
            return await behave[0](request)

        server.behaviours = (train, behave[1])
        sink = MemorySink()
        stage = Stage(lambda _: ToolEnv([Message("user", "Hi.")], [Tool(look)]))
        _ = [group async for group in Runner(policy, sink=sink).play([stage])]
        await policy.close()
    [rollout] = sink.rollouts
    assert [step.policy_version for step in rollout.steps] == [1, "step-2"]
