"""Token ids and log-probabilities are recorded where they add up, and nowhere else."""

from itertools import accumulate, pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from policies.endpoint.misbehaving import Server, call, completion, replies
from rolltrace.policies.endpoint.api_key import InMemoryApiKey
from rolltrace.policies.endpoint.dialects import join_token_bytes
from rolltrace.policies.endpoint.endpoint_policy import EndpointPolicy
from rolltrace.policies.policy import Request
from rolltrace.trace.message import Message, Sampling

PROMPT = "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n"
LLAMA = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]},
    "/tokenize": lambda body: {"tokens": [1, 2, 3] if body["content"] == PROMPT else []},
    "/detokenize": lambda body: {"content": "".join(TEXTS[token] for token in body["tokens"])},
}
TEXTS = {10: "Hel", 11: "lo", 12: " END", 13: "!", 99: "<|im_end|>"}
VLLM = {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}}


def entry(token, logprob=-0.5, **fields):
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": [], **fields}


def llama(content, ids, entries, *, written=None, stop_type="eos", finish_reason="stop", **fields):
    """A verbose reply of llama.cpp."""
    reply = completion(
        content, usage=(3, len(ids)), choice={"logprobs": {"content": entries}}, finish_reason=finish_reason, **fields
    )
    verbose = {
        "prompt": PROMPT, "tokens": ids, "content": content if written is None else written, "stop_type": stop_type,
    }  # fmt: skip
    return {**reply, "__verbose": verbose}


def vllm(content, ids, texts, *, finish_reason="stop", usage=None, stop_reason=None, **fields):
    """A reply of vLLM with token ids."""
    reply = completion(
        content, usage=usage or (3, len(ids)), finish_reason=finish_reason,
        choice={"logprobs": {"content": [*map(entry, texts)]}, "token_ids": ids, "stop_reason": stop_reason}, **fields,
    )  # fmt: skip
    return {**reply, "prompt_token_ids": [1, 2, 3]}


async def ask(reply, others, *, stop=(), include_tokens=True, times=1, key=None, **settings):
    async with Server(replies(reply), others=others) as server:
        policy = EndpointPolicy("m", server.url, key, retries=0, **settings)
        request = Request(
            messages=(Message("user", "Hi."),), sampling=Sampling(stop=stop), include_tokens=include_tokens
        )
        for _ in range(times):
            found = await policy.complete(request)
        await policy.close()
    return found, policy, server


HELLO = [entry("Hel", id=10), entry("lo", -0.25, id=11), {"token": "", "logprob": -0.1, "bytes": [], "id": 99}]


async def test_llama_cpp():
    """Token ids come in the verbose reply; those of the prompt are requested; the server is probed once."""
    found, policy, server = await ask(llama("Hello", [10, 11, 99], HELLO), LLAMA, times=2)
    assert (found.tokens.prompt, found.tokens.response) == ((1, 2, 3), (10, 11, 99))
    assert found.tokens.logprobs == (-0.5, -0.25, -0.1)
    assert found.tokens.char_lengths == (3, 2, 0)
    assert (found.raw, found.termination, dict(policy.missing_token_reasons)) == (None, "eos", {})
    assert [path for path, _ in server.asked] == ["/v1/models", "/tokenize", "/tokenize"]
    assert server.asked[1][1] == {"content": PROMPT, "add_special": True, "parse_special": True}
    assert server.sent[0]["verbose"] is server.sent[0]["return_tokens"] is server.sent[0]["logprobs"] is True


async def test_llama_cpp_with_fewer_log_probabilities_than_tokens():
    """llama.cpp gives no log-probabilities for stop sequences and partial characters; the ids are still recorded."""
    reply = llama("Hello", [10, 11, 12, 13], HELLO[:2], stop_type="word")
    found, policy, _ = await ask(reply, LLAMA, stop=("END",))
    assert (found.tokens.response, found.tokens.logprobs) == ((10, 11, 12, 13), None)
    assert found.tokens.char_lengths is None
    assert (found.message.content, found.raw, found.termination) == ("Hello", "Hello END!", "stop_sequence")
    assert list(policy.missing_token_reasons) == ["ids only: not every token has a log-probability"]
    found, _, _ = await ask(llama("Hello", [10, 11, 99], HELLO[1:]), LLAMA)
    assert (found.tokens.response, found.tokens.logprobs, found.raw) == ((10, 11, 99), None, None)


