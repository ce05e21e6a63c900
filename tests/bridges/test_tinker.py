"""What tinker-cookbook plays is recorded as it saw it, on every way that a rollout can end."""

import pytest

pytest.importorskip("tinker_cookbook")

import asyncio
import copy
import gc
import inspect
import itertools
import json
import multiprocessing
import pickle
import re
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

import chz
import tinker
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.preference.types import PreferenceModel
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TwoPlayerEnvGroupBuilder
from tinker_cookbook.rl import metric_util, rollouts, train
from tinker_cookbook.rl.preference_envs import PairwisePreferenceGroupBuilder, TournamentPattern
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.rollout_limits import RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_runner import RolloutHooks, run_rollout
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.tool_use import build_agent_tool_env, simple_tool_result, tool

import rolltrace
from rolltrace.bridges import tinker_group
from rolltrace.bridges.tinker import record
from rolltrace.bridges.tinker_group import trainer
from rolltrace.errors import InputError
from rolltrace.trace.convert import as_message
from tinker_service import CUT, MALFORMED, MODEL, SamplingClient, ServiceClient, make_renderer, play
from unexplained_findings import explained_run

RENDERER = "qwen3_disable_thinking"


# The envs of tinker-cookbook that are played


class LongestWins(PreferenceModel):
    """Prefers the longer of two answers."""

    async def __call__(self, comparison):
        first, second = (len(str(one)) for one in (comparison.completion_A, comparison.completion_B))
        return float((second > first) - (second < first))


@tool
async def add(first: int, second: int):
    """Add two numbers."""
    return simple_tool_result(str(first + second))


async def grade_sum(history):
    """1 for the right sum in the last message."""
    right = float("42" in str(history[-1]["content"]))
    return right, {"right": right}


@dataclass(frozen=True)
class SumToolBuilder(EnvGroupBuilder):
    """Groups of the message env that calls tools."""

    renderer: object
    num_envs: int
    room: int | None = None
    """How many tokens a trajectory may have besides the first prompt; None: any number."""

    async def make_envs(self):
        prefix = self.renderer.create_conversation_prefix_with_tools([add.to_spec()])
        how = "Use the tool" if self.room is None else "At once use the tool"
        messages = [*prefix, {"role": "user", "content": f"{how}: 12 and 30."}]
        length = self.renderer.build_generation_prompt(messages).length
        limit = None if self.room is None else length + self.room
        return [
            build_agent_tool_env(self.renderer, [add], messages, grade_sum, max_trajectory_tokens=limit)
            for _ in range(self.num_envs)
        ]

    def logging_tags(self):
        return ["sums", "tools"]


@dataclass(frozen=True)
class LimitedBuilder(EnvGroupBuilder):
    """Groups of any env with limits that the runner of tinker-cookbook enforces."""

    inner: EnvGroupBuilder
    limits: RolloutLimits

    async def make_envs(self):
        envs = await self.inner.make_envs()
        for env in envs:
            env.rollout_limits = self.limits
        return envs

    async def compute_group_rewards(self, trajectory_group, env_group):
        return await self.inner.compute_group_rewards(trajectory_group, env_group)


@dataclass(frozen=True)
class Sum:
    """Makes envs; at the top of a module, so that it can be pickled."""

    renderer: object
    kind: type = ArithmeticEnv

    def __call__(self):
        return self.kind(12, 30, renderer=self.renderer)


def problems(renderer, size=4, kind=ArithmeticEnv):
    return ProblemGroupBuilder(Sum(renderer, kind), num_envs=size, dataset_name="sums")


def preferences(renderer, size=4):
    prompt = [{"role": "user", "content": "Write a poem."}]
    return PairwisePreferenceGroupBuilder(
        prompt, renderer, TournamentPattern.ALL_PAIRS_BOTH_WAYS, LongestWins(), num_envs=size
    )


class Opponent(MessageCompleter):
    """Takes the last free cell."""

    async def __call__(self, messages):
        return {"role": "assistant", "content": re.findall(r"'(\[\d\])'", str(messages))[-1]}


def games(renderer, opponent=None):
    is_alone = opponent is None
    return TwoPlayerEnvGroupBuilder("TicTacToe-v0", renderer, 4, self_play=is_alone, opponent_policy=opponent)


def all_builders(renderer):
    return [
        problems(renderer), SumToolBuilder(renderer, 5), preferences(renderer), games(renderer),
        SumToolBuilder(renderer, 2, room=-5), SumToolBuilder(renderer, 2, room=40),
        *[LimitedBuilder(one(renderer), RolloutLimits(max_trajectory_tokens=12)) for one in (problems, preferences)],
        LimitedBuilder(games(renderer, Opponent()), RolloutLimits(max_trajectory_tokens=400)),
    ]  # fmt: skip


class ListDataset(RLDataset):
    """The same builders in every batch."""

    def __init__(self, builders, batches=2):
        self.builders = builders
        self.batches = batches

    def get_batch(self, index):
        return self.builders

    def __len__(self):
        return self.batches


@chz.chz
class ListBuilder(RLDatasetBuilder):
    """Gives datasets that exist."""

    train: object
    test: object = None

    async def __call__(self):
        return self.train, self.test


# The policy: each prompt is answered by the next of its answers

CALL = '<tool_call>\n{"name": "add", "arguments": {"first": 12, "second": 30}}\n</tool_call>'
ANSWERS = {
    "12 + 30": ["42", "7", f"The answer is 42{MALFORMED}", f"It is, as I shall explain{CUT}"],
    "At once use the tool": [CALL],
    "Use the tool": [
        CALL, "42", "<tool_call>\n{not json\n</tool_call>", f"No end{MALFORMED}", f"Too long to{CUT}",
    ],
    "poem": ["Short.", "A somewhat longer poem.", f"Never ends{MALFORMED}", f"An endless poem, one that is{CUT}"],
}  # fmt: skip


