"""The training loop of tinker-cookbook plays our environments, which are recorded as if we had played them."""

import pytest

pytest.importorskip("tinker_cookbook")

import asyncio
import pickle
import re
from pathlib import Path

import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.rl import rollouts, train
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.types import RLDatasetBuilder

import rolltrace
import rolltrace.envs.registry
from rolltrace.bridges import tinker_group
from rolltrace.bridges.tinker import to_tinker
from rolltrace.errors import InputError
from rolltrace.testing.noisy import NoisyPolicy
from tinker_service import CUT, MALFORMED, MODEL, ServiceClient, make_renderer, make_tokenizer, play
from unexplained_findings import explained_run

ROLES = {"grader": NoisyPolicy()}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "EXPRESSION"}}\n</tool_call>'


@pytest.fixture(autouse=True)
def undone():
    """What a test records ends with the test: tests of the same process see tinker-cookbook as it is."""
    yield
    for recording in list(tinker_group._active):
        recording.undo()


@pytest.fixture
def run(request, tmp_path):
    """A run with tokens."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


def read(run):
    run.flush()
    return list(rolltrace.open_run(run.path).rollouts())


class Answers:
    """Solves some of the tasks; other answers are wrong, cut, malformed, or not to be parsed."""

    def __init__(self):
        self.number = 0

    def __call__(self, prompt):
        self.number += 1
        if "thinking of a whole number" in prompt:
            low, high = 1, 100
            for guess, feedback in re.findall(r"Guess: (\d+)<.*?(too low|too high|higher|lower)", prompt, re.DOTALL):
                low, high = (int(guess) + 1, high) if feedback in ("too low", "higher") else (low, int(guess) - 1)
            return f"Guess: {(low + high) // 2}" if self.number % 9 else f"Guess{CUT}"
        if "<tool_response>" in prompt:
            return f"Answer: {prompt.rsplit('<tool_response>', 1)[1].split()[0]}"
        expression = re.search(r"What is (.*)\?", prompt)
        good = CALL.replace("EXPRESSION", expression[1]) if expression and "# Tools" in prompt else "Answer: 23"
        others = [f"Let me think{CUT}", f"It is{MALFORMED}", "<tool_call>\n{not json\n</tool_call>"]
        return good if self.number % 2 else others[self.number // 2 % 3]


class DatasetBuilder(RLDatasetBuilder):
    """Gives datasets that exist."""

    def __init__(self, *datasets):
        object.__setattr__(self, "datasets", datasets)

    async def __call__(self):
        return self.datasets


@pytest.fixture
def seen(monkeypatch):
    """The groups that tinker-cookbook trained on or evaluated."""
    groups = []
    original = rollouts.do_group_rollout

    async def do_group_rollout(*args, **kwargs):
        groups.append(await original(*args, **kwargs))
        return groups[-1]

    for module in (rollouts, train.RLTestSetEvaluator.eval_token_completer.__globals__):
        if isinstance(module, dict):
            monkeypatch.setitem(module, "do_group_rollout", do_group_rollout)
        else:
            monkeypatch.setattr(module, "do_group_rollout", do_group_rollout)
    return groups


def assert_same(recorded, groups):
    """Tokens, rewards, totals and stop reasons of the record are those that tinker-cookbook saw."""
    by_logprobs = {tuple(step.tokens.logprobs for step in one.steps): one for one in recorded}
    trajectories = [
        (trajectory, total)
        for group in groups
        for trajectory, total in zip(group.trajectories_G, group.get_total_rewards(), strict=True)
    ]
    for trajectory, total in trajectories:
        rollout = by_logprobs.pop(tuple(tuple(one.ac.logprobs) for one in trajectory.transitions))
        assert rollout.reward == pytest.approx(total, abs=1e-12)
        assert rollout.stop_reason == trajectory.stop_reason
        for number, (step, transition) in enumerate(zip(rollout.steps, trajectory.transitions, strict=True)):
            assert rollout.prompt_tokens(number) == tuple(transition.ob.to_ints())
            assert step.tokens.response == tuple(transition.ac.tokens)
            assert step.reward == transition.reward
            assert (step.termination == "length") == (transition.ac.stop_reason == "length")
    assert by_logprobs == {}
    return len(trajectories)


@pytest.mark.parametrize("env", ["calculator", "guess_number", "preference"])
@pytest.mark.warns("evaluation_task_in_training", "logprob_gap", "truncated_responses", "history_tokenized_again")
def test_the_training_loop_plays_our_environments(tmp_path, monkeypatch, run, seen, env):
    """Two iterations with evaluations: tools, games of several turns, and a group's grader."""
    renderer = make_renderer()
    sizes = {"batch_size": 2, "group_size": 4, "roles": ROLES, "run": run}
    datasets = [
        to_tinker(env, renderer, batches=2, **sizes),
        to_tinker(env, renderer, batches=1, split="test", **sizes),
    ]
    service = ServiceClient(Answers())
    monkeypatch.setattr(tinker, "ServiceClient", service)
    config = train.Config(
        learning_rate=1e-4, dataset_builder=DatasetBuilder(*datasets), model_name=MODEL, recipe_name="test",
        max_tokens=256, log_path=str(tmp_path / "log"), save_every=0, eval_every=1,
    )  # fmt: skip
    asyncio.run(train.main(config))
    recorded = read(run)
    assert assert_same(recorded, seen) == len(recorded) == 32
    places = {(one.split, one.iteration) for one in recorded}
    assert places == {("train", 0), ("train", 1), ("test", 0), ("test", 1)}
    assert {one.env for one in recorded} == {env}
    assert len({one.reward for one in recorded}) > 1
    advantages = {one.split: [score.name for score in one.scores].count("advantage") for one in recorded}
    assert advantages == {"train": 1, "test": 0}
    producers = {score.producer for one in recorded for score in one.scores if score.name == "reward"}
    assert "tinker-cookbook" not in producers  # our graders have said it
    if env == "calculator":
        assert {one.stop_reason for one in recorded} == {"completed", "max_tokens", "parse_error"}
        numbers = [metrics for group in seen for metrics in group.metrics_G]
        assert {name for one in numbers for name in one} >= {"correct"}
    for one in datasets:
        one.undo()


