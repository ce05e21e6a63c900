"""A model on loopback for the tests with verifiers, and how they compare messages."""

import asyncio
import math
import threading

from aiohttp import web

from loopback import chat
from rolltrace.store.reader import RunReader
from rolltrace.trace.convert import as_message

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}


class Endpoint:
    """A model that calls the tool and then answers; `script` replaces its next answers."""

    def __init__(self):
        self.script = []
        self.bodies = []
        self.hangs = threading.Event()
        self.both = asyncio.Event()
        self.url = ""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return web.json_response({"object": "list", "data": []})
        body = await request.json()
        self.bodies.append(body)
        if request.path.endswith("/generate"):
            return web.json_response(self.generate(body))
        if body["model"] == "judge":
            return completion("yes, it is")
        step = self.script.pop(0) if self.script else None
        if isinstance(step, int):
            return web.json_response({"error": {"message": f"status {step}"}}, status=step)
        if step == "pair":  # fails once both requests are there
            if "pair" not in self.script:
                self.both.set()
            await self.both.wait()
            return web.json_response({"error": {"message": "both fail"}}, status=500)
        if step == "hang":
            self.hangs.set()
            await asyncio.Event().wait()
        if isinstance(step, dict):
            return web.json_response({"id": "x", "created": 1, **step})
        if body.get("tools") and not any(message["role"] == "tool" for message in body["messages"]):
            return completion("", reasoning_content="I add.", tool_calls=[CALL])
        return completion("It is 4.")

    @staticmethod
    def generate(body):
        """The endpoint of vLLM that verifiers trains with: tokens in, tokens and log-probabilities out."""
        tokens = [token % 50 + 10 for token in body["token_ids"][-3:]]
        content = [{"token": f"token_id:{token}", "logprob": -1 / (token + math.pi)} for token in tokens]
        choice = {"index": 0, "token_ids": tokens, "logprobs": {"content": content}, "finish_reason": "stop"}
        return {"request_id": "g", "choices": [choice]}


def completion(text, **fields):
    return web.json_response({"id": "x", "created": 1, **chat(text, **fields)})


def make_tokenizer(path):
    """A tokenizer that is trained on the spot, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["?", "<end>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["What is 1 + 1? Be brief."], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    fast.save_pretrained(path)
    return path


def plain(message):
    """A message of verifiers as one of ours, by its fields."""
    fields = message.model_dump(exclude_none=True)
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in fields.pop("tool_calls", ())
    ]
    fields.setdefault("content", "")
    return as_message({**fields, **({"tool_calls": calls} if calls else {})}, "", [])


def rollouts_of(run):
    assert run.flush()
    return list(RunReader(run.path).rollouts())