class Policy:
    """Answers prompts; raises what an answer is, if it is an exception."""

    def __init__(self, answers=ANSWERS):
        self.games = itertools.count()
        self.answers = {key: itertools.cycle(values) for key, values in answers.items()}

    def __call__(self, prompt):
        if "<tool_response>" in prompt:
            return "It is 42."
        if "Tic Tac Toe" in prompt:
            moves = re.findall(r"'(\[\d\])'", prompt.rsplit("Available Moves", 1)[1])
            if len(moves) > 4:
                return moves[0].removesuffix("]")
            return f"I think that{CUT}" if next(self.games) % 2 else "[0"  # both are illegal moves
        return next(values for key, values in self.answers.items() if key in prompt).__next__()


# What tinker-cookbook saw


@pytest.fixture
def seen(monkeypatch):
    """The groups that tinker-cookbook played, in order; a group that raised is missing."""
    groups = []

    def watch(module):
        original = module.do_group_rollout

        async def do_group_rollout(*args, **kwargs):
            groups.append(await original(*args, **kwargs))
            return groups[-1]

        monkeypatch.setattr(module, "do_group_rollout", do_group_rollout)

    watch(rollouts)
    watch(metric_util)
    return groups


TRAINING = [
    "evaluation_task_in_training", "group_prompts", "history_not_continued", "history_tokenized_again", "logprob_gap",
]  # fmt: skip
"""What audits warn of in a training on several environments, with a stand-in for the service."""


@pytest.fixture
def run(request, tmp_path):
    """A run with tokens."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


def train_on(tmp_path, monkeypatch, builder, policy, **settings):
    """Train for as many iterations as there are batches; returns the training client."""
    service = ServiceClient(policy)
    monkeypatch.setattr(tinker, "ServiceClient", service)
    config = train.Config(
        learning_rate=1e-4, dataset_builder=builder, model_name=MODEL, recipe_name="test", max_tokens=160,
        log_path=str(tmp_path / "log"), save_every=0, **{"eval_every": 0, **settings},
    )  # fmt: skip
    asyncio.run(train.main(config))
    return service.training_client


def read(run):
    run.flush()
    return list(rolltrace.open_run(run.path).rollouts())


def logprobs(transitions):
    return tuple(tuple(one.ac.maybe_logprobs or ()) for one in transitions if one.ac.tokens)


def match(rollouts, groups):
    """Each trajectory with its group's reward and numbers, and its rollout: that with the same log-probabilities."""
    by_logprobs = defaultdict(list)
    for rollout in rollouts:
        by_logprobs[tuple(step.tokens.logprobs for step in rollout.steps)].append(rollout)
    for group in groups:
        for trajectory, total, reward, metrics in zip(
            group.trajectories_G, group.get_total_rewards(), group.final_rewards_G, group.metrics_G, strict=True
        ):
            candidates = by_logprobs[logprobs(trajectory.transitions)]
            yield trajectory, total, reward, metrics, candidates.pop(0)


def assert_same(renderer, trajectory, total, reward, metrics, rollout):
    """The record of a rollout is what tinker-cookbook saw of it."""
    played = [one for one in trajectory.transitions if one.ac.tokens]
    assert len(rollout.steps) == len(played)
    for number, (step, transition) in enumerate(zip(rollout.steps, played, strict=True)):
        assert rollout.prompt_tokens(number) == tuple(transition.ob.to_ints())
        assert step.tokens.response == tuple(transition.ac.tokens)
        assert step.tokens.logprobs == tuple(transition.ac.logprobs)
        assert (step.usage.prompt_tokens, step.usage.completion_tokens) == (
            transition.ob.length, len(transition.ac.tokens),
        )  # fmt: skip
        late = rollout.metrics if transition is played[-1] else {}
        assert {**step.reward_data, **late} == transition.metrics
        assert (step.reward, step.logs) == (transition.reward, transition.logs)
        message, termination = renderer.parse_response(transition.ac.tokens)
        assert step.trace.policy_response == as_message(message, "", [])
        has_own_stop = rollout.env == "TwoPlayerEnv"
        if step.sampling is not None:  # a loop of your own does not say how it samples
            sampling = rollout.sampling[step.sampling]
            stop = list(sampling.stop or sampling.other["stop_token_ids"])
            assert has_own_stop or stop == list(renderer.get_stop_sequences())
        ended = "stop_sequence" if has_own_stop else str(termination)
        assert step.termination == ("length" if transition.ac.stop_reason == "length" else ended)
        assert_renders(renderer, step.trace.prompt, transition.ob)
    if not played:
        [only] = trajectory.transitions
        early = rollout.ended_before_first_turn
        assert (early.reward, early.logs) == (only.reward, only.logs)
        assert {**early.reward_data, **rollout.metrics} == only.metrics
        assert rollout.pending_messages
    assert rollout.stop_reason == (trajectory.stop_reason or "completed").replace("rollout_timeout", "timeout")
    assert rollout.status == "ok"
    assert rollout.reward == total
    grade = rollout.group_grade or rollout.grade
    assert ((grade.reward, grade.reward_data) if grade else (0.0, {})) == (reward, metrics)


def assert_renders(renderer, messages, prompt):
    """The recorded messages render to the prompt."""
    chats = []
    for message in messages:
        chat = {"role": message.role, "content": message.content}
        if message.tool_calls:
            chat["tool_calls"] = [
                {"type": "function", "id": one.id, "function": {"name": one.name, "arguments": one.arguments}}
                for one in message.tool_calls
            ]
        chats.append(chat)
    if not any("tool_calls" in chat for chat in chats):
        assert renderer.build_generation_prompt(chats).to_ints() == prompt.to_ints()


# The training loop


@pytest.fixture
def trained(tmp_path, monkeypatch, run, seen):
    """Two iterations of tinker-cookbook's own training loop over all envs, with evaluations."""
    renderer = make_renderer(RENDERER)
    datasets = ListBuilder(train=ListDataset(all_builders(renderer)), test=ListDataset([problems(renderer, 1)], 1))
    recorded = record(datasets, run)
    client = train_on(tmp_path, monkeypatch, recorded, Policy(), eval_every=1)
    assert recorded.failed == 0
    recorded.undo()
    return renderer, client, seen, read(run)


