"""What TRL's trainers generate is recorded as they saw it: their own tiny trainings on the CPU are compared."""

import asyncio
import inspect
import itertools
import json
import logging
import math
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import rolltrace
import tiny_trl
from rolltrace.bridges import trl as bridge
from rolltrace.bridges.trl import record, record_rewards
from rolltrace.errors import InputError
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from tiny_trl import (
    BAD_CALL,
    CALL,
    END,
    SpiedGRPO,
    SpiedRLOO,
    add,
    favour,
    logps_of,
    rollouts_of,
    score,
    sums,
    tokens_of,
)
from unexplained_findings import explained_run

GRPOConfig, GRPOTrainer = tiny_trl.trl.GRPOConfig, tiny_trl.trl.GRPOTrainer
TrainerState = tiny_trl.transformers.TrainerState
RLOOConfig, RLOOTrainer = tiny_trl.trl.RLOOConfig, tiny_trl.trl.RLOOTrainer
pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch and transformers
ROOT = Path(__file__).parents[2]
TOKENIZER = tiny_trl.make_tokenizer()
BIASES = {END: 5, CALL: 5}


@pytest.fixture
def run(request, tmp_path):
    """A run with token ids that is being written."""
    with explained_run(request, tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as writer:
        yield writer


def length(completions, **columns):
    return [len(str(completion)) / 1000 for completion in completions]


def answered(completions, answer, log_extra, **columns):
    log_extra("wanted", answer)
    return [float(str(wanted) in str(completion)) for completion, wanted in zip(completions, answer, strict=True)]


def make_trainer(
    tmp_path, kind=SpiedGRPO, rewards=(length, answered), biases=BIASES, dataset=None, evaluation=None, **more
):
    """A trainer of three steps with four completions each, on the CPU."""
    objects = {name: more.pop(name) for name in ("tools", "rollout_func", "environment_factory") if name in more}
    settings = {
        "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 160, "max_steps": 3,
        "logging_steps": 1, "learning_rate": 0.01, **more,
    }  # fmt: skip
    args = (RLOOConfig if issubclass(kind, RLOOTrainer) else GRPOConfig)(
        output_dir=str(tmp_path / "out"), report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        generation_kwargs=favour(TOKENIZER, biases), **settings,
    )  # fmt: skip
    model = tiny_trl.make_model(TOKENIZER)
    if issubclass(kind, RLOOTrainer):  # which loads it again, as the reference
        model.save_pretrained(tmp_path / "model")
        model = str(tmp_path / "model")
    return kind(
        model=model, reward_funcs=list(rewards), args=args, processing_class=TOKENIZER,
        train_dataset=sums() if dataset is None else dataset, eval_dataset=evaluation, **objects,
    )  # fmt: skip


def plain(messages):
    """Messages as far as TRL knows them: role, content, and the name and arguments of each call."""
    shown = []
    for message in messages:
        is_dict = isinstance(message, dict)
        calls = (message.get("tool_calls") or ()) if is_dict else message.tool_calls
        called = [
            (call["function"]["name"], call["function"]["arguments"])
            if is_dict
            else (call.name, json.loads(call.arguments))
            for call in calls
        ]
        content = message["content"] if is_dict else message.content
        shown.append((message["role"] if is_dict else message.role, content, called))
    return shown


def assert_equal(rollouts, trainer, names=("length", "answered")):
    """What is recorded of training equals what the trainer saw, number for number and token for token."""
    remaining = iter(rollouts)
    weights = trainer.reward_weights.tolist()
    for seen in trainer.seen:
        generated = seen["generated"]
        has_tools = len(generated) > 3
        prompt_ids, ids, completions = generated[0], generated[1], generated[3 if has_tools else 2]
        masks = generated[2] if has_tools and generated[2] is not None else [[1] * len(each) for each in ids]
        totals = (seen["rewards"] * trainer.reward_weights).nansum(dim=1)
        for number, rollout in zip(range(len(ids)), remaining, strict=False):
            recorded_prompt, recorded_ids, recorded_mask = tokens_of(rollout)
            end = len(recorded_ids)
            assert recorded_prompt == prompt_ids[number]
            assert (recorded_ids, recorded_mask) == (ids[number][:end], masks[number][:end])
            assert not any(masks[number][end:])  # tool results to which the policy could not answer
            assert plain(rollout.conversation) == plain([*seen["prompts"][number], *completions[number]])
            assert rollout.grade.reward_data == dict(zip(names, seen["rewards"][number].tolist(), strict=True))
            assert rollout.grade.reward_weights == dict(zip(names, weights, strict=True))
            assert rollout.reward == totals[number].item()
            assert score(rollout, "advantage").value == seen["advantages"][number].item()
            numbers = score(rollout, "trainer_logprobs").data["tokens"]
            assert [len(each) for each in numbers] == [len(step.tokens.response) for step in rollout.steps]
            assert list(itertools.chain(*numbers)) == logps_of(seen, prompt_ids[number], ids[number], masks[number])
    assert list(remaining) == []


def test_three_steps_with_a_tool_and_two_rewards(tmp_path, run):
    """Prompts, turns, tool results, ids, log-probabilities, rewards, weights and advantages are the trainer's."""
    trainer = make_trainer(tmp_path, tools=[add], reward_weights=[1.0, 0.25])
    recorded = record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert recorded.failed == 0
    assert [(one.iteration, one.group, one.index) for one in rollouts] == [
        (step, str(group), index) for step in range(3) for group in range(2) for index in range(2)
    ]
    assert_equal(rollouts, trainer)
    assert max(len(one.steps) for one in rollouts) >= 3
    assert {message.content for one in rollouts for message in one.messages if message.role == "tool"} == {"5"}
    called = next(one for one in rollouts if one.steps[0].termination is Termination.TOOL_CALLS)
    assert CALL in called.steps[0].raw
    assert [tool.name for tool in called.tools[0]] == ["add"]
    assert called.sampling[0].temperature == trainer.args.temperature
    assert {one.steps[-1].extra["wanted"] for one in rollouts} == {one.task_data["answer"] for one in rollouts}
    assert all(not one.notes and one.split == "train" and one.env == "trl" for one in rollouts)
    assert len({one.task for one in rollouts}) == len({one.task_data["answer"] for one in rollouts})


def test_a_completion_that_is_truncated(tmp_path, run):
    """A completion without an end, and one whose tool results do not fit, say so; the latter has no results."""
    trainer = make_trainer(
        tmp_path, tools=[add], max_completion_length=12, per_device_train_batch_size=8, biases={END: 4, CALL: 4}
    )
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert_equal(rollouts, trainer)
    endings = {(one.steps[-1].termination, one.stop_reason) for one in rollouts}
    assert endings == {
        (Termination.LENGTH, "max_tokens"), (Termination.TOOL_CALLS, "max_tokens"), (Termination.EOS, "completed")
    }  # fmt: skip
    cut = [one for one in rollouts if one.steps[-1].termination is Termination.LENGTH]
    ends = {TOKENIZER.eos_token_id, TOKENIZER.pad_token_id}
    assert len(cut) == sum(ids[-1] not in ends for seen in trainer.seen for ids in seen["generated"][1])


def test_a_truncated_completion_that_is_masked(tmp_path, run):
    """What the trainer computes for a masked completion means nothing, so it has no log-probabilities."""
    trainer = make_trainer(tmp_path, mask_truncated_completions=True, max_completion_length=8, biases={END: 4})
    record(trainer, run)
    trainer.train()
    names = {
        (one.stop_reason, tuple(sorted(each.name for each in one.scores))) for one in rollouts_of(run)
    }  # fmt: skip
    assert names == {("max_tokens", ("advantage",)), ("completed", ("advantage", "trainer_logprobs"))}


def test_too_many_turns_with_tools(tmp_path, run):
    """A rollout that the limit on turns ends says so."""
    trainer = make_trainer(tmp_path, tools=[add], max_tool_calling_iterations=1, max_completion_length=256)
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert_equal(rollouts, trainer)
    ended = [one for one in rollouts if one.stop_reason == "max_turns"]
    assert ended
    assert all(len(one.steps) == 2 and one.conversation[-1].tool_calls for one in ended)


def test_a_call_that_cannot_be_parsed(tmp_path, run):
    """TRL takes a malformed call for text; it is recorded as such."""
    trainer = make_trainer(tmp_path, tools=[add], biases={END: 5, BAD_CALL: 6})
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert_equal(rollouts, trainer)
    assert any(BAD_CALL in one.conversation[-1].content for one in rollouts)


@pytest.mark.warns("reward_missing")
def test_rewards_that_are_none(tmp_path, run):
    """A function that returned None has no number; if all did, the rollout has no reward."""

    def sometimes(completions, **columns):
        return [None if number % 2 else 0.5 for number in range(len(completions))]

    def never(completions, **columns):
        return [None] * len(completions)

    trainer = make_trainer(tmp_path, rewards=[sometimes, never])
    record(trainer, run)
    trainer.train()
    for rollout in rollouts_of(run):
        assert rollout.status is Status.OK
        assert rollout.reward == (None if rollout.index else 0.5)
        graded = rolltrace.Grade(0.5, {"sometimes": 0.5}, reward_weights={"sometimes": 1.0})
        assert rollout.grade == (None if rollout.index else graded)
        assert score(rollout, "advantage").value == 0.0


def test_reward_functions_of_the_same_name(tmp_path, run):
    """Each has a number of its own."""
    rewards = [lambda completions, value=value, **columns: [value] * len(completions) for value in (1.0, 2.0)]
    trainer = make_trainer(tmp_path, rewards=rewards, max_steps=1)
    record(trainer, run)
    trainer.train()
    assert {tuple(one.grade.reward_data.items()) for one in rollouts_of(run)} == {
        (("<lambda>", 1.0), ("<lambda>_2", 2.0))
    }


def test_a_reward_function_that_raises(tmp_path, run):
    """The training fails as it would; the completions are recorded, with the error of the grader."""

    def broken(completions, **columns):
        raise ZeroDivisionError("no reward today")

    trainer = make_trainer(tmp_path, rewards=[length, broken])
    recorded = record(trainer, run)
    with pytest.raises(ZeroDivisionError, match="no reward today"):
        trainer.train()
    rollouts = rollouts_of(run)
    assert recorded.failed == 0
    assert [(one.status, one.error.layer, one.error.type) for one in rollouts] == [
        (Status.ERROR, Layer.GRADER, "ZeroDivisionError")
    ] * 4
    for number, rollout in enumerate(rollouts):
        assert tokens_of(rollout)[1] == trainer.seen[0]["generated"][1][number]
        assert rollout.reward is None


def test_extra_values_of_a_generation_that_failed(tmp_path, run):
    """What its reward function logged before it raised is not taken for that of the next generation."""
    calls = itertools.count()

    def flaky(completions, log_extra, **columns):
        call = next(calls)
        log_extra("call", [call] * len(completions))
        if call == 0:
            raise ZeroDivisionError
        return [float(call)] * len(completions)

    trainer = make_trainer(tmp_path, rewards=[flaky], max_steps=2)
    record(trainer, run)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    trainer.train()
    graded = [one for one in rollouts_of(run) if one.status is Status.OK]
    assert [(one.reward, one.steps[-1].extra["call"]) for one in graded] == [(1.0, 1)] * 4 + [(2.0, 2)] * 4


@pytest.mark.parametrize("is_again", [False, True])
def test_a_second_training(tmp_path, run, is_again):
    """The groups of an iteration that is played again are numbered on, also by a second recording."""
    trainer = make_trainer(tmp_path, max_steps=2)
    recorded = record(trainer, run)
    trainer.train()
    if is_again:
        recorded.undo()
        record(trainer, run)
    trainer.train()
    assert [(one.iteration, one.group, one.index) for one in rollouts_of(run)] == [
        (step, str(group), index) for step in range(2) for group in range(4) for index in range(2)
    ]


def spoil(completions, prompts, answer, **columns):
    """A reward function that changes what it gets."""
    for prompt, completion in zip(prompts, completions, strict=True):
        prompt.append({"role": "user", "content": "changed"})
        completion[0]["content"] = "changed"
    for ids in columns["completion_ids"]:
        ids.clear()
    answer.clear()
    return [1.0] * len(completions)


@pytest.mark.parametrize("has_hooks", [True, False])
def test_a_reward_function_that_changes_what_it_gets(tmp_path, run, has_hooks):
    """What was generated is recorded."""
    args = GRPOConfig(num_generations=2, use_cpu=True, output_dir=str(tmp_path))
    rewards = [spoil] if has_hooks else record_rewards(spoil, run, args)
    trainer = make_trainer(tmp_path, rewards=rewards, max_steps=1)
    if has_hooks:
        record(trainer, run)
    trainer.train()
    [seen] = trainer.seen
    for number, one in enumerate(rollouts_of(run)):
        prompt, response = one.conversation
        assert prompt.content == f"What is {one.task_data['answer'] - 3} + 3?"
        assert response.content == seen["generated"][3][number][0]["content"] != "changed"
        if has_hooks:
            assert tokens_of(one)[1] == seen["generated"][1][number]


def test_a_generation_that_fails(tmp_path, run):
    """The prompt is recorded, with the error of the policy; after an interrupt, as cancelled."""
    for error, status in ((RuntimeError("out of memory"), Status.ERROR), (KeyboardInterrupt(), Status.CANCELLED)):
        trainer = make_trainer(tmp_path)

        def generate(*args, error=error, **kwargs):
            raise error

        trainer.model.generate = generate
        record(trainer, run, env=status.value)
        with pytest.raises(type(error)):
            trainer.train()
        found = [one for one in rollouts_of(run) if one.env == status.value]
        assert [(one.status, len(one.steps)) for one in found] == [(status, 0)] * 4
        assert all("What is" in one.pending_messages[-1].content for one in found)
    failed = [one for one in rollouts_of(run) if one.status is Status.ERROR]
    assert {(one.error.layer, one.error.message) for one in failed} == {(Layer.POLICY, "out of memory")}


def test_a_trainer_that_fails_between_generation_and_rewards(tmp_path, run, monkeypatch):
    """The completions are recorded, with an error that is neither the policy's nor a grader's."""

    def broken(self, *args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(SpiedGRPO, "_get_per_token_logps_and_entropies", broken)
    trainer = make_trainer(tmp_path, num_iterations=2)
    record(trainer, run)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert [(len(one.steps), one.error.layer) for one in rollouts_of(run)] == [(1, Layer.CALLER)] * 4


@pytest.mark.parametrize("kind", [SpiedGRPO, SpiedRLOO])
@pytest.mark.warns("evaluation_task_in_training")
def test_evaluations_are_splits(tmp_path, run, kind):
    """Each evaluation set is a split of its own, with its own groups, at the step at which it was played."""
    evaluation = {"easy": sums(3), "hard": sums(2)}
    trainer = make_trainer(
        tmp_path, kind, evaluation=evaluation, eval_strategy="steps", eval_steps=2, max_steps=2,
        per_device_eval_batch_size=6, num_generations_eval=3,
    )  # fmt: skip
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    places = [(one.split, one.iteration, one.group, one.index) for one in rollouts]
    assert places == [
        *[("eval_easy", 2, str(group), index) for group in range(3) for index in range(3)],
        *[("eval_hard", 2, str(group), index) for group in range(2) for index in range(3)],
        *[("train", step, str(group), index) for step in range(2) for group in range(2) for index in range(2)],
    ]
    for one in rollouts:
        assert {each.name for each in one.scores} == {"advantage", "trainer_logprobs"}
    trainer.evaluate(evaluation["hard"])
    assert len([one for one in rollouts_of(run) if one.split == "eval"]) == 6


@pytest.mark.parametrize("kind", [SpiedGRPO, SpiedRLOO])
def test_generations_that_are_reused(tmp_path, run, kind):
    """A generation that several steps learn from is recorded once, with the log-probabilities of before the first."""
    tools = {"tools": [add]} if kind is SpiedGRPO else {}
    trainer = make_trainer(tmp_path, kind, num_iterations=2, steps_per_generation=2, max_steps=8, **tools)
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert len(trainer.seen) == 2
    assert [one.iteration for one in rollouts] == [0] * 8 + [4] * 8
    assert_equal(rollouts, trainer)
    for seen in trainer.seen:
        before = seen["output"].get("old_per_token_logps", seen["logps"][0][1])
        assert (seen["logps"][0][1] == before).all()


def test_several_generations_in_one_step(tmp_path, run):
    """The groups of an iteration are numbered on, and their rollouts do not collide."""
    trainer = make_trainer(
        tmp_path, gradient_accumulation_steps=3, steps_per_generation=1, max_steps=2, dataset=sums(12)
    )
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert [(one.iteration, int(one.group)) for one in rollouts if not one.index] == [
        (step, group) for step in range(2) for group in range(6)
    ]
    assert_equal(rollouts, trainer)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_rloo(tmp_path, run, beta):
    """An `RLOOTrainer` is recorded in the same way; its reward is that before the penalty of the reference model."""
    trainer = make_trainer(tmp_path, SpiedRLOO, reward_weights=[1.0, 0.25], beta=beta)
    recorded = record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert recorded.failed == 0
    assert len(rollouts) == 12
    assert_equal(rollouts, trainer)
    assert [score(one, "advantage").data for one in rollouts] == [{"after_penalty": True} if beta else {}] * 12
    assert {one.policy for one in rollouts} == {str(tmp_path / "model")}


def test_prompts_that_are_texts(tmp_path, run):
    """A prompt without messages is recorded as a user's, and its completion as an assistant's."""
    dataset = tiny_trl.datasets.Dataset.from_list(
        [{"prompt": f"{n} + 3 =", "answer": n + 3, "id": f"sum-{n}"} for n in range(8)]
    )
    trainer = make_trainer(tmp_path, dataset=dataset, max_steps=1)
    record(trainer, run, env="sums")
    trainer.train()
    for number, rollout in enumerate(rollouts_of(run)):
        [seen] = trainer.seen
        assert [(one.role, one.content) for one in rollout.conversation] == [
            ("user", seen["prompts"][number]), ("assistant", seen["generated"][3][number])
        ]  # fmt: skip
        assert rollout.env == "sums"
        assert rollout.task == f"sum-{rollout.task_data['answer'] - 3}"


def test_a_rollout_function(tmp_path, run):
    """The sampler's log-probabilities stand beside the trainer's, and what an environment wrote is marked."""

    def rollout(prompts, trainer):
        ids = [TOKENIZER.apply_chat_template(each, return_dict=False, add_generation_prompt=True) for each in prompts]
        written = [[10 + n, 11, 12, 13, TOKENIZER.eos_token_id] for n in range(len(prompts))]
        logprobs = [[-0.5 - n, -1.0, 0.0, None, -2.0] for n in range(len(prompts))]
        return {
            "prompt_ids": ids, "completion_ids": written, "logprobs": logprobs,
            "env_mask": [[1, 1, 0, 0, 1]] * len(ids), "board": [f"board {n}" for n in range(len(ids))],
        }  # fmt: skip

    def board_seen(completions, board, **columns):
        return [float(text.endswith("1")) for text in board]

    trainer = make_trainer(tmp_path, rewards=[board_seen], rollout_func=rollout, max_steps=1)
    recorded = record(trainer, run)
    trainer.train()
    assert recorded.failed == 0
    for number, one in enumerate(rollouts_of(run)):
        [step] = one.steps
        assert step.tokens.response == (10 + number, 11, 12, 13, TOKENIZER.eos_token_id)
        assert step.tokens.logprobs[:3] == (-0.5 - number, -1.0, 0.0)
        assert math.isnan(step.tokens.logprobs[3])
        assert step.extra == {"env_tokens": [[2, 4]], "board": f"board {number}"}
        assert one.reward == float(number == 1)
        [numbers] = score(one, "trainer_logprobs").data["tokens"]
        assert len(numbers) == 5


class Counter:
    """An environment of TRL with a tool and a reward of its own."""

    def reset(self, **row):
        self.count = 0
        self._secret = "hidden"
        return f" Count from {row['answer']}."

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: One number.
            b: The other.

        """
        self.count += 1
        return a + b

    def get_reward(self):
        return float(self.count)


def test_environments_of_trl(tmp_path, run):
    """The prompt has what `reset` returned, the state is that of the end, and `get_reward` is a reward."""
    trainer = make_trainer(tmp_path, rewards=[length], environment_factory=Counter)
    record(trainer, run)
    trainer.train()
    rollouts = rollouts_of(run)
    assert_equal(rollouts, trainer, names=("length", "Counter"))
    for one in rollouts:
        assert one.env == "Counter"
        assert f"Count from {one.task_data['answer']}." in one.steps[0].trace.prompt[-1].content
        assert one.steps[-1].env_state == {"count": one.grade.reward_data["Counter"]}
        assert [tool.name for tool in one.tools[0]] == ["add"]
    assert any(one.steps[-1].env_state["count"] for one in rollouts)


def test_an_environment_that_fails(tmp_path, run):
    """What its `reset` raises is the error of the environment."""

    class Broken(Counter):
        def reset(self, **row):
            raise OSError("no board")

    trainer = make_trainer(
        tmp_path, environment_factory={"broken": Broken}, dataset=sums().add_column("environment", ["broken"] * 8)
    )
    record(trainer, run)
    with pytest.raises(OSError, match="no board"):
        trainer.train()
    assert {(one.env, one.error.layer, one.error.message) for one in rollouts_of(run)} == {
        ("broken", Layer.ENV, "no board")
    }


def test_without_tokens(tmp_path):
    """A run without tokens has their number, and no numbers per token."""
    with rolltrace.create_run(tmp_path / "run") as run:
        trainer = make_trainer(tmp_path, tools=[add], max_steps=1)
        record(trainer, run)
        trainer.train()
        for number, one in enumerate(rollouts_of(run)):
            assert [each.name for each in one.scores] == ["advantage"]
            assert all(step.tokens is None for step in one.steps)
            sampled = sum(step.usage.completion_tokens for step in one.steps)
            assert sampled == sum(trainer.seen[0]["generated"][2][number])


def test_undo_restores_the_trainer(tmp_path, run):
    """After `undo` the instance is as before, also where a method was replaced before, and nothing is recorded."""
    trainer = make_trainer(tmp_path, max_steps=1)

    def own(prompts, original=trainer._generate):
        return original(prompts)

    trainer._generate = own
    before = dict(vars(trainer))
    recorded = record(trainer, run)
    assert vars(trainer).keys() - before.keys() == set(bridge.HOOKS) - {"_generate"}
    recorded.undo()
    assert vars(trainer).keys() == before.keys()
    assert all(vars(trainer)[name] is value for name, value in before.items())
    trainer.train()
    assert rollouts_of(run) == []


def test_undo_leaves_what_others_replaced_since(tmp_path, run):
    """A method that was wrapped again stays wrapped, and the recording inside of it does nothing."""
    trainer = make_trainer(tmp_path, max_steps=1)
    recorded = record(trainer, run)
    inner = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = outer = lambda inputs: inner(inputs)
    recorded.undo()
    assert trainer._generate_and_score_completions is outer
    trainer.train()
    assert len(trainer.seen) == 1
    assert rollouts_of(run) == []


def test_recording_never_raises_into_training(tmp_path, run, caplog, monkeypatch):
    """Whatever fails in recording is counted and logged once, and the training is the same."""
    losses = []
    for breaks in (False, True):
        trainer = make_trainer(tmp_path, tools=[add])
        recorded = record(trainer, run)
        if breaks:
            monkeypatch.setattr(type(run), "rollout", lambda self, **fields: 1 / 0)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]
    assert recorded.failed == 12
    [warning] = [each for each in caplog.records if each.name == "rolltrace" and each.levelno == logging.WARNING]
    assert "ZeroDivisionError" in warning.getMessage()
    assert "RecordedTrainer.failed" in warning.getMessage()


def test_the_training_is_the_same_with_and_without(tmp_path, run):
    """Recording changes neither what is sampled nor what is learned."""
    histories = []
    for is_recorded in (False, True):
        trainer = make_trainer(tmp_path, tools=[add], num_iterations=2)
        if is_recorded:
            record(trainer, run)
        trainer.train()
        histories.append(
            [
                {k: v for k, v in entry.items() if "time" not in k and "second" not in k}
                for entry in trainer.state.log_history
            ]
        )
    assert histories[0] == histories[1]


def test_wrong_arguments_raise_at_once(tmp_path, run):
    """What cannot be recorded is refused in a sentence."""
    trainer = make_trainer(tmp_path)
    with pytest.raises(InputError, match="Expected a GRPOTrainer or an RLOOTrainer of TRL, got"):
        record(5, run)
    with pytest.raises(InputError, match="Expected a run that is being written"):
        record(trainer, "runs/mine")
    record(trainer, run)
    with pytest.raises(InputError, match="not recorded yet"):
        record(trainer, run)


def test_a_version_without_the_hooks_is_refused(run):
    """A trainer that lacks a method that recording replaces is refused, with its name and the other way."""
    future = type("GRPOTrainer", (), {name: lambda self: None for name in bridge.HOOKS if name != "_generate"})
    with pytest.raises(
        InputError, match=r"Expected a trainer of TRL 1\.16, got one without _generate: .* record_rewards"
    ):
        record(future(), run)


@pytest.mark.parametrize("kind", [GRPOTrainer, RLOOTrainer])
def test_the_private_methods_are_those_of_the_version(kind):
    """The methods that recording replaces have the signatures that it relies on; if this fails, TRL has changed."""
    assert version("trl").startswith(bridge.VERSIONS)
    parameters = {
        name: [each for each in inspect.signature(getattr(kind, name)).parameters if each != "self"]
        for name in bridge.HOOKS
    }
    assert parameters["_generate_and_score_completions"] == ["inputs"]
    assert parameters["_generate"] == ["prompts"]
    assert parameters["_calculate_rewards"] == ["inputs", "prompts", "completions", "completion_ids_list"]
    assert parameters["_compute_loss"] == ["model", "inputs"]
    assert parameters["_get_per_token_logps_and_entropies"][:2] == ["model", "input_ids"]
    assert "metric_key_prefix" in parameters["evaluation_loop"]
    returned = re.findall(r"return (.*)", inspect.getsource(kind._generate))[-1].split(", ")
    names = ["prompt_ids", "completion_ids", "tool_mask", "completions", "logprobs", "extra_fields"]
    assert returned[:6] == (names if kind is GRPOTrainer else ["prompt_ids", "completion_ids", "completions"])


TWO_PROCESSES = """
import os
import sys
from pathlib import Path
import torch
from accelerate import PartialState
import rolltrace
import test_trl
from rolltrace.bridges.trl import record

folder = Path(sys.argv[1])
trainer = test_trl.make_trainer(
    folder / os.environ["RANK"], tools=[test_trl.add], evaluation=test_trl.sums(4), eval_strategy="steps",
    eval_steps=2, max_steps=2, num_generations=4, per_device_train_batch_size=2,
    per_device_eval_batch_size=4,
)
state = PartialState()
assert state.num_processes == 2
with state.main_process_first():
    run = rolltrace.create_run(folder / "run", join=not state.is_main_process, trace=rolltrace.Recording(tokens=True))
recorded = record(trainer, run)
trainer.train()
assert recorded.failed == 0
run.close()
torch.save([
    {"ids": seen["generated"][1], "rewards": seen["rewards"], "advantages": seen["advantages"]} for seen in trainer.seen
], folder / f"seen-{state.process_index}")
torch.distributed.destroy_process_group()
"""


@pytest.mark.warns("evaluation_task_in_training")
def test_two_processes(tmp_path):
    """The rollouts of two processes make up whole groups, each with the numbers of its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent)]),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-c", TWO_PROCESSES, str(tmp_path)]
    ranks = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    seen = [tiny_trl.torch.load(tmp_path / f"seen-{rank}") for rank in range(2)]
    opened = rolltrace.open_run(tmp_path / "run")
    by_place = {(one.split, one.iteration, int(one.group), one.index): one for one in opened.rollouts()}
    training = {(step, 0, index) for step in range(2) for index in range(4)}
    assert {place[1:] for place in by_place if place[0] == "train"} == training
    evaluation = {(2, group, index) for group in range(4) for index in range(4)}
    assert {place[1:] for place in by_place if place[0] == "eval"} == evaluation
    batches = [("train", 0, 0, 2), ("train", 1, 0, 2), ("eval", 2, 0, 4), ("eval", 2, 2, 4)]
    for number, (split, step, first_group, rows) in enumerate(batches):
        for rank in range(2):
            for row in range(rows):
                group, index = divmod(rank * rows + row, 4)
                one = by_place[split, step, first_group + group, index]
                batch = seen[rank][number]
                assert tokens_of(one)[1] == batch["ids"][row][: len(tokens_of(one)[1])]
                assert list(one.grade.reward_data.values()) == batch["rewards"][rank * rows + row].tolist()
                assert score(one, "advantage").value == batch["advantages"][row].item()
    assert list(opened.sql("select count(*) from rollouts where collides")) == [(0,)]
    assert list(opened.sql("select count(distinct session) from rollouts")) == [(2,)]


