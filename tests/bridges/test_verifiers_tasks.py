"""verifiers plays our environments through a taskset, and the record is that of our runner."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web

import rolltrace
from loopback import serving
from rolltrace.bridges.verifiers_tasks import to_verifiers
from rolltrace.envs.env import SingleEnvGroup
from rolltrace.errors import InputError
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.testing.noisy import NoisyPolicy
from rolltrace.trace.stop_reasons import Layer, Status
from unexplained_findings import explained_run
from vf_endpoint import Endpoint, completion, make_tokenizer, plain, rollouts_of

vf = pytest.importorskip("verifiers.v1")

pytestmark = [pytest.mark.core, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what verifiers uses


class Solver(Endpoint):
    """Answers sums in prose, or with the calculator where there is one."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else {}
        if self.script or not body.get("messages"):
            return await super().__call__(request)
        self.bodies.append(body)
        messages = body["messages"]
        if body.get("tools") and messages[-1]["role"] != "tool":
            expression = re.search(r"[\d(][\d ()+*/−-]+\d\)?", messages[-1]["content"])[0]
            tool = body["tools"][0]["function"]
            [argument] = tool["parameters"]["properties"]
            arguments = json.dumps({argument: expression})
            call = {"id": "c1", "type": "function", "function": {"name": tool["name"], "arguments": arguments}}
            return completion("", tool_calls=[call])
        return completion(f"Answer: {messages[-1]['content'] if body.get('tools') else 7}")


@pytest.fixture
def endpoint(monkeypatch):
    """The model, on loopback."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    endpoint = Solver()
    with serving(endpoint) as endpoint.url:
        yield endpoint


@pytest.fixture
def run(request, tmp_path):
    """A run that records tokens."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


async def play(taskset, endpoint, *, tasks=1, rollouts=1, agent=None, client=None):
    """The traces of verifiers."""
    agent = {"runtime": {"type": "subprocess"}, **(agent or {})}
    env = vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset.config, agent=agent))
    client = client or vf.EvalClientConfig(base_url=endpoint.url, api_key_var="NO_SUCH_KEY")
    ctx = vf.ModelContext(model="m", client=client)
    async with env.serving():
        slots = [slot for task in env.taskset.take(tasks) for slot in env.slots(task, rollouts)]
        return [trace for slot in slots for trace in (await env.run_slot(slot, ctx)).traces]


def assert_equals(rollout, trace):
    """What verifiers saw is what was recorded: turns, usage and reward."""
    sampled = [number for number, node in enumerate(trace.nodes) if node.sampled]
    assert len(rollout.steps) == len(sampled) == trace.num_turns
    for step, number in zip(rollout.steps, sampled, strict=True):
        path = []
        parent = trace.nodes[number].parent
        while parent is not None:
            path.insert(0, plain(trace.nodes[parent].message))
            parent = trace.nodes[parent].parent
        assert [(m.role, m.content, m.tool_calls) for m in step.trace.prompt] == [
            (m.role, m.content, m.tool_calls) for m in path
        ]
        assert step.trace.policy_response == plain(trace.nodes[number].message)
    assert trace.ok
    assert (rollout.reward, rollout.status) == (trace.reward, Status.OK)
    assert trace.info["rolltrace"]["rollout"] == rollout.id


@pytest.mark.parametrize("env", ["arithmetic", "calculator"])
async def test_verifiers_plays_our_environments(run, endpoint, env):
    """Prompts, tools, rewards and reward data are ours, and the turns are in verifiers' trace."""
    taskset = to_verifiers(env, run=run, iteration=2)
    traces = await play(taskset, endpoint, tasks=2, rollouts=2)
    rollouts = rollouts_of(run)
    assert [(each.env, each.index, each.iteration) for each in rollouts] == [(env, n, 2) for n in (0, 1, 0, 1)]
    for rollout, trace in zip(rollouts, traces, strict=True):
        assert_equals(rollout, trace)
        assert trace.metrics.items() >= rollout.steps[-1].reward_data.items()
    if env == "calculator":
        assert {rollout.reward for rollout in rollouts} == {1.0}
        assert all(len(rollout.steps) == 2 for rollout in rollouts)
    assert len({rollout.group for rollout in rollouts}) == 2


async def test_a_tasks_object_without_a_run(endpoint):
    """Nothing need be recorded, and arguments are those of the environment."""
    taskset = to_verifiers("guess_number", args={"high": 9, "max_turns": 3})
    [trace] = await play(taskset, endpoint)
    assert trace.num_turns <= 3
    assert "from 1 to 9" in trace.nodes[0].message.content


@pytest.mark.warns("history_tokenized_again")
async def test_tokens_are_those_of_the_trace(run, endpoint, tmp_path):
    """With verifiers' client for training, our record has its tokens and log-probabilities."""
    model = str(make_tokenizer(tmp_path / "tokenizer"))
    client = vf.TrainClientConfig(
        base_url=endpoint.url, api_key_var="NO_SUCH_KEY", renderer_model_name=model, renderer={"name": "default"}
    )
    [trace] = await play(to_verifiers("guess_number", run=run), endpoint, client=client, agent={"max_turns": 2})
    [rollout] = rollouts_of(run)
    generated = [body["token_ids"] for body in endpoint.bodies if "token_ids" in body]
    assert [list(rollout.prompt_tokens(step.step)) for step in rollout.steps] == generated
    sampled = [node for node in trace.nodes if node.sampled]
    assert [list(step.tokens.logprobs) for step in rollout.steps] == [node.logprobs for node in sampled]