@pytest.mark.warns(*TRAINING)
def test_the_record_is_what_the_training_loop_saw(trained):
    """Each trajectory of two iterations has a rollout with its tokens, messages, rewards, numbers and stop reason."""
    renderer, client, groups, recorded = trained
    matched = list(match(recorded, groups))
    trained = {score.rollout: score.data["tokens"] for one in recorded for score in one.scores if score.name[0] == "t"}
    assert len(matched) == len(recorded) == 2 * 33 + 2
    for one in matched:
        assert_same(renderer, *one)
    assert {(one.split, one.iteration) for one in recorded} == {(name, n) for name in ("train", "test") for n in (0, 1)}
    assert {one.env for one in recorded} == {"ArithmeticEnv", "AgentToolMessageEnv", "PreferenceEnv", "TwoPlayerEnv"}
    members = {(one.split, one.iteration, one.group, one.index, one.attempt) for one in recorded}
    assert len(members) == len(recorded)
    for one in recorded:
        assert all(step.sampling is not None for step in one.steps)
        played = one.steps if one.split == "train" else ()
        expected = [[value - 0.125 for value in step.tokens.logprobs] for step in played]
        assert trained.get(one.id, []) == expected
    assert len(client.sampled) == sum(len(one.steps) for one in recorded)


@pytest.mark.warns(*TRAINING)
def test_every_env_has_what_was_asked_for_on_every_way_out(trained):
    """Prompt, response, reward data, and env state where there is one: on success, parse error, overflow and cut."""
    _, _, _, recorded = trained
    ways = defaultdict(set)
    for rollout in recorded:
        for step in rollout.steps:
            assert step.trace.prompt
            assert step.trace.policy_response.role == "assistant"
            numbers = step.reward_data or rollout.metrics or (rollout.grade and rollout.grade.reward_data)
            assert numbers or rollout.env == "TwoPlayerEnv", rollout  # that env has a reward and no other number
            if rollout.env == "TwoPlayerEnv":
                assert step.env_state["coordinator"]["game_state"]["board"]
            if rollout.env == "AgentToolMessageEnv" and step.termination == "stop_sequence":
                assert step.env_state["message_env"]["_turn_count"] == step.step + 1
            ways[rollout.env].add(
                "parse error" if step.parse_error else "cut" if step.termination == "length" else "ok"
            )
        if rollout.stop_reason in ("max_tokens", "context_overflow") and not any(
            step.termination == "length" for step in rollout.steps
        ):
            assert rollout.pending_messages or rollout.steps
            ways[rollout.env].add("overflow")
    assert ways.pop("TwoPlayerEnv") == {"ok", "cut", "overflow"}  # its moves end at a sign of its own
    assert set(map(frozenset, ways.values())) == {frozenset({"ok", "parse error", "cut", "overflow"})}
    assert {"x": 12, "y": 30}.items() <= next(one for one in recorded if one.env == "ArithmeticEnv").task_data.items()
    tools = [one for one in recorded if one.env == "AgentToolMessageEnv"]
    assert {one.tags for one in tools} == {("sums", "tools")}
    assert {one.stop_reason for one in tools} == {"completed", "parse_error", "max_tokens", "context_overflow"}
    assert any(
        [one.role for one in rollout.steps[-1].trace.prompt][-2:] == ["assistant", "tool"]
        for rollout in tools
        if rollout.steps
    )


@pytest.mark.warns(*TRAINING)
def test_scores_of_the_preference_env_are_on_the_right_trajectories(trained):
    """Longer answers win; one that does not end well loses a point for its format."""
    _, _, _, recorded = trained
    scored = [one for one in recorded if one.env == "PreferenceEnv" and one.steps]
    assert len(scored) == 8
    ranks = {"Short.": -1.0, "Never ends": -1 / 3, "A somewhat longer poem.": 1 / 3}
    for rollout in scored:
        text = rollout.steps[0].trace.policy_response.content
        is_valid = text in ("Short.", "A somewhat longer poem.")
        assert rollout.grade.reward_data == {"win_minus_loss": ranks.get(text, 1.0), "format": is_valid}
        assert rollout.grade.reward == rollout.reward == ranks.get(text, 1.0) + (is_valid - 1.0)


def test_advantages_are_those_that_were_trained_on(tmp_path, monkeypatch, run, seen):
    """Each trajectory of a group that was not removed has the advantage of its data; of more than four, too."""
    renderer = make_renderer(RENDERER)
    recorded = record(ListBuilder(train=ListDataset([problems(renderer, 7), problems(renderer, 1)])), run)
    client = train_on(tmp_path, monkeypatch, recorded, Policy(), remove_constant_reward_groups=True)
    trained = {}
    for datum in itertools.chain.from_iterable(client.data):
        inputs = {name: value.to_torch().tolist() for name, value in datum.loss_fn_inputs.items()}
        numbers = [value for value, at in zip(inputs["logprobs"], inputs["advantages"], strict=True) if value]
        trained[tuple(numbers)] = max(inputs["advantages"], key=abs)
    rollouts_ = read(run)
    assert len(trained) == 14
    for rollout in rollouts_:
        scores = [one.value for one in rollout.scores if one.name == "advantage"]
        logprobs_ = [one.data["tokens"] for one in rollout.scores if one.name == "trainer_logprobs"]
        expected = [[value - 0.125 for value in rollout.steps[0].tokens.logprobs]]  # what the stand-in computes
        advantage = trained.get(rollout.steps[0].tokens.logprobs)
        assert (scores, logprobs_) == (([], []) if advantage is None else ([advantage], [expected]))
    assert sum(bool(one.scores) for one in rollouts_) == 14
    recorded.undo()


@pytest.mark.warns("evaluation_task_in_training")
def test_evaluations_have_the_iteration_of_the_training_loop(tmp_path, monkeypatch, run):
    """An evaluation of every other iteration is recorded in that iteration."""
    renderer = make_renderer(RENDERER)
    datasets = [ListDataset([problems(renderer, 2)], batches) for batches in (3, 1)]
    recorded = record(ListBuilder(train=datasets[0], test=datasets[1]), run)
    train_on(tmp_path, monkeypatch, recorded, Policy(), eval_every=2)
    recorded.undo()
    assert {one.iteration for one in read(run) if one.split == "test"} == {0, 2}


