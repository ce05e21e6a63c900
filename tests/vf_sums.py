"""A taskset of verifiers for the tests of its bridge, with a harness that runs in this process."""

import asyncio

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["SumsHarness", "SumsTaskset"]

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


class SumsData(vf.TaskData):
    """A sum."""

    answer: str = ""


class SumsTaskConfig(vf.TaskConfig):
    """Where the judge is."""

    judge_url: str = ""
    scoring_fails: bool = False


class LengthJudge(vf.Judge[bool]):
    """Asks whether the answer is short."""

    prompt = "Is this short? {response}"

    def parse(self, response):
        return response.text.startswith("yes")


class SumsTask(vf.Task[SumsData, vf.State, SumsTaskConfig]):
    """Two weighted rewards, keyed scores, a metric and a stop."""

    @vf.reward(weight=0.7)
    async def correct(self, trace) -> float:
        if self.config.scoring_fails:
            raise ValueError("no score")
        return float(self.data.answer in trace.last_reply) + 0.1

    @vf.reward(weight=-0.3)
    async def parts(self, trace) -> dict[str, float]:
        return {"turns": float(trace.num_turns), "letters": float(len(trace.last_reply))}

    @vf.reward
    async def short(self, trace) -> float:
        if not self.config.judge_url:
            return 0.0
        config = vf.JudgeConfig(model="judge", base_url=self.config.judge_url, api_key_var="NO_SUCH_KEY")
        verdict = await LengthJudge(config).evaluate(trace=trace, response=trace.last_reply)
        return float(verdict.parsed)

    @vf.metric
    async def tools_used(self, trace) -> float:
        return float(len(trace.tool_messages))

    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return "give up" in trace.last_reply


class SumsConfig(vf.TasksetConfig):
    """How many sums."""

    task: SumsTaskConfig = SumsTaskConfig()
    sums: int = 2


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    """1 + 1, 2 + 2, and so on."""

    def load(self):
        for number in range(1, self.config.sums + 1):
            prompt = f"What is {number} + {number}?"
            data = SumsData(name=f"sum-{number}", prompt=prompt, system_prompt="Be brief.", answer=str(2 * number))
            yield SumsTask(data, self.config.task)


class SumsHarnessConfig(vf.HarnessConfig):
    """What the program does."""

    retries: int = 0
    compacts: bool = False
    tools: bool = True
    parallel: bool = False


class SumsHarness(vf.Harness[SumsHarnessConfig]):
    """A chat loop: it answers tool calls, and may start over with a summary."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=60) as client:
            if self.config.parallel:  # two agents at once
                others = [{"role": "user", "content": "Somebody else's."}]
                bodies = [{"model": ctx.model, "messages": each} for each in (messages, others)]
                url = f"{endpoint}/chat/completions"
                await asyncio.gather(*(client.post(url, json=body) for body in bodies))
                return ProgramResult(exit_code=1, stdout="", stderr="no answer")
            while True:
                body = {"model": ctx.model, "messages": messages}
                if self.config.tools:
                    body["tools"] = [CALCULATOR]
                reply = await self._answer(client, f"{endpoint}/chat/completions", body)
                if reply is None:
                    return ProgramResult(exit_code=1, stdout="", stderr="no answer")
                messages = [*messages, reply]
                if not reply.get("tool_calls"):
                    if not self.config.compacts or len(messages) < 5:
                        return ProgramResult(exit_code=0, stdout="", stderr="")
                    messages = [messages[0], {"role": "user", "content": "In short: the sum is known. Say it."}]
                for call in reply.get("tool_calls") or ():
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "the sum"})

    async def _answer(self, client, url, body):
        for _ in range(self.config.retries + 1):
            response = await client.post(url, json=body)
            if response.status_code == 200:
                return response.json()["choices"][0]["message"]
        return None
