"""The record of a verifiers environment equals verifiers' own traces, on every way that an episode can go."""

import asyncio
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rolltrace
from loopback import chat, serving
from rolltrace.bridges.verifiers import PrimeMonitor, record
from rolltrace.errors import InputError
from rolltrace.store.reader import RunReader
from rolltrace.trace.convert import as_message
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from unexplained_findings import explained_run
from vf_endpoint import CALL, Endpoint, make_tokenizer, plain, rollouts_of

vf = pytest.importorskip("verifiers.v1")

pytestmark = [pytest.mark.core, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what verifiers uses


@pytest.fixture
def endpoint(monkeypatch):
    """The model, on loopback. Certificates that the machine's settings name are not needed, and may not exist."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    endpoint = Endpoint()
    with serving(endpoint) as endpoint.url:
        yield endpoint


@pytest.fixture
def run(request, tmp_path):
    """A run that records tokens."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


def make_env(*, task=None, agent=None, harness=None, taskset=None, **config):
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    taskset = {"id": "vf-sums", "task": task or {}, **(taskset or {})}
    agent = {"runtime": {"type": "subprocess"}, "harness": {"id": "vf-sums", **(harness or {})}, **(agent or {})}
    return load_environment(resolve_env_config({"taskset": taskset, "agent": agent, **config}))


def context(endpoint, **sampling):
    client = vf.EvalClientConfig(base_url=endpoint.url, api_key_var="NO_SUCH_KEY")
    return vf.ModelContext(model="m", client=client, sampling=vf.SamplingConfig(**sampling))


async def play(env, ctx, run, rollouts=1, tasks=1, **record_args):
    """The episodes, after the env was recorded while it played them; nothing failed to be recorded."""
    recording = record(env, run, **record_args)
    async with env.serving():
        slots = [slot for task in env.taskset.take(tasks) for slot in env.slots(task, rollouts)]
        episodes = [await env.run_slot(slot, ctx) for slot in slots]
    recording.undo()
    assert recording.failed == 0
    return episodes


def assert_equals(rollout, trace, *, env="vf-sums"):
    """Everything that verifiers knows of a trace is in the record, number for number and token for token."""
    assert (rollout.id, rollout.env, rollout.policy, rollout.notes) == (trace.id, env, "m", ())
    assert rollout.group == trace.task.key
    assert rollout.task == trace.task.data.name
    assert rollout.started_at.timestamp() == pytest.approx(trace.timing.start, abs=1e-6)
    sampled = [number for number, node in enumerate(trace.nodes) if node.sampled]
    calls = {call.node: call for call in trace.calls}
    assert len(rollout.steps) == len(sampled)
    for step, number in zip(rollout.steps, sampled, strict=True):
        path = []
        parent = trace.nodes[number].parent
        while parent is not None:
            path.insert(0, trace.nodes[parent])
            parent = trace.nodes[parent].parent
        node, call = trace.nodes[number], calls[number]
        assert list(step.trace.prompt) == [plain(each.message) for each in path]
        assert step.trace.policy_response == plain(node.message)
        assert step.usage.prompt_tokens == call.usage.input_tokens
        assert step.usage.completion_tokens == call.usage.completion_tokens
        assert step.seconds == call.time.duration
        assert (step.termination is Termination.LENGTH) == (call.finish_reason == "length")
        tools = [] if step.tools is None else [tool.name for tool in rollout.tools[step.tools]]
        assert tools == [tool.name for tool in (path or [node])[0].tools]
        if node.token_ids:
            width = node.mask.count(True)
            before = [token for each in path for token in each.token_ids] + node.token_ids[:-width]
            assert list(rollout.prompt_tokens(step.step)) == before
            assert list(step.tokens.response) == node.token_ids[-width:]
            assert list(step.tokens.logprobs) == node.logprobs
    scored = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    assert rollout.reward_so_far == trace.reward
    assert rollout.reward == (trace.reward if trace.ok else None)
    assert rollout.grade.reward_data == {name: reward.score for name, reward in scored.items()}
    assert rollout.grade.reward_weights == {name: reward.weight for name, reward in scored.items()}
    assert rollout.metrics == {name: value for name, value in trace.metrics.items() if value is not None}
    judged = [call.reply.content for call in rollout.calls if call.role == "grader"]
    assert judged == [call["response"]["message"]["content"] for call in trace.info.get("judge_calls", ())]
    failed = [call.error.message for call in rollout.calls if call.role == "policy"]
    assert failed == [call.error.message for call in trace.calls if call.error is not None]
    assert rollout.status is (Status.OK if trace.ok else Status.ERROR)
    if not trace.ok:
        assert (rollout.error.type, rollout.error.message) == (trace.errors[-1].type, trace.errors[-1].message)


async def test_episodes_with_tools_and_a_judge(run, endpoint):
    """Turns, tool calls, weighted rewards, metrics and judge calls are those of the traces; a task is a group."""
    env = make_env(task={"judge_url": endpoint.url})
    episodes = await play(env, context(endpoint, temperature=0.5), run, rollouts=2, tasks=2, iteration=3, split="eval")
    rollouts = rollouts_of(run)
    for rollout, episode in zip(rollouts, episodes, strict=True):
        assert_equals(rollout, episode.traces[0])
        assert rollout.sampling[rollout.steps[0].sampling].temperature == 0.5
        assert (rollout.iteration, rollout.split, rollout.attempt) == (3, "eval", 0)
    assert [rollout.index for rollout in rollouts] == [0, 1, 0, 1]
    assert len({rollout.group for rollout in rollouts}) == 2
    assert rollouts[0].calls[0].about == "length"
    assert rollouts[0].task_data["answer"] == "2"
    assert rollouts[0].steps[0].trace.policy_response.reasoning == "I add."


async def test_tokens_and_full_log_probabilities(run, endpoint, tmp_path):
    """With verifiers' client for training, each step has its tokens, and log-probabilities before they are rounded."""
    model = str(make_tokenizer(tmp_path / "tokenizer"))
    client = vf.TrainClientConfig(
        base_url=endpoint.url, api_key_var="NO_SUCH_KEY", renderer_model_name=model, renderer={"name": "default"}
    )
    ctx = vf.ModelContext(model="m", client=client)
    env = make_env(harness={"tools": False, "compacts": True}, agent={"max_turns": 2})
    [episode] = await play(env, ctx, run)
    [rollout] = rollouts_of(run)
    [trace] = episode.traces
    assert_equals(rollout, trace)
    generated = [body["token_ids"] for body in endpoint.bodies if "token_ids" in body]
    assert [list(rollout.prompt_tokens(step.step)) for step in rollout.steps] == generated
    assert any(round(logprob, 4) != logprob for logprob in rollout.steps[0].tokens.logprobs)


@pytest.mark.warns("history_not_continued")
async def test_compaction_replaces_the_history(run, endpoint):
    """A second root in the graph is a step whose prompt starts over."""
    [episode] = await play(make_env(harness={"compacts": True}, agent={"max_turns": 3}), context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert episode.traces[0].num_branches == 2
    assert_equals(rollout, episode.traces[0])
    assert len(rollout.steps[2].trace.prompt) < len(rollout.steps[1].trace.prompt)
    assert (rollout.stop_reason, rollout.stopped_by) == ("max_turns", "runner")


@pytest.mark.parametrize("before", [0, 1])
async def test_a_failed_call_keeps_its_prompt(run, endpoint, before):
    """The prompt of a call that fails is recorded, which verifiers' own trace does not have, and so is the error."""
    answers = [chat("", tool_calls=[CALL])] * before
    endpoint.script = [*answers, 500]
    [episode] = await play(make_env(), context(endpoint), run)
    [rollout] = rollouts_of(run)
    [trace] = episode.traces
    assert_equals(rollout, trace)
    assert rollout.error.layer is Layer.POLICY
    assert "status 500" in rollout.error.message
    sent = [as_message(message, "", []) for message in endpoint.bodies[-1]["messages"]]
    assert [(each.role, each.content) for each in rollout.pending_messages] == [(m.role, m.content) for m in sent]


async def test_calls_that_fail_at_once(run, endpoint):
    """If several requests are in flight, it is unknown which one fails: no prompt is recorded, and not a wrong one."""
    endpoint.script = ["pair", "pair"]
    [episode] = await play(make_env(harness={"parallel": True}), context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert_equals(rollout, episode.traces[0])
    assert len(rollout.calls) == 2
    assert rollout.calls[0].prompt == ()


async def test_a_call_that_the_harness_retries(run, endpoint):
    """The failed call is beside the steps, with its prompt; the step that answered has its own."""
    endpoint.script = [503]
    [episode] = await play(make_env(harness={"retries": 1}), context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert_equals(rollout, episode.traces[0])
    [failed] = rollout.calls
    assert (failed.error.type, failed.error.layer, failed.step, failed.policy) == ("ProviderError", "policy", 0, "m")
    assert failed.prompt == rollout.steps[0].trace.prompt
    assert rollout.pending_messages is None


@pytest.mark.parametrize("whose", ["agent", "episode"])
async def test_attempts_have_one_place_in_the_group(run, endpoint, whose, monkeypatch):
    """A retried rollout, or the rollout of a retried episode, is an attempt of the same index."""
    monkeypatch.setattr("verifiers.v1.agent.backoff", lambda attempt: 0)
    monkeypatch.setattr("verifiers.v1.utils.retries.backoff", lambda attempt: 0)
    endpoint.script = [500]
    retries = {"retries": {"max_retries": 2}}
    env = make_env(agent=retries) if whose == "agent" else make_env(**retries)
    episodes = await play(env, context(endpoint), run, rollouts=2)
    failed, second, other = rollouts_of(run)
    assert [(each.index, each.attempt) for each in (failed, second, other)] == [(0, 0), (0, 1), (1, 0)]
    assert (failed.status, failed.error.type) == (Status.ERROR, "ProviderError")
    assert_equals(second, episodes[0].traces[0])
    assert_equals(other, episodes[1].traces[0])


async def test_a_retry_belongs_to_the_iteration_of_its_episode(run, endpoint, monkeypatch):
    """If the loop is at the next iteration when an episode is retried, the attempt is at the place of the first."""
    monkeypatch.setattr("verifiers.v1.utils.retries.backoff", lambda attempt: 0)
    endpoint.script = [500]
    env = make_env(retries={"max_retries": 2})
    recording = record(env, run)
    original = recording.guard

    def guard(action, *args):
        recording.iteration += action.__name__ == "finish"  # the loop goes on
        return original(action, *args)

    recording.guard = guard
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        await env.run_slot(slot, context(endpoint))
        [slot] = env.slots(next(iter(env.taskset)))
        await env.run_slot(slot, context(endpoint))
    places = [(each.iteration, each.index, each.attempt) for each in rollouts_of(run)]
    assert places == [(0, 0, 0), (0, 0, 1), (2, 0, 0)]


async def test_a_second_recording_numbers_the_members_on(run, endpoint):
    """Two recordings of the same tasks, one after the other, have no place in common."""
    for _ in range(2):
        await play(make_env(), context(endpoint), run, rollouts=2)
    assert [rollout.index for rollout in rollouts_of(run)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("script", "agent", "reason", "by"),
    [
        ([], {"max_turns": 1}, "max_turns", "runner"),
        ([], {"max_output_tokens": 1}, "max_sampled_tokens", "runner"),
        ([{**chat("cut"), "choices": [{"index": 0, "message": {"role": "assistant", "content": "cut"},
                                       "finish_reason": "length"}]}], {}, "max_tokens", "env"),
        ([chat("I give up.", tool_calls=[CALL])], {}, "gave_up", "env"),
        (["hang"], {"timeout": {"rollout": 0.5}}, "timeout", "runner"),
    ],
)  # fmt: skip
async def test_what_ends_a_rollout(run, endpoint, script, agent, reason, by):
    """Limits, truncated answers, stops of the task and time-outs are stop reasons; the rollout is scored still."""
    endpoint.script = script
    [episode] = await play(make_env(agent=agent), context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert_equals(rollout, episode.traces[0])
    assert (rollout.stop_reason, rollout.stopped_by, rollout.status) == (reason, by, Status.OK)
    assert rollout.grade.extra["stop_condition"] == episode.traces[0].stop_condition
    if reason == "timeout":
        assert [message.role for message in rollout.pending_messages] == ["system", "user"]
    else:
        assert list(rollout.conversation) == [plain(node.message) for node in episode.traces[0].nodes]


async def test_a_failing_reward(run, endpoint):
    """What raises in scoring is an error of the grader; names without a score are listed."""
    [episode] = await play(make_env(task={"scoring_fails": True}), context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert_equals(rollout, episode.traces[0])
    assert rollout.error.layer is Layer.GRADER
    assert rollout.grade.extra["unscored"] == ["correct", "parts", "short"]


async def test_a_cancelled_episode(run, endpoint):
    """An episode that is cancelled leaves a cancelled rollout with the steps that it had."""
    endpoint.script = [chat("", tool_calls=[CALL]), "hang"]
    env = make_env()
    recording = record(env, run)
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        playing = asyncio.ensure_future(env.run_slot(slot, context(endpoint)))
        assert await asyncio.to_thread(endpoint.hangs.wait, 60)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    [rollout] = rollouts_of(run)
    assert (rollout.status, len(rollout.steps), recording.failed) == (Status.CANCELLED, 1, 0)
    assert rollout.pending_messages[-1].role == "tool"


async def test_several_agents_of_one_episode(run, endpoint):
    """Each agent's run is a rollout with an index of its own; rewards that the env adds at the end are there."""
    env = make_env(id="best-of-n", n=2)
    episodes = await play(env, context(endpoint), run, rollouts=2)
    rollouts = rollouts_of(run)
    traces = [trace for episode in episodes for trace in episode.traces]
    assert [rollout.index for rollout in rollouts] == [0, 1, 2, 3]
    for rollout, trace in zip(rollouts, traces, strict=True):
        assert_equals(rollout, trace, env="best-of-n+vf-sums")


async def test_an_episode_that_fails_before_any_agent(run, endpoint):
    """It is a rollout without steps, with the episode's error."""
    env = make_env()

    async def setup(agents):
        raise OSError("no room")

    env.setup = setup
    [episode] = await play(env, context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert (rollout.status, rollout.steps, rollout.error.layer) == (Status.ERROR, (), Layer.ENV)
    assert rollout.error.message == episode.errors[-1].message


async def test_a_failing_finalize_fails_the_rollouts(run, endpoint):
    """If the episode fails after its agents, the rollouts keep their grade, and have the episode's error."""
    env = make_env()

    async def finalize(task, episode):
        raise ValueError("no verdict")

    env.finalize = finalize
    [episode] = await play(env, context(endpoint), run)
    [rollout] = rollouts_of(run)
    assert (rollout.status, rollout.reward, rollout.reward_so_far) == (Status.ERROR, None, episode.traces[0].reward)
    assert "no verdict" in rollout.error.message


async def test_every_environment_of_a_class(run, endpoint, tmp_path, monkeypatch):
    """`run_eval` makes its environment itself: it is recorded through the class."""
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    monkeypatch.chdir(tmp_path)
    client = {"type": "eval", "base_url": endpoint.url, "api_key_var": "NO_SUCH_KEY"}
    agent = {"runtime": {"type": "subprocess"}}
    config = EvalConfig.model_validate({
        "env": {"taskset": {"id": "vf-sums"}, "agent": agent}, "model": "m", "client": client, "num_rollouts": 2,
        "push": False, "rich": None,
    })  # fmt: skip
    recording = record(vf.Env, run)
    try:
        episodes = await run_eval(config)
    finally:
        recording.undo()
    rollouts = {rollout.id: rollout for rollout in rollouts_of(run)}
    assert len(rollouts) == len(episodes) == 4
    for episode in episodes:
        assert_equals(rollouts[episode.traces[0].id], episode.traces[0])
    assert recording.failed == 0


async def test_a_watcher_of_the_trace_is_still_called(run, endpoint):
    """The callback that a server has set on a trace gets every change, as without the record."""
    env = make_env()
    seen = []
    record(env, run)
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        await env.run_slot(slot, context(endpoint), on_trace=lambda trace: trace.watch(lambda t: seen.append(t.id)))
    [rollout] = rollouts_of(run)
    assert len(seen) > len(rollout.steps) == 2
    assert set(seen) == {rollout.id}


@pytest.mark.parametrize("target", ["env", "class"])
async def test_undo_restores_what_was_replaced(run, endpoint, target):
    """After `undo` the methods are those of before, and nothing is recorded."""
    env = make_env()
    recorded = env if target == "env" else type(env)
    before = dict(vars(recorded)), dict(vars(vf.Env))
    recording = record(recorded, run)
    assert dict(vars(recorded)) != before[0]
    recording.undo()
    recording.undo()
    assert (dict(vars(recorded)), dict(vars(vf.Env))) == before
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        await env.run_slot(slot, context(endpoint))
    assert rollouts_of(run) == []


async def test_undo_leaves_what_others_replaced_since(run, endpoint):
    """A method that was wrapped again stays wrapped, and the recording inside of it does nothing."""
    env = make_env()
    recording = record(env, run)
    inner = env.run_episode
    calls = []

    async def outer(*args, **kwargs):
        calls.append(args)
        return await inner(*args, **kwargs)

    env.run_episode = outer
    recording.undo()
    assert env.run_episode is outer
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        assert (await env.run_slot(slot, context(endpoint))).ok
    assert (len(calls), rollouts_of(run)) == (1, [])


async def test_a_failure_of_the_record_does_not_reach_the_episode(run, endpoint, monkeypatch, caplog):
    """It is counted, and logged once; the episode is as without the record."""
    monkeypatch.setattr("rolltrace.store.recorder.RolloutRecorder.step", lambda *args, **kwargs: 1 / 0)
    env = make_env()
    recording = record(env, run)
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        episode = await env.run_slot(slot, context(endpoint))
    assert episode.ok
    assert recording.failed > 1
    assert caplog.text.count("Could not record") == 1


def test_wrong_arguments(run):
    """What is not an environment of verifiers, or not a run, or is recorded already, is refused in one sentence."""
    with pytest.raises(InputError, match=r"Expected an environment or a class of verifiers\.v1\.Env, got int"):
        record(5, run)
    with pytest.raises(InputError, match="Expected a run that is being written, got str"):
        record(vf.Env, "run")
    env = make_env()
    record(env, run)
    with pytest.raises(InputError, match="is being recorded"):
        record(env, run)
    recording = record(vf.Env, run)
    with pytest.raises(InputError, match="or its class is being recorded"):
        record(make_env(), run)
    recording.undo()


async def test_episodes_that_a_trainer_logs(run, endpoint):
    """The monitor records finished episodes with the trainer's step, group, advantages and log-probabilities."""
    env = make_env()
    async with env.serving():
        [slot] = env.slots(next(iter(env.taskset)))
        episode = await env.run_slot(slot, context(endpoint))
    [trace] = episode.traces
    sampled = [node for node in trace.nodes if node.sampled]
    for node in sampled:
        node.token_ids, node.mask, node.logprobs = [1, 2, 3], [False, True, True], [-0.25, -0.5]
        node.advantages, node.trainer_logprobs = [0.5, 1.5], [-0.125, -0.75]
    work = {"type": "train", "step": 7}
    wire = vf.WireEpisode.model_validate({
        **json.loads(json.dumps(episode.to_record(None))),
        "group": {"id": "g7"}, "run": {"type": "train", "id": "r", "work": work},
    })  # fmt: skip
    monitor = PrimeMonitor(run)
    monitor.log_metrics({"loss": 1.0}, step=7)
    monitor.log_episodes([wire], step=7)
    [rollout] = rollouts_of(run)
    assert monitor.failed == 0
    assert (rollout.group, rollout.iteration, rollout.split, rollout.index) == ("g7", 7, "train", None)
    assert rollout.reward == trace.reward
    assert [step.tokens.logprobs for step in rollout.steps] == [(-0.25, -0.5)] * 2
    scores = {score.name: score for score in RunReader(run.path).scores()}
    assert scores["advantage"].data == {"tokens": [[0.5, 1.5]] * 2}
    assert (scores["advantage"].value, scores["trainer_logprobs"].value) == (1.0, -0.4375)


def test_the_methods_that_are_replaced():
    """`run_slot` and `run_episode` of verifiers 0.4, and the callback of a trace, are as the bridge expects them."""
    from verifiers.v1.trace import Trace

    assert list(inspect.signature(vf.Env.run_slot).parameters)[:3] == ["self", "slot", "ctx"]
    episode = inspect.signature(vf.Env.run_episode).parameters
    assert list(episode) == ["self", "task", "ctx", "on_trace", "on_discard"]
    assert "_on_change" in Trace.__private_attributes__
    assert callable(Trace.watch)
    assert "_pending" in Trace.__private_attributes__


def test_the_benchmark_runs():
    """It prints one object with the figures of this bridge."""
    script = Path(__file__).parents[2] / "benchmarks" / "bridges.py"
    command = [sys.executable, "-W", "ignore", str(script), "--quick", "--json", "verifiers"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    [[row]] = json.loads(ran.stdout)["figures"].values()
    assert row["a rollout, ms"] > 0
