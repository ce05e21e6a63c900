"""The embedded model, and its server's view of texts and ids."""

import asyncio

import msgspec
import pytest

from embedded import embedded_model
from rolltrace.trace.convert import to_openai


@pytest.fixture
async def model():
    """A policy of the embedded model."""
    policy = embedded_model()
    yield policy
    await policy.close()


class Tokenizer:
    """Makes requests to the model's server directly, without the policy."""

    def __init__(self, session, address):
        self._session = session
        self._address = address
        self._special = None

    async def text(self, ids):
        """The text of tokens."""
        return (await self._ask("/detokenize", {"tokens": list(ids)}))["content"] if ids else ""

    async def without_special(self, ids):
        """The ids without the special ones around messages."""
        if self._special is None:
            marks = {"content": "<|im_end|><|im_start|><|endoftext|>", "parse_special": True}
            self._special = (await self._ask("/tokenize", marks))["tokens"]
            assert len(self._special) == 3
        return [token for token in ids if token not in self._special]

    async def prompt(self, messages, tools=()):
        """The prompt text that the model reads for these messages and tools."""
        fields = {"messages": [to_openai(message) for message in messages]}
        if tools:
            fields["tools"] = [{"type": "function", "function": _function(tool)} for tool in tools]
        return (await self._ask("/apply-template", fields))["prompt"]

    async def _ask(self, path, fields):
        async with self._session.post(self._address + path, json=fields) as reply:
            assert reply.status == 200, await reply.text()
            return msgspec.json.decode(await reply.read())


def _function(tool):
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters.to_dict()}


@pytest.fixture
async def tokenizer(model):
    """The tokenizer of the embedded model."""
    import aiohttp

    from rolltrace.policies.llama.llama_server import SERVERS

    server = await asyncio.wrap_future(SERVERS.get(model.settings))
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.key}"}) as session:
        yield Tokenizer(session, server.address)