def test_failures_and_retries(run, seen):
    """A sampler that fails is recorded on its rollout; the attempt that replaces it is a group of its own."""
    answers = iter(["Answer: 23", OSError("no connection"), "Answer: 1", "Answer: 23"])
    dataset = to_tinker("arithmetic", make_renderer(), run=run, batch_size=1, group_size=3, batches=1)
    play(dataset.get_batch(0)[0], lambda prompt: next(answers), strategy=RetryOnFailure())
    recorded = read(run)
    [(group, index, error)] = [(one.group, one.index, one.error) for one in recorded if one.status == "error"]
    assert (group, index, error.type, error.layer) == ("0.0", 1, "OSError", "policy")
    good = [one for one in recorded if one.status == "ok"]
    assert sorted((one.group, one.index) for one in good) == [("0.0", 0), ("0.0", 2), ("0.0#2", 0)]
    assert assert_same(good, seen) == 3
    dataset.undo()


def test_a_prompt_that_does_not_fit(run):
    """It ends the rollout before its first turn, with the reward for that."""
    limits = rolltrace.Limits(context_length=20)
    dataset = to_tinker("arithmetic", make_renderer(), run=run, batch_size=1, group_size=2, batches=1, limits=limits)
    group = play(dataset.get_batch(0)[0], lambda prompt: "never")
    recorded = read(run)
    assert [one.stop_reason for one in group.trajectories_G] == ["context_overflow"] * 2
    assert group.get_total_rewards() == [one.reward for one in recorded]
    assert all(one.pending_messages and not one.steps for one in recorded)
    dataset.undo()


