"""The built-in family `gem:NAME`."""

import contextlib
import logging
import pickle
import random

import pytest

import rolltrace
from rolltrace.envs.gem import GemTasks
from rolltrace.envs.registry import list_members, load_env
from rolltrace.errors import InputError, UnknownNameError
from rolltrace.testing.check_env import check_env
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.stop_reasons import Status
from seeded_runs import play_clean
from unexplained_findings import assert_explained

gem = pytest.importorskip("gem")

pytestmark = pytest.mark.core

NUMBER = "gem:game:GuessTheNumber-v0-easy"


async def played(spec, replies, episodes=1):
    """The rollouts of the first task, with these replies."""
    builder = load_env(spec).builder(0, episodes=episodes, seed=3)
    runner = rolltrace.Runner(ScriptedReplies(replies), sink=(sink := rolltrace.MemorySink("run")))
    async with contextlib.aclosing(runner.play([builder])) as results:
        async for _ in results:
            pass
    return builder, list(sink.rollouts)


def theirs(seed, replies):
    """GEM's own observations and rewards for these replies."""
    env = gem.make("game:GuessTheNumber-v0-easy")
    observed, _ = env.reset(seed=seed)
    seen, rewards = [observed], []
    for reply in replies:
        observed, reward, terminated, truncated, info = env.step(reply)
        rewards.append(float(reward))
        if terminated or truncated:
            return seen, [*rewards], observed
        seen.append(f"{observed}\n{info['suffix']}")
    return seen, rewards, None


async def test_observations_and_rewards_are_those_of_gem():
    """Each observation is a message, with its reminder, and each reward is that of the environment."""
    replies = [rf"I say \boxed{{{number}}}." for number in range(1, 11)]
    builder, [rollout] = await played(NUMBER, replies)
    seen, rewards, last = theirs(builder.seed, replies)
    assert [message.content for message in rollout.conversation if message.role == "user"] == [*seen, last]
    assert [step.reward for step in rollout.steps] == rewards
    assert [step.reward_data for step in rollout.steps] == [{"gem_reward": reward} for reward in rewards]
    assert (rollout.env, rollout.status, rollout.env_args["options"]) == (NUMBER, Status.OK, {})


async def test_a_seed_is_a_task():
    """Equal number and seed give the same game, whatever happens to the global random generator."""
    random.seed(1)
    before = random.getstate()
    _, first = await played(NUMBER, [r"\boxed{5}"] * 9, episodes=2)
    assert random.getstate() == before
    _, second = await played(NUMBER, [r"\boxed{5}"] * 9)
    texts = [[message.content for message in rollout.conversation] for rollout in (*first, *second)]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("name", ["game:GuessTheNumber-v0-hard", "game:Mastermind-v0-easy", "rg:leg_counting"])
def test_environments_keep_the_contract(name):
    """Games and generated tasks of GEM keep the rules of environments."""
    assert check_env(f"gem:{name}") == []


def test_options_are_those_of_the_environment():
    """Options are passed to GEM's own constructor."""
    tasks = GemTasks("game:GuessTheNumber-v0-easy", options={"max_number": 7})
    builder = pickle.loads(pickle.dumps(tasks.builder(0, episodes=1, seed=0)))
    assert builder.env_args["options"] == {"max_number": 7}


def test_what_cannot_be_played_is_refused():
    """An unknown name suggests the nearest; one that needs a download says which. Importing GEM adds no log handler."""
    with pytest.raises(UnknownNameError, match="Did you mean 'game:GuessTheNumber-v0-easy'"):
        load_env("gem:game:GuessTheNumber-v0-eas")
    with pytest.raises(InputError, match="needs the word list 'words' of nltk") as caught:
        load_env("gem:game:Wordle-v0-easy")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="failed at its start"):
        load_env("gem:math:GSM8K")
    assert NUMBER in list_members("gem")
    assert not any(type(handler) is logging.StreamHandler for handler in logging.getLogger().handlers)


def test_no_audit_finds_anything_in_a_run(tmp_path):
    """In a game that scripted guesses win now and then."""
    policy = ScriptedReplies(lambda request: rf"\boxed{{{1 + (request.seed or 0) % 10}}}")
    assert_explained(play_clean(tmp_path / "run", {NUMBER: {}}, policy))