async def test_what_the_model_wrote_before_it_was_parsed_is_raw():
    """Where the answer was parsed, the text of the tokens is in the record as `raw`."""
    entries = [entry("<think>hm</think>", id=10), entry("4", id=11)]
    reply = llama("4", [10, 11], entries, written="<think>hm</think>4", reasoning_content="hm")
    found, _, _ = await ask(reply, LLAMA)
    assert (found.message.content, found.message.reasoning, found.raw) == ("4", "hm", "<think>hm</think>4")
    assert (found.tokens.logprobs, found.tokens.char_lengths) == ((-0.5, -0.5), (17, 1))


@pytest.mark.parametrize(
    ("reply", "others", "reason"),
    [
        (llama("Hello", [10, 11, 99], HELLO), {**LLAMA, "/tokenize": {"tokens": [1, 2]}}, "2 and 3 ids"),
        (llama("Hello", [10, 11, 99], HELLO), {**LLAMA, "/tokenize": {"tokens": "123"}}, "the prompt has invalid ids"),
        (llama("Hello", [10, 11, 99], HELLO), {**LLAMA, "/tokenize": {}}, "cannot be parsed"),
        (llama("Hello", [10, 11, 99], HELLO), {"/v1/models": LLAMA["/v1/models"]}, "404"),
        (llama("Hallo", [10, 11, 99], HELLO), LLAMA, "not what the model wrote"),
        (llama("Hello", [], []), LLAMA, "no ids"),
        (completion("Hello"), LLAMA, "no `__verbose`"),
        ({**llama("Hello", [10, 11, 99], HELLO), "usage": None}, LLAMA, "no usage"),
        (completion("Hello"), {}, "does not list its models"),
        (completion("Hello"), {"/v1/models": {"data": []}}, "no token ids in a known dialect"),
        (completion("Hello"), {"/v1/models": {"data": [{"owned_by": ["x"]}]}}, "no token ids in a known dialect"),
        (completion("Hello"), VLLM, "no ids"),
        (vllm("Hello", [10, 11], ["Hel"]), VLLM, "2 ids and 1 log-prob"),
        (vllm("Hello", [10, 11], ["Hal", "lo"]), VLLM, "not the text of the answer"),
        (vllm("Hello", [10, 11], ["Hel", "lo"], usage=(3, 9)), VLLM, "counted 3 and 9"),
        (vllm("Hello", ["10", 11], ["Hel", "lo"]), VLLM, "the answer has invalid ids"),
        (vllm("Hello", [10, -1], ["Hel", "lo"]), VLLM, "the answer has invalid ids"),
        (vllm("Hello", [10, 2**31], ["Hel", "lo"]), VLLM, "the answer has invalid ids"),
        (
            {**vllm("Hello", [10, 11], ["Hel", "lo"]), "prompt_token_ids": [1, 2, -3]},
            VLLM,
            "the prompt has invalid ids",
        ),
        (llama("Hello", [10, 11, 99], [entry("Hel", 0.01, id=10), *HELLO[1:]]), LLAMA, "invalid log-probabilities"),
    ],
)
async def test_tokens_that_do_not_add_up_are_left_out(reply, others, reason):
    """Token ids that contradict the answer are dropped, the answer is kept, and the policy says why."""
    found, policy, _ = await ask(reply, others)
    assert found.tokens is None
    assert found.message.content in ("Hello", "Hallo")
    assert len(policy.missing_token_reasons) == 1
    assert reason in next(iter(policy.missing_token_reasons))


async def test_vllm():
    """All token data of vLLM are in one reply; the token that ends the turn has no visible text."""
    found, policy, server = await ask(vllm("Hello", [10, 11, 99], ["Hel", "lo", "<|im_end|>"]), VLLM)
    assert (found.tokens.prompt, found.tokens.response) == ((1, 2, 3), (10, 11, 99))
    assert (found.tokens.logprobs, found.tokens.char_lengths) == ((-0.5, -0.5, -0.5), (3, 2, 0))
    assert (found.raw, dict(policy.missing_token_reasons)) == (None, {})
    assert server.sent[0]["return_token_ids"] is True
    assert len(server.asked) == 1


async def test_vllm_with_what_was_cut_or_parsed():
    """The text of the tokens includes a stop sequence, reasoning and tool calls, so `raw` has them."""
    reply = vllm("Hel", [10, 12], ["Hel", " END"], stop_reason=" END")
    found, _, _ = await ask(reply, VLLM, stop=(" END",))
    assert (found.termination, found.raw, found.tokens.response) == ("stop_sequence", "Hel END", (10, 12))
    assert found.tokens.char_lengths == (3, 4)
    pieces = ["<think>", "hm", "</think>", '<tool_call>{"name": "look"}</tool_call>', "<|im_end|>"]
    reply = vllm(None, [1, 2, 3, 4, 5], pieces, reasoning="hm", tool_calls=[call()], finish_reason="tool_calls")
    found, _, _ = await ask(reply, VLLM)
    assert (found.raw, found.termination) == ("".join(pieces[:-1]), "tool_calls")
    assert found.tokens.char_lengths == (*map(len, pieces[:-1]), 0)
    reply = vllm("Hello", [10, 11], ["Hel", "lo"], finish_reason="length")
    found, _, _ = await ask(reply, VLLM)
    assert (found.raw, found.tokens.response) == (None, (10, 11))


