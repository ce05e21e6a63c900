"""Playing and recording from two names."""

import asyncio
import json
import threading

import pytest

from rolltrace.envs.registry import BUILT_IN, load_env
from rolltrace.errors import InputError, RunExistsError, UnknownNameError
from rolltrace.jobs.demo_run import demo_envs, play_demo
from rolltrace.jobs.open_policy import open_policy
from rolltrace.jobs.play import play, play_async
from rolltrace.policies.policy import Completion
from rolltrace.query.run import open_run
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.strategies import FailFast
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.trace.frozen import FrozenMap
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.stop_reasons import Status
from rolltrace.trace.strict_json import encode_json
from stage import NeverAnswers

VOLATILE = ("id", "run", "session", "started_at", "ended_at", "seconds", "crc")


def timeless(value):
    """A record without what differs from play to play, at any depth."""
    if isinstance(value, list):
        return [timeless(item) for item in value]
    if isinstance(value, dict):
        return {name: timeless(item) for name, item in value.items() if name not in VOLATILE}
    return value


def essence(path):
    """The rollouts of a run without what differs from play to play: ids, times, and the order of lines."""
    found = {}
    for segment in (path / "rollouts").iterdir():
        for fields in map(json.loads, segment.read_text().splitlines()):
            key = tuple(fields[name] for name in ("iteration", "group", "index", "attempt"))
            assert key not in found
            found[key] = timeless(fields)
    return found


@pytest.mark.parametrize("env", ["arithmetic", "calculator", "problems"])
def test_concurrency_changes_nothing(tmp_path, env):
    """The same seed gives the same rollouts at any concurrency."""
    for concurrency in (1, 3, 64):
        play(env, "scripted:noisy", out=tmp_path / str(concurrency), groups=8, concurrency=concurrency)
    one = essence(tmp_path / "1")
    assert len(one) == 32
    assert essence(tmp_path / "3") == one
    assert essence(tmp_path / "64") == one


def test_seed_changes_the_rollouts(tmp_path):
    """Another seed is another play."""
    for seed in (0, 1):
        play("arithmetic", "scripted:noisy", out=tmp_path / str(seed), groups=4, seed=seed)
    assert essence(tmp_path / "0") != essence(tmp_path / "1")


def test_summary_is_what_the_run_holds(tmp_path):
    """Counts, mean reward and ledger agree with the records."""
    seen = []
    summary = play("arithmetic", "scripted:noisy", out=tmp_path / "run", groups=3, iterations=2, on_group=seen.append)
    rollouts = list(RunReader(tmp_path / "run").rollouts())
    rewards = [rollout.reward for rollout in rollouts]
    assert summary.rollouts == len(rollouts) == 24
    assert summary.mean_reward == pytest.approx(sum(rewards) / len(rewards))
    assert summary.rewarded == 24
    assert summary.statuses == {"ok": 24}
    assert sum(summary.stop_reasons.values()) == 24
    assert len(seen) == summary.groups == 6
    assert summary.ledger.recorded == 24
    assert summary.ledger.closed
    assert summary.succeeded
    assert {rollout.iteration for rollout in rollouts} == {0, 1}


def test_config_says_how_it_was_played(tmp_path):
    """The run's config holds all that is needed to play it again."""
    play(
        "arithmetic", "scripted:noisy", out=tmp_path / "run", groups=2, group_size=3, seed=5, args={"difficulty": "2"},
        limits=Limits(max_turns=4), strategy=FailFast(), retries=2, split="test", trace="numbers",
        sampling=Sampling(other=FrozenMap.of({"best_of": 2})),
    )  # fmt: skip
    config = RunReader(tmp_path / "run").info.config
    assert (config["env"], config["policy"], config["args"]) == ("arithmetic", "scripted:noisy", {"difficulty": "2"})
    assert (config["groups"], config["group_size"], config["iterations"], config["seed"]) == (2, 3, 1, 5)
    assert config["limits"]["max_turns"] == 4
    assert config["sampling"]["other"] == {"best_of": 2}
    assert (config["strategy"], config["retries"], config["split"]) == ({"name": "FailFast"}, 2, "test")
    assert config["recording"]["level"] == "numbers"
    assert config["recording"]["redact"] is None
    with open_run(tmp_path / "run") as run:
        assert list(run.sql("select distinct split from rollouts")) == [("test",)]


def test_config_names_the_redaction(tmp_path):
    """The run's config says which function redacted the texts, and at which level was recorded."""

    def hide(value):
        return value

    play("arithmetic", "scripted:noisy", out=tmp_path / "run", trace=Recording(redact=hide, tokens=True))
    recording = RunReader(tmp_path / "run").info.config["recording"]
    assert (recording["level"], recording["tokens"], recording["fraction"]) == ("full", True, 1.0)
    assert recording["redact"].endswith("hide")