@pytest.mark.parametrize("mode", ["async", "stream"])
def test_other_training_loops(tmp_path, monkeypatch, run, seen, mode):
    """Asynchronous training and minibatches are recorded in the same way."""
    renderer = make_renderer(RENDERER)
    recorded = record(ListBuilder(train=ListDataset([problems(renderer, 4)] * 2, 3)), run)
    settings = {
        "async": {"async_config": train.AsyncConfig(max_steps_off_policy=2, groups_per_batch=2)},
        "stream": {"stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=2)},
    }[mode]
    train_on(tmp_path, monkeypatch, recorded, Policy(), **settings)
    rollouts_ = read(run)
    for one in match(rollouts_, seen):
        assert_same(renderer, *one)
    assert len(rollouts_) == 24
    assert all([score.name for score in one.scores] == ["advantage", "trainer_logprobs"] for one in rollouts_)
    recorded.undo()


@pytest.mark.warns("evaluation_task_in_training")
def test_a_second_training(tmp_path, monkeypatch, run):
    """Groups that are played again by another training have names of their own."""
    renderer = make_renderer(RENDERER)
    datasets = ListBuilder(train=ListDataset([problems(renderer, 2)]), test=ListDataset([problems(renderer, 1)], 1))
    recorded = record(datasets, run)
    for number in range(2):
        train_on(tmp_path / str(number), monkeypatch, recorded, Policy(), eval_every=1)
    places = sorted((one.split, one.iteration, one.group, one.index) for one in read(run))
    assert places == [
        *[("test", iteration, group, 0) for iteration in range(2) for group in ("0.0", "0.0@2")],
        *[("train", at, f"{at}.0{again}", index) for at in range(2) for again in ("", "@2") for index in range(2)],
    ]
    recorded.undo()


def test_training_without_tokens(tmp_path, monkeypatch):
    """A run without tokens has no numbers per token, and data that are not trained on are not kept."""
    with rolltrace.create_run(tmp_path / "run") as run:
        recorded = record(ListBuilder(train=ListDataset([problems(make_renderer(RENDERER))], 1)), run)
        train_on(tmp_path, monkeypatch, recorded, Policy())
        assert {score.name for one in read(run) for score in one.scores} == {"advantage"}
        recorded.undo()


def test_data_that_nothing_is_trained_on(run):
    """Data of a loop of your own are not kept."""
    recorded = record(problems(make_renderer(RENDERER)), run)
    groups = [play(recorded, Policy())]
    data, _ = train.assemble_training_data(groups, train.compute_advantages(groups))
    assert len(trainer.data) == len(data) == 4
    del data
    gc.collect()
    assert trainer.data == {}
    recorded.undo()


# Failures


class Breaks(ArithmeticEnv):
    """Raises in `step` at a bad answer."""

    async def step(self, action, *, extra=None):
        result = await super().step(action, extra=extra)
        if not result.metrics["correct"]:
            raise ConnectionError("sandbox gone")
        return result


def test_failures_and_their_retries(run, seen):
    """A failed attempt has its error and its place; the attempt that replaced it has the same place."""
    renderer = make_renderer(RENDERER)
    policy = Policy({"12 + 30": ["42", "7", "42", OSError("no connection"), "42", "1", "42"]})
    recorded = record(problems(renderer, 4, Breaks), run, iteration=5, group="g")
    play(recorded, policy, strategy=RetryOnFailure(max_retries=3))
    rollouts_ = read(run)
    failed = {(one.index, one.attempt): one for one in rollouts_ if one.status == "error"}
    good = [one for one in rollouts_ if one.status == "ok"]
    assert sorted(one.index for one in good) == [0, 1, 2, 3]
    assert {index for index, attempt in failed if attempt == 0} == {1, 3}
    assert {one.index: one.attempt for one in good} == {0: 0, 2: 0} | {
        index: 1 + max(attempt for at, attempt in failed if at == index) for index in (1, 3)
    }
    for one in match(good, seen):
        assert_same(renderer, *one)
    env, policy_ = failed[1, 0], failed[3, 0]
    assert (env.error.type, env.error.layer, env.error.message) == ("ConnectionError", "env", "sandbox gone")
    [step] = env.steps
    assert (step.env_failure, step.env_reward, step.trace.policy_response.content) == ("raised", None, "7")
    assert (policy_.error.type, policy_.error.layer) == ("OSError", "policy")
    assert (policy_.steps, policy_.pending_messages[-1].content) == ((), "What is 12 + 30?")
    assert {(one.iteration, one.group, one.split) for one in rollouts_} == {(5, "g", "train")}
    recorded.undo()


@pytest.mark.warns("reward_missing")
def test_siblings_of_a_failure_are_recorded(run):
    """If one failure ends the group, finished siblings keep their steps, and have no total."""
    recorded = record(problems(make_renderer(RENDERER), 3, Breaks), run)
    assert isinstance(play(recorded, Policy({"12 + 30": ["42", "42", "7"]}), strategy=FailFast()), ConnectionError)
    first, second, third = sorted(read(run), key=lambda one: one.index)
    for one in (first, second):
        assert (one.status, one.reward, one.reward_so_far, one.stop_reason) == ("ok", None, 1.0, "completed")
        assert one.steps[0].tokens.logprobs
    assert (third.status, third.error.type) == ("error", "ConnectionError")
    recorded.undo()


@pytest.mark.warns("reward_missing")
async def test_a_sibling_that_goes_on_after_the_group_has_failed(run):
    """tinker-cookbook does not stop it: it is recorded to its end, without a total."""
    recorded = record(problems(make_renderer(RENDERER), 2, Breaks), run)
    gate = asyncio.Event()

    async def wait():
        await gate.wait()
        return "42"

    answers = iter(["7", wait()])
    completer = rollouts.TinkerTokenCompleter(SamplingClient(lambda prompt: next(answers)), max_tokens=160)
    with pytest.raises(ConnectionError):
        await rollouts.do_group_rollout(recorded, completer)
    gate.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    failed, last = sorted(read(run), key=lambda one: one.status)
    assert (failed.status, failed.index) == ("error", 0)
    assert (last.status, last.index, last.reward, len(last.steps)) == ("ok", 1, None, 1)
    assert run.ledger.dropped_after_end == {}
    recorded.undo()


def test_a_partial_group(run, seen):
    """Members that came through have the reward of the smaller group, on the right rollouts."""

    class Fails(Policy):
        def __call__(self, prompt):
            text = super().__call__(prompt)
            return OSError("down") if text == "Short." else text

    renderer = make_renderer(RENDERER)
    recorded = record(preferences(renderer, 4), run)
    play(recorded, Fails(), strategy=MinViableGroup(min_successful=2, max_retries=0))
    rollouts_ = read(run)
    good = [one for one in rollouts_ if one.status == "ok"]
    assert (len(good), len(rollouts_)) == (3, 4)
    for one in match(good, seen):
        assert_same(renderer, *one)
    recorded.undo()


async def forever():
    """Never answers."""
    await asyncio.Event().wait()


def test_time_limits(run, seen):
    """A rollout that exceeds the strategy's time limit timed out, and is replaced."""
    renderer = make_renderer(RENDERER)
    answers = iter([forever(), "42", "7"])
    recorded = record(problems(renderer, 2), run)
    play(recorded, lambda prompt: next(answers), strategy=RetryOnFailure(per_rollout_timeout=0.2))
    late, *good = sorted(read(run), key=lambda one: one.status)
    assert (late.index, late.attempt, late.error.type, late.error.layer) == (0, 0, "TimeoutError", "limit")
    assert late.pending_messages
    assert sorted((one.index, one.attempt) for one in good) == [(0, 1), (1, 0)]
    for one in match(good, seen):
        assert_same(renderer, *one)
    recorded.undo()


POLICY = TerminationRewardPolicy(zero_reward_on_limit=True, skip_grading_on_timeout=True)


def test_rewards_after_the_clamp(run, seen):
    """A reward that is set to zero for a limit is recorded so, and what the env gave is still in its step."""
    renderer = make_renderer(RENDERER)

    class Continues(ArithmeticEnv):
        async def step(self, action, *, extra=None):
            result = await super().step(action, extra=extra)
            result.episode_done = False
            result.next_observation = (await self.initial_observation())[0]
            return result

    builder = LimitedBuilder(problems(renderer, 2, Continues), RolloutLimits(max_turns=1))
    recorded = record(builder, run)
    play(recorded, Policy({"12 + 30": ["42", "42"]}), termination=POLICY)
    assert recorded.failed == 0
    for one in match(read(run), seen):
        assert_same(renderer, *one)
        rollout = one[-1]
        assert (rollout.line_reward, rollout.reward, rollout.stopped_by) == (1.0, 0.0, "runner")
        assert rollout.group_grade.reward_data == {"zero_reward_on_limit": 1.0}
    recorded.undo()


def test_a_group_that_is_not_graded(run, seen):
    """If all time out and grading is skipped, the reward is what tinker-cookbook makes of it."""
    renderer = make_renderer(RENDERER)
    builder = LimitedBuilder(problems(renderer, 2), RolloutLimits(rollout_timeout_seconds=0.2))
    recorded = record(builder, run)
    answers = iter([forever(), forever()])
    play(recorded, lambda prompt: next(answers), termination=POLICY)
    for trajectory, total, *_, rollout in match(read(run), seen):
        assert (rollout.stop_reason, rollout.stopped_by, rollout.reward) == ("timeout", "runner", total)
        assert rollout.ended_before_first_turn.reward == 0.0
        assert rollout.metrics == trajectory.transitions[0].metrics
        assert rollout.pending_messages
    recorded.undo()


def test_a_grader_that_fails(run):
    """All members have the error of the group's grader, and keep their steps."""

    class Raises(LongestWins):
        async def __call__(self, comparison):
            raise RuntimeError("judge down")

    renderer = make_renderer(RENDERER)
    prompt = [{"role": "user", "content": "Write a poem."}]
    builder = PairwisePreferenceGroupBuilder(prompt, renderer, TournamentPattern.ALL_PAIRS_ONE_WAY, Raises(), 2)
    recorded = record(builder, run)
    assert isinstance(play(recorded, Policy()), RuntimeError)
    for one in read(run):
        assert (one.status, one.error.layer, one.error.message) == ("error", "grader", "judge down")
        assert one.steps[0].tokens.logprobs
    recorded.undo()


@pytest.mark.warns("reward_missing")
def test_a_cancelled_group(run):
    """Members that were playing are recorded as cancelled, with their prompt."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 2), run)
    answers = iter(["42", forever()])

    async def main():
        started = asyncio.Event()

        def answer(prompt):
            text = next(answers)
            if not isinstance(text, str):
                started.set()
            return text

        completer = rollouts.TinkerTokenCompleter(SamplingClient(answer), max_tokens=160)
        task = asyncio.create_task(rollouts.do_group_rollout(recorded, completer))
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    first, second = sorted(read(run), key=lambda one: one.index)
    assert (first.status, first.reward, len(first.steps)) == ("ok", None, 1)
    assert (second.status, second.steps, second.pending_messages[-1].role) == ("cancelled", (), "user")
    recorded.undo()


# What stays as it was


def patched():
    """The functions of tinker-cookbook that are replaced."""
    names = {
        rollouts: ["do_single_rollout", "do_group_rollout"],
        train: [
            "compute_advantages",
            "assemble_training_data",
            "compute_kl_sample_train",
            "print_group",
            "run_evaluations_parallel",
        ],
    }
    return {(module.__name__, name): getattr(module, name) for module, of in names.items() for name in of}


def test_the_hooks_are_as_this_bridge_knows_them():
    """If this fails, tinker-cookbook has changed: look at `tinker_group.py` before you change what is expected."""
    assert version("tinker-cookbook").startswith("0.5.")
    parameters = {name: list(inspect.signature(function).parameters) for (_, name), function in patched().items()}
    assert parameters == {
        "do_single_rollout": ["policy", "env"],
        "do_group_rollout": ["env_group_builder", "policy", "strategy", "termination"],
        "compute_advantages": ["trajectory_groups_P"],
        "assemble_training_data": ["trajectory_groups_P", "advantages_P"],
        "compute_kl_sample_train": ["data_D", "training_logprobs_D"],
        "print_group": ["traj_group", "tokenizer"],
        "run_evaluations_parallel": ["evaluators", "sampling_client", "config", "i_batch", "store"],
    }


def test_undo_restores_everything(run):
    """After `undo`, functions and renderers are those of before, and nothing more is recorded."""
    before, renderer = patched(), make_renderer(RENDERER)
    attributes = dict(vars(renderer))
    first, second = record(problems(renderer, 2), run), record(preferences(renderer, 2), run)
    assert not set(before.values()) & set(patched().values())
    play(first, Policy())
    assert set(vars(renderer)) > set(attributes)
    first.undo()
    play(second, Policy())
    play(first, Policy())
    second.undo()
    second.undo()
    assert patched() == before
    assert vars(renderer) == attributes
    play(second, Policy())
    assert [one.env for one in read(run)] == ["ArithmeticEnv"] * 2 + ["PreferenceEnv"] * 2


def test_methods_of_instances_are_kept(run):
    """What somebody else replaced on an env or a renderer is called, and restored."""
    renderer = make_renderer(RENDERER)
    render = renderer.build_generation_prompt
    renderer.build_generation_prompt = lambda messages: render(
        [*messages[:-1], {"role": "user", "content": "12 + 30!"}]
    )
    made = []

    class Patched(ArithmeticEnv):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            step = self.step
            self.step = lambda action, extra: step(action)
            made.append(self)

    recorded = record(problems(renderer, 1, Patched), run)
    own = renderer.build_generation_prompt
    play(recorded, Policy())
    recorded.undo()
    [env] = made
    assert vars(env)["step"].__name__ == "<lambda>"
    assert renderer.build_generation_prompt is own
    [rollout] = read(run)
    assert rollout.steps[0].trace.prompt[-1].content == "What is 12 + 30?"
    assert recorded.failed == 0


@pytest.mark.warns("dropped")
def test_a_process_that_is_told_to_end(run):
    """What is being played is recorded as cancelled, with the steps it has."""
    recorded = record(SumToolBuilder(make_renderer(RENDERER), 1), run)

    def answer(prompt):
        if "<tool_response>" in prompt:
            run.cancel_open()  # what happens on SIGTERM
            return "42"
        return CALL

    play(recorded, answer)
    [rollout] = read(run)
    assert (rollout.status, len(rollout.steps)) == ("cancelled", 1)
    assert rollout.pending_messages[-1].role == "tool"
    assert run.ledger.dropped_after_end["step"] == 1
    recorded.undo()


async def test_envs_are_patched_only_while_they_are_played(run):
    """An env keeps its type and its attributes, a copy of it is not recorded, and it gets its methods back."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 2), run)
    envs = await recorded.make_envs()
    original = vars(Sum(renderer)())
    for env in envs:
        assert type(env) is ArithmeticEnv
        assert {
            name: value for name, value in vars(env).items() if name not in ("step", "initial_observation")
        } == original
        assert inspect.iscoroutinefunction(env.step)
        assert inspect.signature(env.step) == inspect.signature(Sum(renderer)().step)
    copies = [pickle.loads(pickle.dumps(envs[0])), copy.deepcopy(envs[0])]
    for one in copies:
        prompt, _ = await one.initial_observation()
        result = await one.step(renderer.tokenizer.encode("42<|im_end|>"), extra={"stop_reason": "stop"})
        assert (prompt.length > 10, result.reward) == (True, 1.0)
    await recorded.cleanup()
    assert [vars(env) for env in envs] == [original] * 2
    assert read(run) == []
    recorded.undo()


def test_wrappers_have_what_they_wrap(run, tmp_path, monkeypatch):
    """Attributes of what is wrapped are there, and the log of the configuration shows it."""
    renderer = make_renderer(RENDERER)
    dataset = ListDataset([problems(renderer, 2)], 1)
    recorded = record(ListBuilder(train=dataset), run)
    assert (recorded.train, isinstance(recorded, RLDatasetBuilder)) == (dataset, True)
    inner, _ = asyncio.run(recorded())
    assert (len(inner), inner.batches, isinstance(inner, RLDataset)) == (1, 1, True)
    [builder] = inner.get_batch(0)
    assert (builder.dataset_name, builder.logging_tags()) == ("sums", ["sums"])
    train_on(tmp_path, monkeypatch, recorded, Policy())
    logged = json.loads((tmp_path / "log" / "config.json").read_text())["dataset_builder"]
    assert len(tinker_group._active) == 1  # the copy for the log does not record
    assert (set(logged["inner"]), logged["recording"]) == ({"train", "test"}, {"run": str(run.path)})
    recorded.undo()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, "run"), "Expected an RLDatasetBuilder, RLDataset or EnvGroupBuilder, got int."),
        (("builder", "path"), "Expected a run that is being written, got str: use rolltrace.create_run."),
    ],
)
def test_wrong_use_is_refused(run, arguments, message):
    """Wrong arguments raise at once, in one sentence."""
    known = {"run": run, "builder": problems(make_renderer(RENDERER))}
    with pytest.raises(InputError) as raised:
        record(*[known.get(one, one) for one in arguments])
    assert str(raised.value) == message


