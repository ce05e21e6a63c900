"""Broken envs, builders, policies and sinks give a clear, recorded failure and leave the other members unharmed."""

import asyncio
import contextlib
import re
import sys

import pytest

from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.errors import EnvError, PolicyError
from rolltrace.policies.policy import Completion
from rolltrace.rollout.hooks import Hooks
from rolltrace.rollout.limits_and_penalties import Limits
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.rollout.strategies import FailFast, KeepViable
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message
from rolltrace.trace.stop_reasons import Layer, Status
from rolltrace.trace.tokens import Tokens, Usage
from stage import Counting, GradedStage, Meddling, Remembering, Stage, assert_faithful, play, recorded, said, skip_time


class Talk(Env):
    """An env that does what the test configures."""

    def __init__(self, first=None, result=None, close=None):
        self.first = first if first is not None else Observation([Message("user", "Hi.")])
        self.result = result if result is not None else StepResult(1.0, done=True)
        self.on_close = close

    async def initial_observation(self):
        return self.first

    async def step(self, completion):
        return self.result

    async def close(self):
        if self.on_close is not None:
            await self.on_close()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Talk(first="Hi."), "initial_observation to return an Observation, got str"),
        (Talk(first=[{"role": "user", "content": "Hi."}]), "return an Observation, got list"),
        (Talk(first=Observation("Hi.")), "list of messages, got str"),
        (Talk(first=Observation([Message("user", "Hi.")], stop="END")), "a list as stop, got str"),
        (Talk(first=Observation([Message("user", "Hi.")], tools=None)), "a list as tools, got NoneType"),
        (Talk(first=Observation([3])), r"got int: 3 at messages\[0\]"),
        (Talk(result=(1.0, True)), "step to return a StepResult, got tuple"),
        (Talk(result=StepResult("1.0", done=True)), "number as reward, got str"),
        (Talk(result=StepResult(None, done=True)), "number as reward, got NoneType"),
        (Talk(result=StepResult(1.0, done=False)), "an observation or done=True"),
        (Talk(result=StepResult(1.0, done=True, reward_data=[1])), "mapping as reward_data, got list"),
        (Talk(result=StepResult(1.0, done=True, env_state=None)), "mapping as env_state, got NoneType"),
        (Talk(result=StepResult(1.0, done=False, observation="more")), "return an Observation, got str"),
    ],
)
async def test_an_env_that_returns_the_wrong_thing(tmp_path, env, message):
    """The error says what was expected, what was returned, and by which method."""
    policy = Remembering(said("x"))
    await play(tmp_path / "run", Stage(lambda _: env), policy)
    [rollout] = recorded(tmp_path / "run")
    assert_faithful(rollout, policy)
    assert (rollout.status, rollout.error.layer, rollout.error.type) == (Status.ERROR, Layer.ENV, "EnvError")
    assert re.search(message, rollout.error.message)


def explode(number):
    raise OSError("no such game")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (explode, "OSError", "no such game"),
        (lambda _: [Talk(), Talk()], "EnvError", "one env per seat, 1 in all, got 2"),
        (lambda _: [], "EnvError", "got 0"),
    ],
)
async def test_an_episode_that_cannot_be_made(tmp_path, make, kind, message):
    """An exception in a constructor, or the wrong number of envs, is a recorded failure of every seat."""
    stage = Stage(make, episodes=2)
    await play(tmp_path / "run", stage, Remembering(said("x")))
    rollouts = recorded(tmp_path / "run")
    assert [(rollout.index, rollout.error.layer, rollout.error.type) for rollout in rollouts] == [
        (0, Layer.ENV, kind),
        (1, Layer.ENV, kind),
    ]
    assert message in rollouts[0].error.message
    assert stage.cleaned == 1


class NotEnvs(EnvGroupBuilder):
    """A builder that makes objects that are not envs."""

    env = "broken"
    task = "t"

    async def make_episode(self, number):
        return ["env"]