def cuts(text):
    """The bytes of a text, cut at any places."""
    data = text.encode()
    places = st.lists(st.integers(0, len(data)), max_size=8).map(lambda found: [0, *sorted(found), len(data)])
    return places.map(lambda ends: [data[start:end] for start, end in pairwise(ends)])


@given(st.text(max_size=12).flatmap(cuts))
def test_a_character_is_counted_with_its_last_part(pieces):
    """Wherever tokens cut the bytes of a text, lengths add up, and the token that completes a character has it."""
    text, char_lengths = join_token_bytes(pieces)
    assert text.encode() == b"".join(pieces)
    for ended, until in zip(accumulate(char_lengths), accumulate(pieces), strict=True):
        assert text[:ended] == until.decode("utf-8", "ignore")


def test_bytes_that_are_not_utf8():
    """An incomplete last character is one U+FFFD of the last non-empty token; other bytes make the lengths unknown."""
    assert join_token_bytes(["é".encode(), "😀".encode()[:2], "😀".encode()[2:3], b""]) == ("é\ufffd", (1, 0, 1, 0))
    assert join_token_bytes([b"a", b"\xff", b"b"]) == ("a\ufffdb", None)
    assert join_token_bytes(["😀".encode()[:2], b"b"]) == ("\ufffdb", None)
    assert join_token_bytes([]) == ("", ())


async def test_tokens_are_asked_for_only_where_they_are_wanted():
    """Unless tokens are wanted, only the plain OpenAI API is used."""
    found, _, server = await ask(llama("Hello", [10, 11, 99], HELLO), LLAMA, include_tokens=False)
    assert (found.tokens, server.asked) == (None, [])
    assert set(server.sent[0]) == {"model", "messages"}
    _, _, server = await ask(completion("Hello"), VLLM, dialect="openai")
    assert (set(server.sent[0]), server.asked) == ({"model", "messages"}, [])


async def test_a_certain_token_may_be_rounded_above_zero():
    """A log-probability slightly above 0 is a rounding error, and is kept."""
    found, _, _ = await ask(llama("Hello", [10, 11, 99], [entry("Hel", 0.0005, id=10), *HELLO[1:]]), LLAMA)
    assert found.tokens.logprobs == (0.0005, -0.25, -0.1)


async def test_a_reason_is_logged_once_and_on_one_line(caplog):
    """A server's message cannot forge a log line, and messages that differ only in numbers count as one reason."""
    counts = iter(range(1000))

    def fail(body):
        return web.json_response({"error": {"message": f"no\n\x1b[31m{next(counts)}"}}, status=400)

    reply = llama("Hello", [10, 11, 99], HELLO)
    _, policy, _ = await ask(reply, {**LLAMA, "/tokenize": fail}, times=3)
    [(reason, times)] = policy.missing_token_reasons.items()
    assert (times, len(caplog.records)) == (3, 1)
    assert "no␊␛[31m0" in reason
    assert reason in caplog.messages[0]


async def test_reasons_are_bounded():
    """Memory is bounded for a server that always gives a new reason: after a hundred they count as `other reasons`."""
    lengths = iter(range(1, 1000))

    def fail(body):
        return web.json_response({"error": {"message": "x" * next(lengths)}}, status=400)

    _, policy, _ = await ask(llama("Hello", [10, 11, 99], HELLO), {**LLAMA, "/tokenize": fail}, times=130)
    assert len(policy.missing_token_reasons) == 101
    assert policy.missing_token_reasons["other reasons"] == 30


async def test_a_key_in_the_text_of_tokens():
    """The text of the tokens is recorded with the key redacted."""
    reply = vllm(
        None, [10, 11, 99], ["look sk-plan", "ted-0123", "<|end|>"], finish_reason="tool_calls", tool_calls=[call()]
    )
    found, _, _ = await ask(reply, VLLM, key=InMemoryApiKey("sk-planted-0123"))
    assert found.tokens is not None
    assert (found.raw, found.tokens.char_lengths) == ("look [key]", None)