def test_nothing_is_recorded_twice(run):
    """What is being recorded can be recorded again only after `undo`."""
    first = record(problems(make_renderer(RENDERER)), run)
    with pytest.raises(InputError, match="being recorded already"):
        record(first, run)
    first.undo()
    second = record(first, run)
    play(second, Policy())
    assert len(read(run)) == 4
    second.undo()


def test_training_goes_on_if_recording_fails(run, monkeypatch, caplog):
    """What the bridge could not record is counted and logged once; the group is what it would have been."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 4), run)
    monkeypatch.setattr(type(run), "rollout", lambda self, **fields: 1 / 0)
    group = play(recorded, Policy())
    assert [len(one.transitions) for one in group.trajectories_G] == [1] * 4
    assert recorded.failed > 1
    [warning] = [one.message for one in caplog.records if one.name == "rolltrace"]
    assert warning == (
        "Could not record a rollout of tinker-cookbook: ZeroDivisionError: division by zero. "
        "Further failures are counted in `failed` of what record() returned."
    )
    recorded.undo()


# Other processes, other loops, other envs


def answer_sums(prompt):
    """A policy that can be pickled."""
    return "42"


@pytest.mark.warns("evaluation_task_in_training")
def test_process_pools(tmp_path, run):
    """Groups that other processes play are recorded by them, each at its place; advantages by the trainer."""
    renderer = make_renderer(RENDERER)
    recorded = record(ListDataset([problems(renderer, 2), problems(renderer, 1)], 1), run)
    evaluated = record(ListDataset([problems(renderer, 1)], 1), run, split="held-out")

    async def main():
        settings = {"max_tokens": 160, "temperature": 1.0, "do_remove_constant_reward_groups": False}
        client = SamplingClient(answer_sums)
        tests = metric_util.RLTestSetEvaluator(evaluated, max_tokens=160)
        groups = await asyncio.gather(
            *[
                rollouts.do_group_rollout_and_filter_constant_reward(client, builder, **settings)
                for builder in recorded.get_batch(0)
            ]
        )
        for _ in range(2):
            await tests(client)
        return groups

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        rollouts.set_rollout_executor(pool)
        try:
            groups = asyncio.run(main())
        finally:
            rollouts.set_rollout_executor(None)
    train.compute_advantages(groups)
    rollouts_ = read(run)
    assert sorted((one.split, one.iteration, one.group, one.index, one.reward) for one in rollouts_) == [
        ("held-out", 0, "0.0", 0, 1.0), ("held-out", 1, "0.0", 0, 1.0),
        ("train", 0, "0.0", 0, 1.0), ("train", 0, "0.0", 1, 1.0), ("train", 0, "0.1", 0, 1.0),
    ]  # fmt: skip
    scores = {one.split: [score.name for score in one.scores] for one in rollouts_}
    assert scores == {"train": ["advantage"], "held-out": []}
    for one in match([one for one in rollouts_ if one.split == "train"], groups):
        assert_same(renderer, *one)
    for one in (recorded, evaluated):
        one.undo()


class TokenEnv(Env):
    """An env that has no renderer, and plays two turns."""

    async def initial_observation(self):
        self.turn = 0
        return tinker.ModelInput.from_ints([40, 41]), ["x"]

    async def step(self, action, *, extra=None):
        self.turn += 1
        observation = tinker.ModelInput.from_ints([40, 41, *action, 42])
        return StepResult(1.0, self.turn == 2, observation, ["x"], metrics={"turn": self.turn})


class TokenBuilder(EnvGroupBuilder):
    """One such env."""

    async def make_envs(self):
        return [TokenEnv()]


@pytest.mark.warns("history_not_continued")
def test_an_env_without_a_renderer(run, seen):
    """Its prompts and responses are recorded as token ids, and its state as it changes."""
    recorded = record(TokenBuilder(), run)
    play(recorded, lambda prompt: "a")
    [rollout] = read(run)
    [group] = seen
    for number, transition in enumerate(group.trajectories_G[0].transitions):
        step = rollout.steps[number]
        assert step.trace.prompt[-1].content == str(transition.ob.to_ints())
        assert step.extra == {"prompt_from": "tokens"}
        assert step.trace.policy_response.content == str(transition.ac.tokens)
        assert (step.tokens.logprobs, step.env_state) == (tuple(transition.ac.logprobs), {"turn": number + 1})
    recorded.undo()


class Judged(ArithmeticEnv):
    """Asks a judge with the renderer of the policy, before and after it reads the answer."""

    async def step(self, action, *, extra=None):
        self.ask_judge()
        result = await super().step(action, extra=extra)
        self.ask_judge()
        return result

    def ask_judge(self):
        self.renderer.build_generation_prompt([{"role": "user", "content": "Is this right?"}])
        self.renderer.parse_response(self.renderer.tokenizer.encode("Yes.<|im_end|>"))


def test_an_env_that_renders_and_parses_for_others_too(run, seen):
    """What is recorded is the policy's own prompt and response."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 4, Judged), run)
    play(recorded, Policy())
    for one in match(read(run), seen):
        assert_same(renderer, *one)
    recorded.undo()