async def test_objects_that_are_not_envs():
    """The error says how to make an env of them."""
    sink = MemorySink()
    async for _ in Runner(Remembering(said("x")), sink=sink).play([NotEnvs()]):
        pass
    [rollout] = sink.rollouts
    assert "subclass rolltrace.Env" in rollout.error.message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("env_args", None, "env_args to be a mapping"),
        ("task_data", [1], "task_data to be a mapping"),
        ("tags", None, "tags to be a tuple"),
        ("tags", "math", "tags to be a tuple"),
        ("seed", "7", "seed to be a whole number"),
        ("env", "", "env to be a text"),
        ("task", 3, "task to be a text"),
        ("episodes", 0, "at least 1"),
        ("seats", "2", "at least 1"),
        ("reward_range", (1, 0), "the lowest first"),
        ("reward_range", "01", "the lowest first"),
    ],
)
async def test_a_builder_without_a_name_or_a_number(field, value, message):
    """A builder without a name or a number of episodes is refused before anything is played."""
    stage = Stage(lambda _: Talk())
    setattr(stage, field, value)
    with pytest.raises(EnvError, match=message):
        async for _ in Runner(Remembering(said("x")), sink=MemorySink()).play([stage]):
            pass


async def raise_on_close():
    raise OSError("stuck")


async def test_an_exception_in_close_is_a_note(tmp_path):
    """An exception in `close` becomes a note and does not change the reward."""
    await play(tmp_path / "run", Stage(lambda _: Talk(close=raise_on_close)), Remembering(said("x")))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.reward) == (Status.OK, 1.0)
    assert any("OSError: stuck" in note.message for note in rollout.notes)


async def test_a_close_that_hangs_is_a_note(tmp_path):
    """The record is written though the env never finishes closing."""

    async def hang():
        await asyncio.Event().wait()

    await play(
        tmp_path / "run",
        Stage(lambda _: Talk(close=hang)),
        Remembering(said("x")),
        limits=Limits(close_timeout=0.001),
    )
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.reward) == (Status.OK, 1.0)
    assert any("did not end" in note.message for note in rollout.notes)


async def test_an_exception_in_clean_up_takes_no_reward_away(tmp_path):
    """A clean-up that fails is recorded in a score about the group."""

    class Messy(Stage):
        async def cleanup(self):
            raise OSError("stuck")

    [group] = await play(tmp_path / "run", Messy(lambda _: Talk()), Remembering(said("x")))
    assert group.rewards == [1.0]
    [score] = RunReader(tmp_path / "run").scores()
    assert (score.name, score.value, score.error.type) == ("cleanup", None, "OSError")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda request: "hello", "return a Completion, got str"),
        (lambda request: Completion(message="hello"), "return a Completion with a message, got str"),
        (lambda request: Completion(message=Message("assistant", "x"), termination="eos"), "Termination, got str"),
    ],
)
async def test_a_policy_that_returns_the_wrong_thing(answer, message):
    """A completion of the wrong type is a failure of the policy."""

    class Loose(Remembering):
        async def complete(self, request):
            return answer(request)

    sink = MemorySink()
    async for _ in Runner(Loose(), sink=sink).play([Stage(lambda _: Talk())]):
        pass
    [rollout] = sink.rollouts
    assert rollout.error.layer is Layer.POLICY
    assert message in rollout.error.message


async def test_a_response_that_json_cannot_hold_is_recorded():
    """A lone surrogate or a field of the wrong type in a response never costs the rollout."""
    odd = Completion(message=Message("assistant", "x\ud800"), raw="raw \udfff")
    sink = MemorySink()
    async for group in Runner(Remembering(odd), sink=sink).play([Stage(lambda _: Talk(), grader=Counting())]):
        assert group.rewards == [11.0]
    [rollout] = sink.rollouts
    assert rollout.steps[0].trace.policy_response.content == "x\ufffd"
    assert rollout.steps[0].raw == "raw \ufffd"
    assert rollout.notes


async def test_a_sink_that_raises_loses_its_record_not_the_rollout(caplog):
    """An exception in a sink loses its record and does not stop the rollout."""

    class Full(MemorySink):
        def end(self, rollout_builder, outcome):
            raise OSError("no space")

    async for group in Runner(Remembering(said("x")), sink=Full()).play([Stage(lambda _: Talk())]):
        assert group.rewards == [1.0]
    assert "no space" in caplog.text


class AwaitsWhatItCancelled(Talk):
    """Raises a CancelledError although no cancellation was requested."""

    async def step(self, completion):
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task