async def judged(completions, **columns):
    return [None if number % 2 else 0.25 for number in range(len(completions))]


class Polite:
    """A reward function that is an object."""

    def __call__(self, completions, **columns):
        return [1.0] * len(completions)


def test_recording_by_reward_functions_alone(tmp_path, run):
    """Wrapped reward functions record prompts, turns, columns, their values and weights; the rest is not visible."""
    args = GRPOConfig(num_generations=2, reward_weights=[1.0, 0.25, 2.0], use_cpu=True, output_dir=str(tmp_path))
    rewards = record_rewards([judged, length, Polite()], run, args)
    trainer = make_trainer(tmp_path, rewards=rewards, tools=[add], reward_weights=[1.0, 0.25, 2.0])
    assert trainer.reward_func_names == ["judged", "length", "Polite"]
    trainer.train()
    rollouts = rollouts_of(run)
    assert rewards.failed == 0
    assert len(rollouts) == 12
    for position, one in enumerate(rollouts):
        seen, number = trainer.seen[position // 4], position % 4
        completion = seen["generated"][3][number]
        assert plain(one.conversation) == plain([*seen["prompts"][number], *completion])
        values = {"judged": 0.25, "length": length([completion])[0], "Polite": 1.0}
        weights = {"judged": 1.0, "length": 0.25, "Polite": 2.0}
        if number % 2:
            del values["judged"], weights["judged"]
        assert (one.grade.reward_data, one.grade.reward_weights) == (values, weights)
        assert one.reward == pytest.approx(sum(values[name] * weights[name] for name in values))
        assert (one.scores, one.steps[0].tokens) == ((), None)
    assert max(len(one.steps) for one in rollouts) >= 3


def test_evaluation_and_failure_by_reward_functions_alone(tmp_path, run):
    """Rows with a column `split` are that split; if a function raises, what the others returned is recorded."""

    def broken(completions, **columns):
        if "split" not in columns:
            raise ZeroDivisionError("no reward today")
        return [1.0] * len(completions)

    evaluation = sums(2).add_column("split", ["test"] * 2)
    args = GRPOConfig(num_generations=2, num_generations_eval=4, use_cpu=True, output_dir=str(tmp_path))
    trainer = make_trainer(
        tmp_path, rewards=record_rewards([length, broken], run, args, env="sums"), evaluation=evaluation,
        num_generations_eval=4, per_device_eval_batch_size=4,
    )  # fmt: skip
    trainer.evaluate()
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    rollouts = rollouts_of(run)
    assert [(one.split, one.group, one.index) for one in rollouts if one.split != "train"] == [
        ("test", str(group), index) for group in range(2) for index in range(4)
    ]
    failed = [one for one in rollouts if one.split == "train"]
    assert {(one.env, one.error.layer, tuple(one.grade.reward_data)) for one in failed} == {
        ("sums", Layer.GRADER, ("length",))
    }
    assert len(failed) == 4


async def fails_at_once(completions, **columns):
    raise ZeroDivisionError("first")


async def fails_later(completions, **columns):
    await asyncio.sleep(0)
    raise ZeroDivisionError("second")


def test_functions_that_go_on_after_another_has_failed(tmp_path, run):
    """A batch is recorded once, with the first error."""
    args = GRPOConfig(num_generations=2, use_cpu=True, output_dir=str(tmp_path))
    rewards = record_rewards([fails_at_once, fails_later], run, args)
    batch = {"prompts": ["p"], "completions": ["c"], "trainer_state": TrainerState()}

    async def score():
        return await asyncio.gather(*[function(**batch) for function in rewards], return_exceptions=True)

    assert len(asyncio.run(score())) == 2
    assert [one.error.message for one in rollouts_of(run)] == ["first"]


def test_functions_that_the_trainer_does_not_call(tmp_path, run):
    """If only some functions are used, a batch is recorded when the next one comes."""
    args = GRPOConfig(num_generations=2, use_cpu=True, output_dir=str(tmp_path))
    first, _ = record_rewards([length, answered], run, args)
    for text in ("a", "b"):
        first(prompts=["p"], completions=[text], trainer_state=TrainerState())
    assert [dict(one.grade.reward_data) for one in rollouts_of(run)] == [{"length": 0.001}]


def test_wrong_arguments_of_record_rewards(tmp_path, run):
    """What it cannot wrap or needs to know is refused in a sentence."""
    args = GRPOConfig(use_cpu=True, output_dir=str(tmp_path))
    with pytest.raises(InputError, match="Expected reward functions, got"):
        record_rewards(["a/model"], run, args)
    with pytest.raises(InputError, match="Expected reward functions, got"):
        record_rewards([tiny_trl.make_model(TOKENIZER)], run, args)
    with pytest.raises(InputError, match="at least one"):
        record_rewards([], run, args)
    with pytest.raises(InputError, match="Expected a run"):
        record_rewards([length], 5, args)
    with pytest.raises(InputError, match="Expected the trainer's config"):
        record_rewards([length], run, None)
    args.reward_weights = [0.5, 1.0]
    with pytest.raises(InputError, match="a reward weight for each of the 1 functions, got 2 in args"):
        record_rewards([length], run, args)


def test_a_reward_function_that_returns_too_few(tmp_path, run):
    """TRL's own error is raised, and recording does not add one."""

    def short(completions, **columns):
        return [1.0]

    args = GRPOConfig(num_generations=2, use_cpu=True, output_dir=str(tmp_path))
    rewards = record_rewards(short, run, args)
    with pytest.raises(ValueError, match="returned 1 rewards, but 4 were expected"):
        make_trainer(tmp_path, rewards=rewards).train()
    assert rewards.failed == 1


def test_the_guide_runs(tmp_path):
    """The blocks of the guide are one program, which records three trainings of a tiny model of that name."""
    TOKENIZER.save_pretrained(tmp_path / "Qwen" / "Qwen3-0.6B")
    tiny_trl.make_model(TOKENIZER).save_pretrained(tmp_path / "Qwen" / "Qwen3-0.6B")
    guide = (ROOT / "docs" / "guides" / "trl.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    for shown, tested in (
        ('"out", num', '"out", use_cpu=True, num'),
        ("length=64", "length=8"),
        ("length=512", "length=8"),
    ):
        assert shown in code
        code = code.replace(shown, tested)
    command = [sys.executable, "-W", "ignore", "-c", code]
    ran = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    rows = [line for line in ran.stdout.splitlines() if line.startswith("(")]
    assert [row.rpartition(",")[0] for row in rows] == ["(0, 8", "(1, 8", "(2, 8"]
    for name in ("grpo", "many"):
        opened = rolltrace.open_run(tmp_path / "runs" / name)
        weights = {tuple(one.grade.reward_weights.values()) for one in opened.rollouts()}
        assert weights == {(1.0, 0.25)}
        assert list(opened.sql("select count(*) from rollouts")) == [(24,)]
    played = rolltrace.open_run(tmp_path / "runs" / "calculator")
    assert {(one.env, len(one.scores)) for one in played.rollouts()} == {("calculator", 2)}