class ImageEnv(TokenEnv):
    """An env that shows a picture between two texts."""

    async def initial_observation(self):
        image = tinker.types.ImageChunk(data=b"png", format="png", expected_tokens=5)
        before, after = (tinker.EncodedTextChunk(tokens=tokens) for tokens in ([40, 41], [42]))
        self.turn = 1
        return tinker.ModelInput(chunks=[before, image, after]), ["x"]


@pytest.mark.warns("reward_missing")
async def test_images_in_a_prompt(run):
    """The tokens of the prompt are those of its text; where images were, and how long, is recorded beside them."""
    recorded = record(TokenBuilder(), run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenBuilder, "make_envs", lambda self: asyncio.sleep(0, [ImageEnv()]))
        [env] = await recorded.make_envs()
    await env.initial_observation()
    await env.step([50])
    await recorded.cleanup()
    [step] = read(run)[0].steps
    assert step.extra["image_tokens"] == [[2, 5]]
    assert (step.usage.prompt_tokens, step.trace.prompt[0].content) == (8, "[40, 41, 42]")
    recorded.undo()


def board_of(env):
    """The state of a game, for the test below."""
    return {"board": env.coordinator.state.game_state["board"], "api_key": "sk-abc"}


@pytest.mark.warns("group_prompts", "history_not_continued")
def test_a_state_of_your_own(run):
    """`state` reads the env's state; secrets in it are redacted."""
    recorded = record(games(make_renderer(RENDERER)), run, state=board_of)
    play(recorded, Policy())
    for rollout in read(run):
        for step in rollout.steps:
            assert set(step.env_state) == {"board", "api_key"}
            assert step.env_state["api_key"] == "[redacted]"
    recorded.undo()