class Exits(Talk):
    """Calls sys.exit() in the middle of a rollout."""

    async def step(self, completion):
        sys.exit("bye")


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("strategy", [KeepViable(), FailFast()])
@pytest.mark.parametrize(("env", "kind"), [(AwaitsWhatItCancelled, "CancelledError"), (Exits, "SystemExit")])
async def test_a_stray_cancelled_error_or_exit_is_the_envs_failure(tmp_path, strategy, retries, env, kind):
    """A stray CancelledError, or a sys.exit(), fails its rollout and nothing else."""
    stages = [Stage(lambda _: env()), Stage(lambda _: Talk(), task="fine")]
    groups = {
        group.task: group
        for group in await play(tmp_path / "run", stages, Remembering(said("x")), strategy=strategy, retries=retries)
    }
    assert groups["fine"].rewards == [1.0]
    [member] = groups["task"].members
    assert (member.status, member.error.layer, member.error.type) == (Status.ERROR, Layer.ENV, kind)
    assert groups["task"].failure is not None
    attempts = [rollout.attempt for rollout in recorded(tmp_path / "run") if rollout.task == "task"]
    assert attempts == list(range(retries + 1))


@pytest.mark.parametrize("where", ["policy", "grader", "hook", "make_episode", "group"])
async def test_a_stray_cancelled_error_is_a_failure_of_its_layer(tmp_path, where):
    """The part that raises a stray CancelledError is the one that failed."""

    async def raising(*arguments):
        raise asyncio.CancelledError

    class Cancelling(GradedStage):
        async def make_episode(self, number):
            return await (raising() if where == "make_episode" else super().make_episode(number))

        async def grade_group(self, rollouts):
            return await (raising() if where == "group" else super().grade_group(rollouts))

    stage = Cancelling(lambda _: Talk(), grader=Counting(asyncio.CancelledError() if where == "grader" else 1.0))
    policy = Remembering(asyncio.CancelledError() if where == "policy" else said("x"))
    hooks = Hooks(after_step=raising if where == "hook" else None)
    [group] = await play(tmp_path / "run", stage, policy, hooks=hooks)
    [rollout] = recorded(tmp_path / "run")
    assert len(group.members) == 1
    if where == "group":
        [score] = RunReader(tmp_path / "run").scores()
        assert (rollout.status, score.value, score.error.type) == ("ok", None, "CancelledError")
    else:
        layer = "env" if where == "make_episode" else where
        assert (rollout.status, rollout.error.layer, rollout.error.type) == ("error", layer, "CancelledError")


async def test_a_clean_up_that_hangs_is_bounded(tmp_path):
    """A group is yielded although its builder never finishes cleaning up."""

    class Messy(Stage):
        async def cleanup(self):
            await asyncio.Event().wait()

    limits = Limits(close_timeout=0.001)
    [group] = await play(tmp_path / "run", Messy(lambda _: Talk()), Remembering(said("x")), limits=limits)
    assert group.rewards == [1.0]
    [score] = RunReader(tmp_path / "run").scores()
    assert "0.001 s" in score.error.message


def test_a_runner_may_be_used_in_several_loops():
    """A runner can be used in one event loop after another."""
    sink = MemorySink()
    runner = Runner(Remembering(said("x")), sink=sink, concurrency=1)

    async def once():
        return [group async for group in runner.play([Stage(lambda _: Meddling(), episodes=3)])]

    for _ in range(2):
        [group] = asyncio.run(once())
        assert [member.error for member in group.members] == [None, None, None]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (object(), "object without name"),
        (type("P", (), {"name": "p"})(), "P without version, context_length, complete"),
        (type("P", (Remembering,), {"name": 5})(said("x")), "a policy with a name, got P, whose name is int: 5"),
    ],
)
def test_a_policy_without_the_interface_is_refused(policy, words):
    """An object that lacks a policy's attributes is refused when the runner is made."""
    with pytest.raises(PolicyError, match=words):
        Runner(policy, sink=MemorySink())


async def test_a_sink_that_cannot_begin_costs_its_record_only(caplog):
    """A rollout is played although its sink fails at once."""

    class Broken(MemorySink):
        def begin(self, header):
            raise OSError("no space")

        def write_score(self, score):
            raise OSError("no space")

    async for group in Runner(Remembering(said("x")), sink=Broken()).play([GradedStage(lambda _: Talk())]):
        assert group.rewards == [101.0]
    assert "no space" in caplog.text


async def test_a_return_value_that_is_not_a_completion_is_kept():
    """If a policy returns something other than a completion, the record contains it."""

    class Loose(Remembering):
        async def complete(self, request):
            return "hello there"

    sink = MemorySink()
    async for _ in Runner(Loose(), sink=sink).play([Stage(lambda _: Talk())]):
        pass
    [rollout] = sink.rollouts
    assert rollout.pending_raw == "str: 'hello there'"