@pytest.mark.warns("failed_score")
def test_an_environment_that_fails(run):
    """tinker-cookbook sees the error of our environment, and goes on with the others of the group."""
    dataset = to_tinker("preference", make_renderer(), run=run, batch_size=1, group_size=2, batches=1)
    error = play(dataset.get_batch(0)[0], lambda prompt: "Tomatoes.")
    assert "The role 'grader' needs a policy of its own" in str(error)
    dataset.undo()


def test_without_a_run(seen):
    """Nothing is recorded, and a failed member leaves the others their rewards."""
    answers = iter(["Answer: 23", OSError("no connection"), "Answer: 1"])
    before = rollouts.do_single_rollout
    dataset = to_tinker("arithmetic", make_renderer(), batch_size=1, group_size=3, batches=1)
    assert rollouts.do_single_rollout is before
    play(dataset.get_batch(0)[0], lambda prompt: next(answers), strategy=MinViableGroup(2, max_retries=0))
    [group] = seen
    assert sorted(group.get_total_rewards()) == [0.0, 1.0]
    dataset.undo()


def test_datasets():
    """The length is that of the tasks, or as given; builders can be pickled; the same batch has the same tasks."""
    renderer = make_renderer()
    dataset = to_tinker("problems", renderer, batch_size=4, group_size=2)
    assert len(dataset) == -(-rolltrace.envs.registry.load_env("problems").count // 4)
    first, again = dataset.get_batch(1), dataset.get_batch(1)
    assert [one.builder.task for one in first] == [one.builder.task for one in again]
    copied = pickle.loads(pickle.dumps(first[0]))
    assert (copied.builder.task, copied.logging_tags()) == (first[0].builder.task, first[0].logging_tags())
    assert first[0].logging_tags()[0] == "problems"


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((5, "renderer"), {}, "Expected the tasks of an environment, or its name, got int."),
        (("arithmetic", "qwen3"), {"batches": 1}, "Expected a renderer of tinker-cookbook, got str."),
        (("arithmetic", "renderer"), {}, "arithmetic has no last task: pass batches=, the number of batches"),
        (("arithmetic", "renderer"), {"batches": 1, "run": "runs/r"}, "Expected a run that is being written, got str"),
    ],
)
def test_wrong_use_is_refused(arguments, settings, message):
    """Wrong arguments raise at once, in one sentence."""
    renderer = make_renderer()
    with pytest.raises(InputError) as raised:
        to_tinker(*[renderer if one == "renderer" else one for one in arguments], **settings)
    assert str(raised.value).startswith(message)


def test_a_renderer_without_tools_is_refused(run):
    """An environment with tools needs a renderer that can offer them."""
    dataset = to_tinker("calculator", make_renderer("role_colon"), run=run, batch_size=1, group_size=1, batches=1)
    error = play(dataset.get_batch(0)[0], lambda prompt: "never")
    assert str(error) == "RoleColonRenderer cannot offer tools, which this environment has."
    [rollout] = read(run)
    assert (rollout.status, rollout.error.layer) == ("error", "policy")
    dataset.undo()


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    """The guide's blocks are one program: it trains on their environment, then on ours."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "tinker-cookbook.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tinker, "ServiceClient", ServiceClient(Answers()))
    tokenizer_utils.register_tokenizer("Qwen/Qwen3-8B", make_tokenizer)
    try:
        exec(compile(code, "guide", "exec"), {"__name__": "__main__"})
    finally:
        tokenizer_utils.unregister_tokenizer("Qwen/Qwen3-8B")
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("(", "0 could"))]
    assert shown[0] == "0 could not be recorded"
    assert [eval(line)[:3] for line in shown[1:]] == [
        (env, iteration, 8) for env in ("ArithmeticEnv", "calculator") for iteration in (0, 1)
    ]
