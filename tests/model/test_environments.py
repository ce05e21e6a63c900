"""Environments played with the embedded model, on disk, with the sampled tokens."""

from itertools import accumulate, pairwise

import pytest

from embedded import embedded_model
from rolltrace.envs.calculator import calculator_tool
from rolltrace.envs.registry import load_env
from rolltrace.envs.tasks import iterate_groups
from rolltrace.envs.tool_env import ToolEnv
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import Layer, Status, Termination
from stage import Stage, recorded

pytestmark = pytest.mark.core

NAME = "local:SmolLM2-135M-Instruct"
SAMPLING = Sampling(temperature=0.7, max_tokens=12)
LIMITS = Limits(max_turns=2, continue_after_truncation=True)
PATIENT = {"seconds": 600.0, "tries": 1}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "%s"}}\n</tool_call>'
RUBRIC = b'{"id": "trees", "prompt": "Name three trees.", "criteria": [{"text": "Has three.", "name": "trees"}]}\n'


async def play_env(path, model, env, args=None, *, episodes=2, **settings):
    """Plays one group of an environment and returns what is on disk."""
    builders = iterate_groups(load_env(env, args or {}), iteration=0, groups=1, episodes=episodes, seed=3)
    return await play_builders(path, model, list(builders), **settings)


async def play_builders(path, model, builders, **settings):
    """Plays with the embedded model in every role without another policy; returns what is on disk."""
    settings = {"limits": LIMITS, "sampling": SAMPLING, **settings}
    with create_run(path, trace=Recording(tokens=True)) as run:
        runner = Runner(model, sink=run, concurrency=4, seed=3, **settings)
        groups = [group async for group in runner.play(builders, iteration=0)]
    assert len(groups) == 1
    rollouts = recorded(path)
    assert all(rollout.policy == NAME for rollout in rollouts)
    return rollouts


async def assert_tokens(rollouts, tokenizer):
    """Asserts that each step has the prompt's and the sampled ids, which decode to the recorded texts."""
    assert rollouts
    for rollout in rollouts:
        assert rollout.steps
        whole = ()
        for step in rollout.steps:
            tokens = step.tokens
            assert tokens is not None
            whole = (*whole[: tokens.shared_prefix], *tokens.prompt)
            assert (len(whole), len(tokens.response)) == (step.usage.prompt_tokens, step.usage.completion_tokens)
            tools = () if step.tools is None else rollout.tools[step.tools]
            assert await tokenizer.text(whole) == await tokenizer.prompt(step.trace.prompt, tools)
            written = await tokenizer.text(await tokenizer.without_special(tokens.response))
            assert written == (step.trace.policy_response.content if step.raw is None else step.raw)
            if tokens.logprobs is None:  # llama.cpp gives none for parts of a character
                assert not written.isascii()
                assert tokens.char_lengths is None
            else:
                await assert_char_lengths(tokens, written, tokenizer)
                assert len(tokens.logprobs) == len(tokens.response)
                assert all(logprob <= 0.0 for logprob in tokens.logprobs)
                assert any(tokens.logprobs)
            whole += tokens.response


async def assert_char_lengths(tokens, written, tokenizer):
    """Asserts that the char_lengths split the step's text into its tokens' texts; a special token has none."""
    ends = [0, *accumulate(tokens.char_lengths)]
    slices = [written[start:end] for start, end in pairwise(ends)]
    visible = await tokenizer.without_special(tokens.response)
    assert slices == [await tokenizer.text([token]) if token in visible else "" for token in tokens.response]


def assert_calls(calls, role, policy=NAME):
    """Asserts that each call of another role has its policy, prompt and reply."""
    assert calls
    for call in calls:
        assert (call.role, call.policy) == (role, policy)
        assert call.prompt
        assert call.error is None
        assert call.reply is not None
        assert call.usage.completion_tokens > 0


async def test_arithmetic(tmp_path, model, tokenizer):
    """A problem is answered and scored, differently by each member of the group."""
    rollouts = await play_env(tmp_path / "run", model, "arithmetic")
    await assert_tokens(rollouts, tokenizer)
    assert [rollout.status for rollout in rollouts] == [Status.OK, Status.OK]
    assert all("correct" in rollout.steps[0].trace.reward_data for rollout in rollouts)
    assert len({rollout.steps[0].tokens.response for rollout in rollouts}) == 2


async def test_calculator(tmp_path, model, tokenizer):
    """The model's prompt lists the tools."""
    rollouts = await play_env(tmp_path / "run", model, "calculator")
    await assert_tokens(rollouts, tokenizer)
    for rollout in rollouts:
        assert rollout.status == Status.OK
        assert '"name": "calculator"' in await tokenizer.text(rollout.steps[0].tokens.prompt)


async def test_a_tool_call(tmp_path, model, tokenizer):
    """A call that the model wrote is run; its text is that of the tokens, and the next prompt continues it."""
    messages = []
    for expression in ("1 + 1", "5 + 2", "3 + 4"):  # a model this small needs examples to call a tool
        messages.append(Message("user", f"Repeat exactly:\n{CALL % expression}"))
        messages.append(Message("assistant", CALL % expression))
    stage = Stage(lambda number: ToolEnv(messages[:-1], [calculator_tool()], max_turns=2))
    greedy = Sampling(temperature=0.0, max_tokens=48)
    [rollout] = await play_builders(tmp_path / "run", model, [stage], sampling=greedy)
    await assert_tokens([rollout], tokenizer)
    first, second = rollout.steps
    assert (first.termination, first.raw) == (Termination.TOOL_CALLS, CALL % "3 + 4")
    [call] = first.trace.policy_response.tool_calls
    assert (call.name, call.arguments) == ("calculator", '{"expression": "3 + 4"}')
    assert second.trace.prompt[-1] == Message("tool", "7", tool_call_id=call.id, name="calculator")
    assert second.tokens.shared_prefix >= len(first.tokens.prompt) + len(first.tokens.response)