async def test_a_token_budget_needs_usage():
    """A token budget that cannot be enforced, for want of usage, is an error and not ignored."""
    silent = Completion(message=Message("assistant", "x"))
    sink = MemorySink()
    limits = Limits(max_sampled_tokens=5)
    async for _ in Runner(Remembering(silent), sink=sink, limits=limits).play([Stage(lambda _: Meddling())]):
        pass
    [rollout] = sink.rollouts
    assert rollout.error.layer is Layer.POLICY
    assert "usage" in rollout.error.message


async def cancel_itself():
    task = asyncio.create_task(asyncio.sleep(3600))
    task.cancel()
    await task


async def exit_process():
    sys.exit(5)


@pytest.mark.parametrize("close", [cancel_itself, exit_process])
async def test_a_stray_cancelled_error_or_exit_in_close_is_a_note(tmp_path, close):
    """Neither a stray CancelledError nor a sys.exit() in `close` changes the reward."""
    [group] = await play(tmp_path / "run", Stage(lambda _: Talk(close=close), episodes=2), Remembering(said("x")))
    assert group.rewards == [1.0, 1.0]
    for rollout in recorded(tmp_path / "run"):
        assert (rollout.status, rollout.reward) == (Status.OK, 1.0)
        assert any("close of Talk" in note.message for note in rollout.notes)


async def test_a_stray_cancelled_error_in_cleanup_leaves_the_other_groups(tmp_path):
    """A stray CancelledError in `cleanup` is recorded in a score, and the group is yielded."""

    class Messy(Stage):
        async def cleanup(self):
            await cancel_itself()

    stages = [Messy(lambda _: Talk()), Stage(lambda _: Talk(), task="other")]
    groups = await play(tmp_path / "run", stages, Remembering(said("x")))
    assert sorted(group.task for group in groups) == ["other", "task"]
    [score] = RunReader(tmp_path / "run").scores()
    assert (score.name, score.error.type) == ("cleanup", "CancelledError")


async def test_the_first_failure_is_the_one_that_counts(tmp_path):
    """If a hook fails after the env has failed, the hook's failure is a note; the env's failure stays."""

    async def broken(rollout):
        raise ValueError("hook bug")

    class Bad(Talk):
        async def step(self, completion):
            raise KeyError("the real bug")

    await play(tmp_path / "run", Stage(lambda _: Bad()), Remembering(said("x")), hooks=Hooks(on_stop=broken))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.error.layer, rollout.error.type) == (Layer.ENV, "KeyError")
    assert any("hook bug" in note.message for note in rollout.notes)


class Forever(Talk):
    """An env that is never done."""

    async def step(self, completion):
        return StepResult(0.0, done=False, observation=Observation([Message("user", "More.")]))


class Instant(Remembering):
    """A policy that answers without yielding to the event loop."""

    async def complete(self, request):
        return said("x")


async def test_a_policy_that_never_waits_can_be_cancelled(tmp_path):
    """A cancellation takes effect between turns, although neither env nor policy ever suspends."""
    sink = MemorySink()
    runner = Runner(Instant(), sink=sink)

    async def all_groups():
        async for _ in runner.play([Stage(lambda _: Forever(), episodes=2)]):
            pass

    task = asyncio.create_task(all_groups())
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [rollout.status for rollout in sink.rollouts] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("answer", ["swallow", "replace"])
async def test_a_cancellation_cannot_be_swallowed(tmp_path, answer):
    """An env that swallows or replaces a cancellation is still cancelled: no turn and no attempt follows."""
    waiting = asyncio.Event()
    calls = 0

    class Stubborn(Talk):
        async def step(self, completion):
            nonlocal calls
            calls += 1
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if answer == "replace":
                    raise RuntimeError("connection lost") from None
            return StepResult(1.0, done=False, observation=Observation([Message("user", "More.")]))

    task = asyncio.create_task(play(tmp_path / "run", Stage(lambda _: Stubborn()), Remembering(said("x")), retries=3))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.stop_reason, rollout.reward) == ("cancelled", "cancelled", None)
    assert calls == 1


