"""The Agents SDK and litellm, which sit on the clients of the `openai` package, are recorded through them."""

import json

import pytest
from aiohttp import web

import rolltrace
from loopback import chat, serving
from rolltrace.store.reader import RunReader

pytestmark = pytest.mark.warns("history_not_continued", "reward_missing")

openai = pytest.importorskip("openai")

WHICH = {"env": "chat", "task": "t", "group": "g", "index": 0}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
ITEM = {
    "type": "function_call", "id": "f", "call_id": "c1", "name": "add", "arguments": '{"a": 2, "b": 2}',
    "status": "completed",
}  # fmt: skip


async def answer(request: web.Request) -> web.Response:
    """The server calls the tool first, and then answers."""
    body = await request.json()
    has_result = "4" in json.dumps(body.get("messages", body.get("input"))[-1:])
    if request.path.endswith("/chat/completions"):
        completion = chat("The sum is 4.") if has_result else chat("", tool_calls=[CALL])
        return web.json_response({"id": "x", "created": 1, **completion})
    text = {"type": "output_text", "text": "The sum is 4.", "annotations": []}
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [text]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return web.json_response({
        "id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed", "tools": [],
        "output": [message if has_result else ITEM], "parallel_tool_calls": True, "tool_choice": "auto",
        "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, **details},
    })  # fmt: skip


@pytest.fixture
def address(monkeypatch):
    """The address of the server. Certificates that the machine's settings name are not needed, and may not exist."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    with serving(answer) as url:
        yield url


def steps(run):
    """The steps of the one rollout."""
    assert run.flush()
    [rollout] = RunReader(run.path).rollouts()
    return rollout.steps


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
async def test_an_agent_with_a_tool(run, address, api):
    """Each turn of the agent is a step: the call of the tool, and the answer that follows its result."""
    agents = pytest.importorskip("agents")
    client = openai.AsyncOpenAI(api_key="k", base_url=address)
    recorded = rolltrace.record_calls(client)
    agents.set_tracing_disabled(True)
    model = {"chat_completions": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = agents.Agent("sums", instructions="Use the tool.", tools=[add], model=model("m", openai_client=client))
    with run.rollout(**WHICH):
        result = await agents.Runner.run(agent, "2 + 2?")
    first, second = steps(run)
    assert result.final_output == second.trace.policy_response.content == "The sum is 4."
    assert [message.role for message in first.trace.prompt] == ["system", "user"]
    assert first.trace.policy_response.tool_calls[0].arguments == '{"a": 2, "b": 2}'
    assert (second.trace.prompt[-1].role, second.trace.prompt[-1].content) == ("tool", "4")
    assert second.trace.prompt[-1].tool_call_id == "c1"
    recorded.undo()
    await client.close()


@pytest.mark.filterwarnings("ignore")  # its own, about its types
def test_litellm(run, address, monkeypatch):
    """A client that is handed to litellm is recorded."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # so that it downloads nothing
    litellm = pytest.importorskip("litellm")
    with openai.OpenAI(api_key="k", base_url=address) as client, run.rollout(**WHICH):
        rolltrace.record_calls(client)
        messages = [{"role": "user", "content": "2 + 2?"}]
        litellm.completion("openai/m", messages, client=client, api_base=address, api_key="k")
    [step] = steps(run)
    assert [message.content for message in step.trace.prompt] == ["2 + 2?"]
    assert step.trace.policy_response.tool_calls[0].name == "add"