def broken_state(env):
    """A function of the user that fails."""
    raise ZeroDivisionError


def test_a_state_that_cannot_be_read(run):
    """Only the state is missing."""
    recorded = record(problems(make_renderer(RENDERER), 1), run, state=broken_state)
    play(recorded, Policy())
    [rollout] = read(run)
    assert [(step.trace.policy_response.content, step.env_state) for step in rollout.steps] == [("42", {})]
    assert recorded.failed == 1
    recorded.undo()


class Rewrites(ArithmeticEnv):
    """Changes the messages that it has rendered and parsed."""

    async def initial_observation(self):
        self.messages = [{"role": "user", "content": "What is 12 + 30?"}]
        prompt = self.renderer.build_generation_prompt(self.messages)
        self.messages[0]["content"] = "changed"
        return prompt, self.stop_condition

    async def step(self, action, *, extra=None):
        message, _ = self.renderer.parse_response(action)
        message["content"] = "changed"
        return StepResult(1.0, True, tinker.ModelInput.empty(), self.stop_condition)


def test_an_env_that_changes_its_messages(run):
    """The messages are recorded as they were rendered, and as the policy's answer was parsed."""
    recorded = record(problems(make_renderer(RENDERER), 1, Rewrites), run)
    play(recorded, Policy())
    [rollout] = read(run)
    assert [one.content for one in rollout.conversation] == ["What is 12 + 30?", "42"]
    assert recorded.failed == 0
    recorded.undo()