async def test_an_env_that_swallows_its_cancellation_is_not_graded(tmp_path):
    """An env that swallows a cancellation and returns done is recorded as cancelled, and not graded."""
    waiting = asyncio.Event()

    class Stubborn(Talk):
        async def step(self, completion):
            waiting.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return self.result

    stage = Stage(lambda _: Stubborn(), grader=Counting())
    task = asyncio.create_task(play(tmp_path / "run", stage, Remembering(said("x"))))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.status, rollout.reward, rollout.reward_so_far) == ("cancelled", None, 1.0)
    assert stage.grader.asked == []


@pytest.mark.parametrize("size", [10**5000, "7"], ids=["huge", "text"])
async def test_numbers_that_cannot_be_recorded(tmp_path, size):
    """A version or token count that cannot be written is noted; the line stays readable and is graded."""
    odd = Completion(message=Message("assistant", "x"), policy_version=size, usage=Usage(size, 1))
    await play(tmp_path / "run", Stage(lambda _: Talk(), grader=Counting()), Remembering(odd))
    [rollout] = recorded(tmp_path / "run")
    assert rollout.reward == 11.0
    assert rollout.notes


async def test_tokens_are_snapshots(tmp_path):
    """Token lists that are changed after the completion was returned do not change the record."""

    class Meddler(Talk):
        async def step(self, completion):
            assert completion.tokens.response == (3,)
            return self.result

    given = Tokens([1, 2], [3], [-0.5])
    policy = Remembering(Completion(message=Message("assistant", "x"), tokens=given))
    await play(tmp_path / "run", Stage(lambda _: Meddler()), policy)
    given.response.append(666)
    [rollout] = recorded(tmp_path / "run")
    assert rollout.steps[0].tokens == Tokens((1, 2), (3,), (-0.5,))


async def test_a_source_of_none_is_refused():
    """A source that yields None is broken, not exhausted."""
    with pytest.raises(EnvError, match="Expected an EnvGroupBuilder, got NoneType"):
        async for _ in Runner(Remembering(said("x")), sink=MemorySink()).play([None]):
            pass


async def test_a_count_of_tokens_is_a_number(tmp_path):
    """A token count that is not a number is a failure of the policy."""
    policy = Remembering(said("x"), context_length=10, tokens=lambda request: "7")
    await play(tmp_path / "run", Stage(lambda _: Talk()), policy)
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.error.layer, rollout.error.type) == (Layer.POLICY, "PolicyError")


async def test_waiting_for_a_place_is_not_the_rollouts_time(tmp_path):
    """The rollout's clock is paused while it waits for a request slot, so its end does not depend on concurrency."""

    def slow(request):
        skip_time(400)
        return said("x")

    stage = Stage(lambda _: Talk(), episodes=4)
    await play(tmp_path / "run", stage, Remembering(slow), limits=Limits(timeout=600), concurrency=1)
    assert [rollout.stop_reason for rollout in recorded(tmp_path / "run")] == ["completed"] * 4


async def test_an_error_of_an_env_that_blocks_is_an_error(tmp_path):
    """An env that raises after the deadline without having been interrupted has failed, not timed out."""

    class Blocking(Talk):
        async def step(self, completion):
            skip_time(3600)
            raise KeyError("board")

    await play(tmp_path / "run", Stage(lambda _: Blocking()), Remembering(said("x")), limits=Limits(timeout=600))
    [rollout] = recorded(tmp_path / "run")
    assert (rollout.stop_reason, rollout.error.type) == ("error", "KeyError")


async def test_grades_in_a_mapping_that_breaks_are_a_failure_of_the_grader(tmp_path):
    """Grades in a mapping that raises when it is read are a failure of the grader, not of the run."""

    class Odd(dict):
        def keys(self):
            raise RuntimeError("keys")

        __iter__ = keys

    class Group(GradedStage):
        async def grade_group(self, rollouts):
            return Odd(a=1)

    await play(tmp_path / "run", Group(lambda _: Talk()), Remembering(said("x")))
    [score] = RunReader(tmp_path / "run").scores()
    assert (score.value, score.error.layer) == (None, Layer.GRADER)


async def test_names_that_cannot_be_written_stay_apart(tmp_path):
    """Two tasks whose names differ only in characters that UTF-8 cannot hold are two groups."""
    stages = [Stage(lambda _: Talk(), task=f"t{letter}") for letter in ("\ud800", "\ud801")]
    await play(tmp_path / "run", stages, Remembering(said("x")))
    assert len({rollout.group for rollout in recorded(tmp_path / "run")}) == 2
