"""The limits themselves: invalid values, their documentation, and what they require of an env."""

import re
from pathlib import Path

import pytest

from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.envs.message_env import MessageEnv, MessageEnvAdapter, MessageStepResult
from rolltrace.errors import InputError
from rolltrace.jobs.play import play as play_env
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.strategies import FailFast, KeepViable, parse_strategy
from rolltrace.trace.stop_reasons import StopReason
from stage import BROKEN_CALL, Meddling, Remembering, Stage, called, play, recorded, said

DOCUMENT = Path(__file__).parents[2] / "docs" / "rewards.md"


def documented() -> dict[str, str]:
    """The defaults in the document's table."""
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_the_document_names_every_default_that_changes_a_reward():
    """docs/rewards.md has a row for each field of `Limits` that changes a reward, with its default."""
    fields = {name: str(getattr(Limits(), name)) for name in Limits.__struct_fields__ if "reward" in name}
    assert documented() == fields


def test_the_document_says_how_to_turn_each_off():
    """Each row of the table names the argument and the flag that turn the change off."""
    text = DOCUMENT.read_text()
    for name in documented():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        flag = "--" + name.replace("_", "-")
        assert name == "zero_reward_on_limit" or (f"`{name}=" in row and f"`{flag} " in row)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_turns": -1}, {"max_total_tokens": -1}, {"max_sampled_tokens": 1.5}, {"context_length": "8"},
        {"timeout": 0}, {"timeout": float("nan")}, {"close_timeout": -1}, {"generation_reserve": -1},
        {"max_parse_retries": -1}, {"truncation_reward": float("nan")}, {"malformed_reward": "low"},
        {"overflow_reward": float("inf")}, {"truncation_reward": None}, {"zero_reward_on_limit": 1},
    ],
)  # fmt: skip
def test_limits_refuse_what_makes_no_sense(fields):
    """A limit is not negative, a reward is finite, and the error names the field."""
    with pytest.raises(InputError, match=f"Expected {next(iter(fields))}"):
        Limits(**fields)


def test_strategies_are_named_in_text():
    """A strategy is named in text, with a fraction if it takes one."""
    assert parse_strategy("fail-fast") == FailFast()
    assert parse_strategy("keep-viable") == KeepViable()
    assert parse_strategy("keep-viable:0.75") == KeepViable(0.75)
    for wrong in ("retry", "fail-fast:1", "keep-viable:most", "keep-viable:2", ""):
        with pytest.raises(InputError, match=r"fail-fast|fraction"):
            parse_strategy(wrong)


async def test_an_overflow_can_keep_the_envs_reward(tmp_path):
    """With `overflow_reward=None` an overflow ends the rollout and changes no reward."""
    policy = Remembering(said("x"), context_length=60, tokens=lambda request: 8 * len(request.messages))
    for reward in (-0.5, None):
        limits = Limits(overflow_reward=reward, generation_reserve=1)
        path = tmp_path / str(reward)
        await play(path, Stage(lambda _: Meddling(turns=40)), policy, limits=limits)
        [rollout] = recorded(path)
        assert rollout.stop_reason == StopReason.CONTEXT_OVERFLOW
        last = rollout.steps[-1]
        assert last.reward == (last.env_reward if reward is None else reward)


class Deaf(Env):
    """A conversation without `observe`."""

    async def initial_observation(self):
        return Observation([{"role": "user", "content": "Go."}])

    async def step(self, completion):
        return StepResult(1.0, done=True)


class DeafTalk(MessageEnv):
    """The same, in chat dicts."""

    async def initial_observation(self):
        return [{"role": "user", "content": "Go."}]

    async def step(self, message):
        return MessageStepResult(1.0, True, [])


@pytest.mark.parametrize("make", [Deaf, lambda: MessageEnvAdapter(DeafTalk())])
async def test_parse_retries_need_an_env_that_takes_a_correction(tmp_path, make):
    """`max_parse_retries` with an env without `observe` is refused by name, before the policy is asked."""
    policy = Remembering(called(BROKEN_CALL))
    stage = Stage(lambda _: make(), episodes=2)
    with pytest.raises(InputError, match=r"max_parse_retries=2.*Deaf.*`observe`"):
        await play(tmp_path / "run", stage, policy, limits=Limits(max_parse_retries=2))
    assert policy.sent == {}
    assert stage.cleaned == 1
    assert all(rollout.steps == () for rollout in recorded(tmp_path / "run"))


async def test_an_env_that_declines_a_correction_is_noted(tmp_path):
    """If `observe` returns None for a correction, the rollout ends with the parse error and a note says why."""
    policy = Remembering(called(BROKEN_CALL))
    stage = Stage(lambda _: Meddling(observes=False))
    await play(tmp_path / "run", stage, policy, limits=Limits(max_parse_retries=2))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.stop_reason, rollout.reward) == (StopReason.PARSE_ERROR, -0.1)
    assert any("max_parse_retries=2" in note.message and "observe" in note.message for note in rollout.notes)


def test_a_play_refused_for_its_parse_retries_leaves_no_run(tmp_path):
    """A refused play creates no run, so that the corrected command can use the same path."""
    with pytest.raises(InputError, match="max_parse_retries=1"):
        play_env("arithmetic", "scripted:noisy", out=tmp_path / "run", limits=Limits(max_parse_retries=1))
    assert not (tmp_path / "run").exists()
    play_env("calculator", "scripted:noisy", out=tmp_path / "run", limits=Limits(max_parse_retries=1))