@pytest.mark.warns("reward_missing")
def test_a_loop_of_your_own(run):
    """Without the functions of tinker-cookbook that play, log-probabilities come from the group's trajectories."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 3), run, iteration=7, group="mine", split="try")

    async def main():
        completer = rollouts.TinkerTokenCompleter(SamplingClient(Policy()), max_tokens=160)
        envs = await recorded.make_envs()
        trajectories = [await run_rollout(completer, env) for env in envs[:2]]
        await envs[2].initial_observation()
        rewards = await recorded.compute_group_rewards(trajectories, envs[:2])
        await recorded.cleanup()
        totals = rollouts.TrajectoryGroup(trajectories, *map(list, zip(*rewards, strict=True)))
        return [totals]

    seen = asyncio.run(main())
    rollouts_ = read(run)
    for one in match(rollouts_[:2], seen):
        assert_same(renderer, *one)
    assert {(one.split, one.iteration, one.group) for one in rollouts_} == {("try", 7, "mine")}
    assert (rollouts_[2].stop_reason, rollouts_[2].reward, rollouts_[2].steps) == ("episode_aborted", None, ())
    recorded.undo()


def test_a_loop_without_cleanup(run):
    """Groups that are graded are recorded, also if the builder is wrapped again and `cleanup` is not called."""
    renderer = make_renderer(RENDERER)
    recorded = record(problems(renderer, 2), run, group="g")
    limited = LimitedBuilder(recorded, RolloutLimits(max_turns=1))

    async def main():
        completer = rollouts.TinkerTokenCompleter(SamplingClient(Policy()), max_tokens=64)
        return [await rollouts.do_group_rollout(limited, completer) for _ in range(2)]

    seen = asyncio.run(main())
    rollouts_ = read(run)
    assert [(one.group, one.index) for one in rollouts_] == [("g", 0), ("g", 1), ("g#2", 0), ("g#2", 1)]
    for one in match(rollouts_, seen):
        assert_same(renderer, *one)
    recorded.undo()


class SameTwice(EnvGroupBuilder):
    """One env that stands for two."""

    async def make_envs(self):
        return [TokenEnv()] * 2


def test_an_env_that_is_there_twice(run, caplog):
    """Its rollouts cannot be told apart: they are not recorded, and counted."""
    recorded = record(SameTwice(), run)
    assert len(play(recorded, lambda prompt: "a").trajectories_G) == 2
    assert (recorded.failed, read(run)) == (1, [])
    assert "the same env twice" in caplog.text
    recorded.undo()


def test_one_builder_that_is_played_again_and_at_the_same_time(run):
    """Each play is a group of its own."""
    recorded = record(problems(make_renderer(RENDERER), 2), run, group="g")

    async def main():
        completer = rollouts.TinkerTokenCompleter(SamplingClient(Policy()), max_tokens=160)
        await asyncio.gather(*[rollouts.do_group_rollout(recorded, completer) for _ in range(3)])

    asyncio.run(main())
    members = sorted((one.group, one.index) for one in read(run))
    assert members == [(name, index) for name in ("g", "g#2", "g#3") for index in (0, 1)]
    recorded.undo()


class InTasks(FailFast):
    """A strategy that plays in a task of its own."""

    async def execute(self, env_group_builder, policy):
        return await asyncio.create_task(super().execute(env_group_builder, policy))


def test_a_strategy_of_your_own(run, seen):
    """The group is graded and ended in another task than it was made in."""
    renderer = make_renderer(RENDERER)
    recorded = record(preferences(renderer), run)
    play(recorded, Policy(), strategy=InTasks())
    rollouts_ = read(run)
    assert len(rollouts_) == 4
    for one in match(rollouts_, seen):
        assert_same(renderer, *one)
    recorded.undo()


def test_messages_that_a_hook_injects(run):
    """A prompt with injected messages is recorded as it was sampled from."""

    class Hint(RolloutHooks):
        async def on_turn_begin(self, state):
            return [{"role": "user", "content": "Hurry."}] if state.turn_index == 0 else None

    async def do_single_rollout(policy, env):
        return await run_rollout(policy, env, hooks=Hint())

    recorded = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollouts, "do_single_rollout", do_single_rollout)
        recorded = record(SumToolBuilder(make_renderer(RENDERER), 1), run)
        group = play(recorded, Policy({"Use the tool": ["42"]}))
        recorded.undo()
    [rollout] = read(run)
    assert [one.content for one in rollout.steps[0].trace.prompt][1:] == ["Use the tool: 12 and 30.", "Hurry."]
    assert rollout.prompt_tokens(0) == tuple(group.trajectories_G[0].transitions[0].ob.to_ints())