async def test_rubric(tmp_path, model, tokenizer):
    """The model grades itself; its replies are recorded, and an unreadable score is a failure of the grader."""
    (tmp_path / "trees.jsonl").write_bytes(RUBRIC)
    args = {**PATIENT, "data": str(tmp_path / "trees.jsonl"), "max_tokens": 12}
    rollouts = await play_env(tmp_path / "run", model, "rubric", args)
    await assert_tokens(rollouts, tokenizer)
    for rollout in rollouts:
        assert_calls(rollout.calls, "grader")
        if rollout.error is None:
            assert rollout.reward == rollout.steps[0].reward + rollout.grade.reward
        else:
            assert (rollout.status, rollout.error.layer, rollout.reward) == (Status.ERROR, Layer.GRADER, None)


async def test_rubric_with_a_grammar(tmp_path, model, tokenizer):
    """With a grammar the model gives readable scores, and its role has a policy name of its own."""
    grader = embedded_model(name="strict", extra={"grammar": 'root ::= "Score: 0." [0-9]'})
    (tmp_path / "trees.jsonl").write_bytes(RUBRIC)
    args = {**PATIENT, "data": str(tmp_path / "trees.jsonl")}
    rollouts = await play_env(tmp_path / "run", model, "rubric", args, roles={"grader": grader})
    await grader.close()
    await assert_tokens(rollouts, tokenizer)
    for rollout in rollouts:
        assert_calls(rollout.calls, "grader", "strict")
        assert rollout.status == Status.OK
        score = float(rollout.calls[0].reply.content.removeprefix("Score: "))
        assert rollout.grade.reward_data["trees"] == score
        assert rollout.reward == rollout.steps[0].reward + rollout.grade.reward


async def test_preference(tmp_path, model, tokenizer):
    """The model judges its own answers; each has a reward, or a null score that says why."""
    args = {**PATIENT, "max_tokens": 12, "pattern": "one_way"}
    rollouts = await play_env(tmp_path / "run", model, "preference", args)
    await assert_tokens(rollouts, tokenizer)
    scores = list(RunReader(tmp_path / "run").scores())
    [graded] = [score for score in scores if score.name == "group_grade"]
    assert_calls(graded.calls, "grader")
    rewards = {score.rollout: score for score in scores if score.name == "reward"}
    assert set(rewards) == {rollout.id for rollout in rollouts}
    for score in rewards.values():
        assert (score.value is None) == (score.error is not None)
        assert score.error is None or score.error.layer == Layer.GRADER


async def test_preference_with_a_grammar(tmp_path, model, tokenizer):
    """With a grammar the model prefers one of two, and their rewards are opposite."""
    judge = embedded_model(name="strict", extra={"grammar": 'root ::= "Preference: " [AB]'})
    args = {**PATIENT, "pattern": "one_way", "format_coef": 0.0}
    rollouts = await play_env(tmp_path / "run", model, "preference", args, roles={"grader": judge})
    await judge.close()
    await assert_tokens(rollouts, tokenizer)
    scores = list(RunReader(tmp_path / "run").scores())
    assert_calls([call for score in scores for call in score.calls], "grader", "strict")
    assert sorted(score.value for score in scores if score.name == "reward") == [-1.0, 1.0]


async def test_guess_number(tmp_path, model, tokenizer):
    """The second prompt holds the first answer, whose ids are not stored again."""
    rollouts = await play_env(tmp_path / "run", model, "guess_number")
    await assert_tokens(rollouts, tokenizer)
    for rollout in rollouts:
        assert rollout.status == Status.OK
        for before, after in pairwise(rollout.steps):
            assert before.trace.policy_response in after.trace.prompt
            assert after.tokens.shared_prefix >= len(before.tokens.prompt)


async def test_twenty_questions(tmp_path, model, tokenizer):
    """The model is asked as the answerer too, in its own conversation."""
    asking = embedded_model(extra={"grammar": 'root ::= "Is it " [a-z]+ "?"'})
    rollouts = await play_env(tmp_path / "run", asking, "twenty_questions", PATIENT, roles={"answerer": model})
    await asking.close()
    await assert_tokens(rollouts, tokenizer)
    calls = [call for rollout in rollouts for call in rollout.calls]
    assert_calls(calls, "answerer")


async def test_textarena(tmp_path, model, tokenizer):
    """A game between two seats of the model is played to its end, each with its own record."""
    pytest.importorskip("textarena")
    player = embedded_model(extra={"grammar": 'root ::= "[" [0-2] " " [3-5] "]"'})
    limits = Limits(max_turns=9)
    rollouts = await play_env(tmp_path / "run", player, "textarena:Nim-v0", episodes=1, limits=limits)
    await player.close()
    await assert_tokens(rollouts, tokenizer)
    assert [rollout.seat for rollout in rollouts] == [0, 1]
    assert [rollout.status for rollout in rollouts] == [Status.OK, Status.OK]
    assert {rollout.stop_reason for rollout in rollouts} == {"completed"}