def test_objects_play_as_well_as_names(tmp_path):
    """An env and a policy that were made in Python give the same run as their names."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "names")
    play(load_env("arithmetic"), open_policy("scripted:noisy"), out=tmp_path / "objects")
    assert essence(tmp_path / "names") == essence(tmp_path / "objects")


def test_wrong_input_makes_no_run(tmp_path):
    """An unknown env, policy or argument, or a count of nothing, is refused before anything is made."""
    out = tmp_path / "run"
    with pytest.raises(UnknownNameError, match="arithmetic"):
        play("aritmetic", "scripted:noisy", out=out)
    with pytest.raises(UnknownNameError, match="noisy"):
        play("arithmetic", "scripted:nosy", out=out)
    with pytest.raises(UnknownNameError, match="difficulty"):
        play("arithmetic", "scripted:noisy", out=out, args={"dificulty": 1})
    with pytest.raises(InputError, match="groups of 1 or more"):
        play("arithmetic", "scripted:noisy", out=out, groups=0)
    assert not out.exists()


def test_existing_run_is_refused(tmp_path):
    """Playing never overwrites a run."""
    play("arithmetic", "scripted:noisy", out=tmp_path / "run")
    before = essence(tmp_path / "run")
    with pytest.raises(RunExistsError):
        play("arithmetic", "scripted:noisy", out=tmp_path / "run", seed=9)
    assert essence(tmp_path / "run") == before


async def test_cancelled_play_is_recorded(tmp_path):
    """Cancelling records what was in flight as cancelled, closes the run, and is not swallowed."""
    policy = NeverAnswers()
    task = asyncio.create_task(play_async("arithmetic", policy, out=tmp_path / "run", group_size=3))
    await policy.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reader = RunReader(tmp_path / "run")
    assert [rollout.status for rollout in reader.rollouts()] == [Status.CANCELLED] * 3
    [ledger] = reader.ledgers().values()
    assert (ledger.closed, ledger.in_flight, ledger.recorded) == (True, 0, 3)


def test_callback_that_raises_leaves_a_closed_run(tmp_path):
    """What the caller's own callback raises comes out, after what was in flight was recorded and the run closed."""

    class AnswersOneGroup(NeverAnswers):
        answered = None

        async def complete(self, request):
            self.answered = self.answered or request.identity.group
            if request.identity.group != self.answered:
                await asyncio.Event().wait()
            return Completion(message=Message("assistant", "Answer: 4"))

    def refuse(group):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        play("arithmetic", AnswersOneGroup(), out=tmp_path / "run", groups=3, on_group=refuse)
    reader = RunReader(tmp_path / "run")
    assert sorted(rollout.status for rollout in reader.rollouts()) == [Status.CANCELLED] * 8 + [Status.OK] * 4
    [ledger] = reader.ledgers().values()
    assert (ledger.closed, ledger.in_flight) == (True, 0)


def test_failed_rollouts_have_no_reward_in_the_mean(tmp_path):
    """Means are over the rollouts that have a reward, and say how many; a group with none does not succeed."""

    class Broken(NeverAnswers):
        async def complete(self, request):
            raise ConnectionError("no server")

    summary = play("arithmetic", Broken(), out=tmp_path / "run", groups=2)
    assert summary.statuses == {"error": 8}
    assert (summary.mean_reward, summary.rewarded, summary.groups_without_reward) == (None, 0, 2)
    assert not summary.succeeded
    assert json.loads(encode_json(summary))["mean_reward"] is None


def test_demo_plays_every_built_in(tmp_path):
    """The demo is one sound run that holds one group of four for each built-in environment."""
    demo = play_demo(tmp_path / "run", policy="scripted:noisy")
    rollouts = list(RunReader(tmp_path / "run").rollouts())
    assert {rollout.env for rollout in rollouts} == set(demo_envs()) >= set(BUILT_IN)
    assert [summary.groups for summary in demo.summaries] == [1] * len(demo_envs())
    assert {len({one.episode or one.index for one in rollouts if one.env == env}) for env in demo_envs()} == {4}
    assert demo.succeeded
    assert 0 < demo.recording_fraction < 1
    assert max(len(rollout.steps) for rollout in rollouts) <= 6


def test_policies_are_closed_by_whoever_made_them(tmp_path, monkeypatch):
    """A policy that was named is closed at the end, also when the play fails; one that was given is not."""
    (tmp_path / "closing.py").write_text(
        "import asyncio\n"
        "from rolltrace.testing.scripted import ScriptedReplies\n"
        "closed = []\n"
        "class Closing(ScriptedReplies):\n"
        "    def __init__(self, fails: bool = False):\n"
        "        super().__init__((lambda request: 1 / 0) if fails else ['x'])\n"
        "    async def close(self):\n"
        "        closed.append(asyncio.get_running_loop().is_running())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = "closing:Closing"
    play("arithmetic", spec, out=tmp_path / "one", roles={"grader": f"{spec},fails=true"})
    import closing

    assert closing.closed == [True, True]
    play("arithmetic", closing.Closing(), out=tmp_path / "two")
    assert closing.closed == [True, True]
    with pytest.raises(RunExistsError):
        play("arithmetic", spec, out=tmp_path / "one")
    assert closing.closed == [True, True, True]


def test_slow_builders_are_made_beside_the_play(tmp_path):
    """Tasks that say so have their builders made in a thread, in order; the loop goes on meanwhile."""
    made_in = []

    class Slow(type(load_env("arithmetic"))):
        build_in_thread = True

        def builder(self, number, *, episodes, seed):
            made_in.append(threading.current_thread() is threading.main_thread())
            return super().builder(number, episodes=episodes, seed=seed)

    summary = play(Slow(), "scripted:noisy", out=tmp_path / "run", groups=3, group_size=1)
    assert made_in == [False, False, False]
    assert summary.groups == 3


def test_the_summary_says_who_was_asked(tmp_path):
    """A role that nothing asked, and a role that the policy played itself, are named."""
    roles = {"gradre": "scripted:noisy"}
    summary = play("rubric", "scripted:noisy", out=tmp_path / "run", roles=roles, group_size=1)
    assert (summary.unused_roles, summary.roles_played_by_policy) == (["gradre"], ["grader"])