@pytest.mark.parametrize("whose", ["agent", "limits"])
async def test_the_limits_of_both(run, endpoint, whose):
    """The lower limit of turns ends the rollout, with the reward so far, and both sides know why."""
    taskset = to_verifiers("guess_number", run=run, limits=Limits(max_turns=2 if whose == "limits" else 5))
    [trace] = await play(taskset, endpoint, agent={"max_turns": 2 if whose == "agent" else 5})
    [rollout] = rollouts_of(run)
    assert (rollout.stop_reason, trace.stop_condition, trace.is_truncated) == ("max_turns", "max_turns", True)
    assert (trace.num_turns, len(rollout.steps), trace.reward) == (2, 2, rollout.reward)


async def test_a_model_that_fails(run, endpoint):
    """The error is verifiers' own on its trace, and one of the policy in our record."""
    endpoint.script = [400]
    [trace] = await play(to_verifiers("arithmetic", run=run), endpoint)
    [rollout] = rollouts_of(run)
    assert (trace.ok, trace.last_error.type) == (False, "ProviderError")
    assert (rollout.status, rollout.error.layer) == (Status.ERROR, Layer.POLICY)


async def test_an_environment_that_fails(run, endpoint, monkeypatch):
    """The trace has the error of our environment."""
    monkeypatch.setattr("rolltrace.envs.problem_env.ProblemEnv._score_format", lambda *args: 1 / 0)
    [trace] = await play(to_verifiers("arithmetic", run=run), endpoint)
    [rollout] = rollouts_of(run)
    assert rollout.error.layer is Layer.ENV
    assert "ZeroDivisionError in the env" in trace.last_error.message


async def test_a_time_out(run, endpoint):
    """A rollout that verifiers stops is recorded as cancelled."""
    endpoint.script = ["hang"]
    [trace] = await play(to_verifiers("arithmetic", run=run), endpoint, agent={"timeout": {"rollout": 0.5}})
    [rollout] = rollouts_of(run)
    assert (trace.stop_condition, rollout.status) == ("agent_timeout", Status.CANCELLED)


async def test_other_roles(run, endpoint):
    """A grader has its own policy; without one, the agent is not asked in its place."""
    [trace] = await play(to_verifiers("rubric", run=run, roles={"grader": NoisyPolicy(correct=1)}), endpoint)
    assert trace.num_turns == 1
    [failed] = await play(to_verifiers("rubric", run=run, iteration=1), endpoint)
    good, bad = rollouts_of(run)
    assert (good.reward, good.status) == (trace.reward, Status.OK)
    assert "needs a policy of its own" in bad.error.message
    assert not failed.ok


def test_what_cannot_be_expressed_is_refused(run):
    """Group grades, several seats and wrong arguments are refused in one sentence."""
    with pytest.raises(InputError, match="compares the rollouts of a group"):
        to_verifiers("preference")
    with pytest.raises(InputError, match="has 2 seats, and verifiers plays one"):
        to_verifiers(TwoSeats())
    with pytest.raises(InputError, match="Expected the name of an environment, or a Tasks, got int"):
        to_verifiers(5)
    with pytest.raises(InputError, match="Expected a run that is being written, got str"):
        to_verifiers("arithmetic", run="runs/x")


class TwoSeats(rolltrace.Tasks):
    """Tasks for two."""

    env = "pair"

    def builder(self, number, *, episodes, seed):
        group = SingleEnvGroup(env="pair", task="t", make_env=object)
        group.seats = 2
        return group


async def test_a_module_of_ones_own(run, endpoint, tmp_path, monkeypatch):
    """A module that exports both classes is a taskset for `vf-eval`."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    monkeypatch.chdir(tmp_path)
    taskset = to_verifiers("arithmetic", run=run)
    module = ModuleType("my_sums")
    module.__spec__ = sys.modules[taskset.config.id].__spec__
    module.Taskset, module.Harness, module.__all__ = type(taskset), taskset.harness, ["Taskset", "Harness"]
    monkeypatch.setitem(sys.modules, "my_sums", module)
    config = EvalConfig.model_validate({
        "env": {"taskset": {"id": "my-sums"}, "agent": {"runtime": {"type": "subprocess"}}}, "model": "m",
        "client": {"type": "eval", "base_url": endpoint.url, "api_key_var": "NO_SUCH_KEY"}, "num_rollouts": 2,
        "select": {"limit": 2}, "push": False, "rich": None,
    })  # fmt: skip
    episodes = await run_eval(config)
    assert {episode.traces[0].info["rolltrace"]["rollout"] for episode in episodes} == {
        rollout.id for rollout in rollouts_of(run)
    }


def test_the_guide_runs(endpoint, tmp_path):
    """The guide's blocks are one program, which records a taskset of verifiers and one of ours."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "verifiers.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    code = code.replace("http://127.0.0.1:8000/v1", endpoint.url).replace("my-taskset", "vf-sums")
    command = [sys.executable, "-W", "ignore", "-c", code]
    settings = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == ["0 failed", "('arithmetic', 8)", "('vf-sums', 8)"]
