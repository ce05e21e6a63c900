"""Recording a foreign loop: three lines of code, right under every mutation, and nothing raises into the loop."""

import asyncio
import copy
import math
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltrace
from examples import examples
from rolltrace.errors import InputError
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.trace.convert import as_message
from rolltrace.trace.message import Message, Sampling
from rolltrace.trace.score import GroupKey
from rolltrace.trace.stop_reasons import Status
from rolltrace.trace.tokens import Usage

pytestmark = pytest.mark.core

QUESTION = [{"role": "user", "content": "2 + 2?"}]
WHICH = {"env": "gsm8k", "task": "17", "group": "17", "index": 0}


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory):
    """One run for the many examples of a property."""
    with create_run(tmp_path_factory.mktemp("shared") / "run") as writer:
        yield writer


@pytest.fixture
def run(tmp_path):
    """A run that is open for writing."""
    with create_run(tmp_path / "run") as writer:
        yield writer


def recorded(run):
    """All rollouts so far."""
    assert run.flush()
    reader = RunReader(run.path)
    rollouts = list(reader.rollouts())
    assert reader.read_errors == ()
    return rollouts


def of_id(run, rollout):
    """One rollout, after a flush."""
    assert run.flush()
    reader = RunReader(run.path)
    record = reader.get(rollout)
    assert reader.read_errors == ()
    return record


def test_three_lines(tmp_path):
    """The loop of the design: a run, a rollout, a step; then a score, a flush, and the rollout can be read."""
    messages, reply = [{"role": "user", "content": "2 + 2?"}], {"role": "assistant", "content": "4"}
    with rolltrace.create_run(tmp_path / "gsm8k", config={"lr": 0.1}) as run:
        with run.rollout(env="gsm8k", task="17", group="17", index=0, iteration=4, policy_version=12) as r:
            r.step(prompt=messages, response=reply, reward=1.0, reward_data={"correct": 1.0, "format": 0.9})
        run.score(r.id, "advantage", 0.83)
        assert run.flush()
        rollout = RunReader(tmp_path / "gsm8k").get(r.id)
        [score] = RunReader(tmp_path / "gsm8k").scores()
    [step] = rollout.steps
    assert step.trace.prompt == (Message("user", "2 + 2?"),)
    assert step.trace.policy_response == Message("assistant", "4")
    assert step.trace.reward_data == {"correct": 1.0, "format": 0.9}
    assert (rollout.iteration, rollout.policy_version, step.policy_version) == (4, 12, 12)
    assert (rollout.reward, rollout.status, rollout.stop_reason) == (1.0, Status.OK, "completed")
    assert (score.rollout, score.name, score.value) == (r.id, "advantage", 0.83)
    assert rollout.session == run.session


def test_exception_is_recorded_and_raised_again(run):
    """A block that raises is a failed rollout with the steps so far, and the same exception propagates."""
    error = ValueError("no such tool")
    with pytest.raises(ValueError, match="no such tool") as caught:  # noqa: PT012, SIM117 - the block is what is tested
        with run.rollout(**WHICH) as r:
            r.step(QUESTION, "4", 0.5)
            raise error
    assert caught.value is error
    [rollout] = recorded(run)
    assert (rollout.status, rollout.reward, rollout.reward_so_far, len(rollout.steps)) == ("error", None, 0.5, 1)
    assert (rollout.error.layer, rollout.error.type, rollout.error.message) == ("caller", "ValueError", "no such tool")
    assert "test_recorder.py" in rollout.error.traceback


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, SystemExit, GeneratorExit])
def test_cancelled_block_is_recorded_as_cancelled(run, error):
    """An exception that stops a program is not a failure of the rollout; it is raised again."""
    with pytest.raises(error):  # noqa: PT012, SIM117 - the block is what is tested
        with run.rollout(**WHICH) as r:
            r.send(QUESTION)
            raise error
    [rollout] = recorded(run)
    assert (rollout.status, rollout.stop_reason, rollout.reward, rollout.error) == (
        "cancelled",
        "cancelled",
        None,
        None,
    )
    assert rollout.pending_messages == (Message("user", "2 + 2?"),)


def test_pending_reward_comes_as_a_score(run):
    """A rollout with a pending reward says so; its total comes as a score named reward."""
    r = run.rollout(**WHICH)
    r.step(QUESTION, "4", 0.25)
    r.end("max_turns", stopped_by="runner", pending=True)
    run.score(r.id, "reward", 0.75, data={"group": 0.5}, producer="group grader")
    [rollout] = recorded(run)
    assert (rollout.reward, rollout.reward_so_far, rollout.status) == (None, 0.25, "ok")
    assert (rollout.stop_reason, rollout.stopped_by) == ("max_turns", "runner")
    [score] = RunReader(run.path).scores()
    assert (score.name, score.value, score.data, score.producer) == ("reward", 0.75, {"group": 0.5}, "group grader")


def test_reward_is_the_sum_of_steps_and_grade(run):
    """Steps and the rollout's own grade add up, and each is kept."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", 0.25)
        r.step(QUESTION, "5", -1)
        r.grade(2.0, {"style": 0.5}, {"why": "short"}, reward_weights={"style": 4.0})
        r.metric("length", 7)
    [rollout] = recorded(run)
    assert rollout.reward == rollout.reward_so_far == 1.25
    assert rollout.grade.reward_weights == {"style": 4.0}
    assert (rollout.grade.reward, rollout.grade.reward_data, rollout.grade.extra) == (
        2.0,
        {"style": 0.5},
        {"why": "short"},
    )
    assert rollout.metrics == {"length": 7}


def test_last_answer_and_what_came_after_it(run):
    """The conversation at the end holds the answer, and what `observe` added to it."""
    history = [{"role": "user", "content": "2 + 2?"}]
    with run.rollout(**WHICH) as r:
        r.step(history, {"role": "assistant", "content": "4"}, 1.0)
        r.observe([*history, {"role": "assistant", "content": "4"}, {"role": "user", "content": "right"}])
    with run.rollout(**WHICH) as r:
        r.step(history, "4", 1.0)
    first, second = recorded(run)
    assert [message.content for message in first.conversation] == ["2 + 2?", "4", "right"]
    assert [message.content for message in second.conversation] == ["2 + 2?", "4"]


# Any mutation


def tool_call(number):
    """A call as the API returns it, nested three deep."""
    return {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {number}}}'}}


def append(history, number, draw):
    history.append({"role": "user", "content": f"and {number}?"})


def edit_old(history, number, draw):
    history[draw(st.integers(0, len(history) - 1))]["content"] = f"edited {number}"


def edit_nested(history, number, draw):
    for message in history:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = f'{{"edited": {number}}}'


def truncate(history, number, draw):
    del history[draw(st.integers(1, len(history))) :]


def replace(history, number, draw):
    history[:] = [{"role": "system", "content": f"summary {number}"}]


def swap(history, number, draw):
    history.reverse()


def copies(history, number, draw):
    history[:] = copy.deepcopy(history)


def insert_first(history, number, draw):
    history.insert(0, {"role": "system", "content": f"rule {number}"})


def repeat(history, number, draw):
    history.append(history[0])


def change_type(history, number, draw):
    history[0]["meta"] = [1, True, 1.0][number % 3]


MUTATIONS = [
    append, edit_old, edit_nested, truncate, replace, swap, copies, insert_first, repeat, change_type,
]  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_prompts_are_as_they_were(shared_run, data):
    """Whatever the loop does to its dicts and to the response, each step has the prompt and answer as they were."""
    seen = []
    history = [{"role": "user", "content": "start"}]
    tools = [{"name": "add", "description": "", "parameters": {"type": "object", "default": 1}}]
    with shared_run.rollout(**WHICH) as r:
        for number in range(data.draw(st.integers(1, 6))):
            reply = {"role": "assistant", "content": f"answer {number}", "tool_calls": [tool_call(number)]}
            state = {"board": [number], "nested": {"deep": [number]}}
            seen.append(copy.deepcopy((history, reply, state, tools)))
            r.step(history, reply, number, env_state=state, tools=tools)
            if data.draw(st.booleans()):
                history.append(reply)
            if data.draw(st.booleans()):
                reply["content"] = "edited after it was returned"
                reply["tool_calls"][0]["function"]["name"] = "edited"
            state["nested"]["deep"].append("edited")
            tools[0]["parameters"]["default"] = data.draw(st.sampled_from([1, True, 1.0, "one"]))
            for mutation in data.draw(st.lists(st.sampled_from(MUTATIONS), max_size=3)):
                mutation(history, number, data.draw)
    rollout = of_id(shared_run, r.id)
    assert len(rollout.steps) == len(seen)
    for step, (prompt, reply, state, offered) in zip(rollout.steps, seen, strict=True):
        assert step.trace.prompt == tuple(as_message(message, "", []) for message in prompt)
        assert step.trace.policy_response == as_message(reply, "", [])
        assert step.env_state == state
        assert repr(rollout.tools[step.tools][0].parameters.to_dict()) == repr(offered[0]["parameters"])
        assert step.reward == step.step


def test_growth_is_linear(run):
    """With the whole history as prompt, every text is stored once: 300 turns take ten times the bytes of 30."""

    def play(turns):
        history = []
        with run.rollout(**WHICH) as r:
            for turn in range(turns):
                history.append({"role": "user", "content": f"question {turn:04} " + "q" * 200})
                reply = {"role": "assistant", "content": f"answer {turn:04} " + "a" * 200}
                r.step(history, reply, 1.0)
                history.append(reply)

    play(30)
    play(300)
    assert len(recorded(run)) == 2
    short, long = (len(line) for line in segment_lines(run))
    assert long < 11 * short
    assert long < 300 * 2 * 600


def segment_lines(run):
    [path] = (run.path / "rollouts").iterdir()
    return path.read_bytes().splitlines()


# Threads and tasks


async def test_from_many_tasks(run):
    """Rollouts of concurrent tasks do not mix; a task that is cancelled leaves a cancelled rollout."""

    async def play(number):
        with run.rollout(**{**WHICH, "index": number}) as r:
            history = []
            for turn in range(5):
                history.append({"role": "user", "content": f"{number} {turn}"})
                await asyncio.sleep(0)
                r.step(history, f"answer {number} {turn}", turn)
                history.append({"role": "assistant", "content": f"answer {number} {turn}"})

    async def wait():
        with run.rollout(**{**WHICH, "index": 99}) as r:
            r.send(QUESTION)
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.gather(*(play(number) for number in range(20)))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(run.flush)
    rollouts = {rollout.index: rollout for rollout in RunReader(run.path).rollouts()}
    assert sorted(rollouts) == [*range(20), 99]
    assert rollouts.pop(99).status == "cancelled"
    for number, rollout in rollouts.items():
        assert [message.content for message in rollout.steps[-1].trace.prompt][::2] == [
            f"{number} {n}" for n in range(5)
        ]


def test_from_many_threads(run):
    """Rollouts of threads do not mix."""

    def play(number):
        for index in range(20):
            with run.rollout(**{**WHICH, "group": str(number), "index": index}) as r:
                r.step(f"{number} {index}", f"{number} {index}", number)
            run.score(r.id, "advantage", number)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rollouts = recorded(run)
    assert len(rollouts) == 160
    for rollout in rollouts:
        assert rollout.messages[0].content == rollout.messages[1].content == f"{rollout.group} {rollout.index}"
        assert rollout.reward == float(rollout.group)
    assert len(list(RunReader(run.path).scores())) == 160


# Wrong use raises


def test_unnumbered_members(run):
    """`index=None` means that the members of the group are not numbered; it is recorded as null."""
    for _ in range(2):
        with run.rollout(**{**WHICH, "index": None}) as r:
            r.step(QUESTION, "4", 1.0)
    assert [rollout.index for rollout in recorded(run)] == [None, None]


@pytest.mark.parametrize("name", ["teacher", "env_reward", "step"])
def test_a_wrong_field_of_a_step_is_refused(run, name):
    """A name that is not a field of a step, or that the recorder sets, is refused, and the rollout continues."""
    with run.rollout(**WHICH) as r:
        with pytest.raises(InputError, match=f"Expected fields of a step, got {name}="):
            r.step(QUESTION, "4", 1.0, **{name: 1})
        r.step(QUESTION, "5", 1.0, env_failure="raised")
    [step] = recorded(run)[0].steps
    assert (step.trace.policy_response.content, step.env_failure) == ("5", "raised")


def test_reward_weights(run):
    """Reward weights are recorded; a step without any has no such field."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", 0.75, reward_data={"right": 1, "short": 0.5}, reward_weights={"right": 0.5, "odd": "x"})
        r.step(QUESTION, "5", 0.0, reward_weights={})
    first, second = recorded(run)[0].steps
    assert (first.reward_weights, first.extra) == ({"right": 0.5}, {"reward_weights.odd": "x"})
    assert second.reward_weights == {}
    [segment] = run.path.glob("rollouts/*")
    assert segment.read_text().count('"reward_weights":{') == 1


@pytest.mark.parametrize("level", ["full", "numbers"])
@pytest.mark.parametrize("name", ["advantage", "trainer_logprobs"])
def test_late_numbers_per_token(tmp_path, level, name):
    """Advantages and the trainer's log-probabilities are scores with one row per step; every number is read back."""
    tokens = [[0.5, -0.25, -math.inf], None, [1]]
    with create_run(tmp_path / "run", trace=level) as run:
        with run.rollout(**WHICH) as r:
            for number in range(3):
                r.step([{"role": "user", "content": f"{number}?"}], "4", 1.0)
        run.score(r.id, name, None, data={"tokens": tokens})
        assert run.flush()
        [score] = RunReader(run.path).scores()
    assert (score.name, score.value, score.data) == (name, None, {"tokens": tokens})


@pytest.mark.parametrize("missing", ["env", "task", "group", "index"])
def test_rollout_needs_its_identity(run, missing):
    """The error names the missing field, and no rollout is counted."""
    with pytest.raises(InputError, match=f"Expected {missing}="):
        run.rollout(**{name: value for name, value in WHICH.items() if name != missing})
    assert run.ledger.dispatched == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"itteration": 4}, "itteration"),
        ({"id": 5}, "id="),
        ({"id": ""}, "id="),
        ({"tags": "math"}, "tags= to be a list"),
        ({"tags": None}, "tags= to be a list"),
        ({"started_at": "yesterday"}, "started_at="),
    ],
)
def test_wrong_header_is_named(run, fields, message):
    """The error names a misspelled or invalid field."""
    with pytest.raises(InputError, match=message):
        run.rollout(**WHICH, **fields)
    assert run.ledger.dispatched == 0


NOT_TEXT = (5.0, None, True, b"x", ["a"])
NOT_COUNT = ("3", 1.5, 2.0, True, -1, math.nan, [1], 2**64)
NOT_MAP = (None, "a=1", 5, [("a", 1)])
BAD_HEADER = {
    **dict.fromkeys(("id", "split", "env", "policy"), (*NOT_TEXT, 5)),
    **dict.fromkeys(("task", "group"), NOT_TEXT),
    **dict.fromkeys(("iteration", "attempt"), (*NOT_COUNT, None)),
    **dict.fromkeys(("index", "episode", "seat"), NOT_COUNT),
    "seed": ("3", 1.5, True, math.nan, 10**30),
    **dict.fromkeys(("env_args", "task_data"), NOT_MAP),
    "policy_version": (1.5, True, [1], b"x"),
    "tags": ("math", None, 5, [5], {"a": 1}),
    "started_at": ("yesterday", 5, None),
}


@pytest.mark.parametrize("trace", ["full", "off"])
@pytest.mark.parametrize("name", BAD_HEADER)
def test_header_fields_of_the_wrong_type_are_refused(tmp_path, name, trace):
    """A field of the wrong type raises at `run.rollout` and is named; no rollout is counted."""
    with create_run(tmp_path / "run", trace=trace) as run:
        for value in BAD_HEADER[name]:
            with pytest.raises(InputError, match=f"Expected {name}= to be "):
                run.rollout(**{**WHICH, name: value})
        assert run.ledger.dispatched == 0


def test_task_and_group_may_be_numbers(run):
    """An integer as the name of a task or group, such as a row number, is recorded as its digits."""
    with run.rollout(env="gsm8k", task=17, group=-3, index=0) as r:
        r.step(QUESTION, "4", 1.0)
    [rollout] = recorded(run)
    assert (rollout.task, rollout.group, rollout.notes) == ("17", "-3", ())


def test_step_without_a_reward(run):
    """`reward=None` at a step counts as 0, with no reward of the env; the total is the sum of the others."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", None)
        r.step(QUESTION, "5", 1.5)
    [rollout] = recorded(run)
    assert [(step.reward, step.env_reward) for step in rollout.steps] == [(0.0, None), (1.5, 1.5)]
    assert (rollout.reward, rollout.reward_so_far, rollout.status) == (1.5, 1.5, "ok")


def test_rollout_without_any_reward_waits_for_a_score(run):
    """Without a reward from a step or grader, the total is null, and a score can set it later."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", reward=None)
    run.score(r.id, "reward", 0.5)
    with run.rollout(**WHICH) as graded:
        graded.step(QUESTION, "4", reward=None)
        graded.grade(2.0)
    rollouts = {rollout.id: rollout for rollout in recorded(run)}
    assert (rollouts[r.id].reward, rollouts[r.id].reward_so_far, rollouts[r.id].status) == (None, 0.0, "ok")
    assert rollouts[graded.id].reward == 2.0


@pytest.mark.parametrize("trace", ["full", "off"])
@pytest.mark.parametrize("tools", [5, "add", {"name": "add"}, True])
def test_tools_of_the_wrong_type_are_refused_at_once(tmp_path, tools, trace):
    """The first call with invalid tools raises, whatever is recorded, and records nothing of that call."""
    with create_run(tmp_path / "run", trace=trace) as run:
        with run.rollout(**WHICH) as r:
            with pytest.raises(InputError, match="Expected tools to be a list of tools"):
                r.step([{"role": "user", "content": "never sent"}], "4", tools=tools)
            r.step(QUESTION, "4", 1.0)
        assert run.flush()
        for rollout in RunReader(run.path).rollouts():
            assert [message.content for message in rollout.messages] == ["2 + 2?", "4"]


@pytest.mark.parametrize("prompt", [5, {"role": "user", "content": "one message"}, Message("user", "one message")])
def test_prompt_must_be_a_list(run, prompt):
    """A single message, or a value of another type, is refused as prompt and as observation; the rollout continues."""
    with run.rollout(**WHICH) as r:
        with pytest.raises(InputError, match="list of messages"):
            r.step(prompt, "4")
        with pytest.raises(InputError, match="list of messages"):
            r.observe(prompt)
        with pytest.raises(InputError, match="list of tools"):
            r.step(QUESTION, "4", tools={"name": "add"})
        r.step(QUESTION, "4", 1.0)
    [rollout] = recorded(run)
    assert rollout.steps[-1].trace.prompt == (Message("user", "2 + 2?"),)


def test_prompts_may_be_text_or_iterators(run):
    """A text as prompt is a user's message; any iterable of messages is a prompt."""
    with run.rollout(**WHICH) as r:
        r.step("2 + 2?", "4")
        r.step((message for message in QUESTION), Message("assistant", "4"))
    [rollout] = recorded(run)
    assert [step.trace.prompt for step in rollout.steps] == [(Message("user", "2 + 2?"),)] * 2
    assert {step.trace.policy_response for step in rollout.steps} == {Message("assistant", "4")}


LATE = {
    "append": lambda r: r.append("more"),
    "step": lambda r: r.step(QUESTION, "4"),
    "send": lambda r: r.send(QUESTION),
    "observe": lambda r: r.observe(QUESTION),
    "grade": lambda r: r.grade(1.0),
    "end_before_first_turn": lambda r: r.end_before_first_turn(1.0),
    "metric": lambda r: r.metric("a", 1),
    "call": lambda r: r.call(QUESTION, "yes"),
    "attach_tokens": lambda r: r.attach_tokens(0, rolltrace.Tokens((1,), (2,))),
}
"""By the name of a method, a call of it that comes too late."""


def test_an_env_that_is_over_before_the_first_turn(run):
    """The env's result is the rollout's reward, with its data; unknown fields are refused."""
    with run.rollout(**WHICH) as r:
        r.send(QUESTION)
        with pytest.raises(InputError, match="fields of EndedBeforeFirstTurn, got state"):
            r.end_before_first_turn(0.5, state={})
        r.end_before_first_turn(0.5, reward_data={"overflow": 1.0}, logs={"why": "too long"})
        r.grade(0.25)
        r.end("max_tokens")
    [rollout] = recorded(run)
    early = rollout.ended_before_first_turn
    assert (early.reward, early.reward_data, early.logs) == (0.5, {"overflow": 1.0}, {"why": "too long"})
    assert (rollout.reward, rollout.reward_so_far, rollout.steps) == (0.75, 0.75, ())
    assert rollout.pending_messages == (Message("user", "2 + 2?"),)


def test_calls_after_the_end_are_dropped_and_counted(run, caplog):
    """After `end`, ending again does nothing, and other calls are counted and never raise."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", 1.0)
    r.end("error")
    for late in (*LATE.values(), LATE["step"]):
        late(r)
    assert not run.flush()  # something was lost
    [rollout] = recorded(run)
    assert (rollout.stop_reason, len(rollout.steps), rollout.calls, rollout.grade) == ("completed", 1, (), None)
    assert run.ledger.dropped_after_end == {**dict.fromkeys(LATE, 1), "step": 2}
    assert not run.ledger.complete
    assert len([line for line in caplog.messages if "step. Further losses" in line]) == 1


def test_wrong_end_is_refused_and_can_be_repeated(run):
    """An unknown `stopped_by` is refused, and the rollout can still be ended."""
    r = run.rollout(**WHICH)
    with pytest.raises(InputError, match="stopped_by to be one of env, runner"):
        r.end(stopped_by="me")
    r.end(stopped_by="runner")
    assert len(recorded(run)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, "advantage", 1.0), "got neither"),
        ((5, "advantage", 1.0), "rollout's id"),
        (("id", None, 1.0), "score's name"),
        (("id", "", 1.0), "score's name"),
        (("id", "reward", "x"), "value of a score to be a number or None, got str: 'x'"),
        (("id", "reward", "0.5"), "to be a number or None, got str"),
        (("id", "reward", [0.5, 0.5]), "to be a number or None, got list"),
        (("id", "reward", 10**5000), "to be a number or None, got int"),
    ],
)
@pytest.mark.parametrize("trace", ["full", "off"])
def test_wrong_score_raises(tmp_path, trace, arguments, message):
    """A score needs a rollout or group, a name, and a number or None; other values raise at the call."""
    with create_run(tmp_path / "run", trace=trace) as run, pytest.raises(InputError, match=message):
        run.score(*arguments)
    assert list(RunReader(run.path).scores()) == []


def test_score_without_a_value(run):
    """The value of a score that could not be computed is None."""
    run.score("id", "reward", None)
    recorded(run)
    assert [score.value for score in RunReader(run.path).scores()] == [None]


def test_score_about_a_group(run):
    """A score may be about a group, given as GroupKey; other types are refused."""
    run.score(None, "spread", 0.5, group=GroupKey("train", 4, "gsm8k", "17"))
    with pytest.raises(InputError, match="GroupKey"):
        run.score(None, "spread", 0.5, group="17")
    recorded(run)
    [score] = RunReader(run.path).scores()
    assert (score.rollout, score.group.group, score.value) == (None, "17", 0.5)


def test_settings_and_counts_in_other_shapes(run):
    """Settings and token counts may be dicts, as loops have them."""
    with run.rollout(**WHICH) as r:
        r.step(
            QUESTION, "4", sampling={"temperature": 0.7, "stop": "END", "top_k": None, "seed": 3},
            usage={"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        )  # fmt: skip
        r.step(QUESTION, "4", sampling=Sampling(temperature=0.7), usage=Usage(9, 1))
    [rollout] = recorded(run)
    first, second = rollout.sampling
    assert (first.temperature, first.stop, first.other.to_dict()) == (0.7, ("END",), {"seed": 3})
    assert second == Sampling(temperature=0.7)
    assert [step.usage for step in rollout.steps] == [Usage(9, 1)] * 2


# Hostile values


class Hostile:
    """Raises whatever is done with it."""

    def __repr__(self):
        raise RuntimeError("detached")

    __str__ = __eq__ = __bool__ = __len__ = __iter__ = __getitem__ = __float__ = __deepcopy__ = __repr__
    __hash__ = None


HOSTILE = [
    Hostile(), [Hostile()], {"a": Hostile()}, object(), object, math.nan, -math.inf, 10**5000, None, True, b"x",
    "\ud800", {"\udfff": "\ud800"}, {1: 2, None: 3}, {"$float": "x"}, [[[]]], set(), "", -1, 2**64,
]  # fmt: skip
STEP = (  # noqa: SIM905
    "prompt response reward reward_data env_state extra metrics logs sampling termination parse_error raw "
    "policy_version usage seconds tokens tools"
).split()
GRADE = ["reward", "reward_data", "extra"]
PLACES = [("step", name) for name in STEP] + [("grade", name) for name in GRADE]


@pytest.mark.parametrize(("method", "name"), [*PLACES, ("metric", "value"), ("score", "data")])
def test_hostile_values_never_raise(shared_run, method, name):
    """Whatever the values are, the loop continues, and what was recorded can be read."""
    ids = []
    for value in HOSTILE:
        given = {name: [value] if name in ("prompt", "tools") else value}

        def of(this, given=given, **usual):
            return {**usual, **(given if this == method else {})}

        with shared_run.rollout(**of("rollout", **WHICH)) as r:
            r.step(**of("step", prompt=QUESTION, response="4", reward=1.0))
            r.metric(**of("metric", name="a", value=1))
            r.grade(**of("grade", reward=1.0))
        shared_run.score(**of("score", rollout=r.id, name="advantage", value=1.0))
        ids.append(r.id)
    assert shared_run.flush(), shared_run.ledger
    reader = RunReader(shared_run.path)
    assert all(len(reader.get(rollout).steps) == 1 for rollout in ids)
    assert {score.rollout for score in reader.scores()} >= set(ids)
    assert reader.read_errors == ()


@pytest.mark.parametrize("value", [value for value in HOSTILE if not isinstance(value, int | float | None)])
def test_hostile_score_values_are_refused(shared_run, value):
    """Any value of a score that is not a number raises the same error."""
    with pytest.raises(InputError, match="Expected the value of a score to be a number or None"):
        shared_run.score("id", "advantage", value)


def test_numbers_of_other_libraries(run):
    """Scalars of numpy count as numbers everywhere; NaN is kept."""
    numpy = pytest.importorskip("numpy")
    with run.rollout(**{**WHICH, "index": numpy.int64(3)}, iteration=numpy.int32(4), seed=numpy.uint64(2**63)) as r:
        r.step(QUESTION, "4", numpy.float32(0.5), reward_data={"a": numpy.bool_(True), "b": numpy.float64(math.nan)})
    run.score(r.id, "advantage", numpy.float64(0.1))
    [rollout] = recorded(run)
    assert (rollout.index, rollout.iteration, rollout.seed, rollout.reward) == (3, 4, 2**63, 0.5)
    assert rollout.steps[0].reward_data["a"] is True
    assert math.isnan(rollout.steps[0].reward_data["b"])
    [score] = RunReader(run.path).scores()
    assert score.value == 0.1


def test_two_rollouts_of_one_id_are_both_counted(run):
    """Two rollouts with one id are both recorded, and the ledger adds up at all times."""
    both = [run.rollout(**WHICH, id="same") for _ in range(2)]
    assert run.ledger.in_flight == 2
    for r in both:
        r.end()
        assert run.ledger.is_balanced
    assert len(recorded(run)) == 2
    assert (run.ledger.dispatched, run.ledger.recorded, run.ledger.in_flight) == (2, 2, 0)


CHAT = {
    "id": "chatcmpl-1",
    "model": "qwen",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
}
RESPONSE = {
    "id": "resp_1",
    "model": "qwen",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}],
    "usage": {"input_tokens": 9, "output_tokens": 3},
}


@pytest.mark.parametrize(("response", "termination"), [(CHAT, "length"), (RESPONSE, "eos")])
def test_whole_api_response(run, response, termination):
    """A whole API response in place of a message is unpacked; explicit arguments win over it."""
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, response, 1.0, extra={"mine": 1})
        r.step(QUESTION, response, 1.0, usage=Usage(1, 1), termination="stop_sequence")
    [rollout] = recorded(run)
    first, second = rollout.steps
    assert first.trace.policy_response == second.trace.policy_response == Message("assistant", "4")
    assert (first.usage, first.termination) == (Usage(9, 3), termination)
    assert first.extra["mine"] == 1
    assert first.extra["api_response"]["model"] == "qwen"
    assert (second.usage, second.termination) == (Usage(1, 1), "stop_sequence")
    assert rollout.notes == ()


def test_message_of_an_api_response_in_the_next_prompt(run):
    """A history that contains the response's message holds it once."""
    history = [*QUESTION]
    with run.rollout(**WHICH) as r:
        r.step(history, CHAT, 0.0)
        history += [CHAT["choices"][0]["message"], {"role": "user", "content": "sure?"}]
        r.step(history, "yes", 1.0)
    [rollout] = recorded(run)
    assert [message.content for message in rollout.messages] == ["2 + 2?", "4", "sure?", "yes"]


def test_api_response_with_several_choices_is_refused(run):
    """Several choices raise before anything of the turn is recorded, and the rollout continues."""
    with run.rollout(**WHICH) as r:
        with pytest.raises(InputError, match="one choice, got 2"):
            r.step("never sent", {**CHAT, "choices": CHAT["choices"] * 2})
        r.step(QUESTION, CHAT, 1.0)
    [rollout] = recorded(run)
    assert [message.content for message in rollout.messages] == ["2 + 2?", "4"]


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ({"finish_reason": None, "message": {"role": "assistant", "content": "c"}}, "c"),
        ({"content": "c"}, "c"),
        ({"error": {"message": "overloaded"}}, ""),
        (None, ""),
    ],
    ids=["choice without a finish reason", "no role", "error body", "nothing"],
)
def test_a_response_is_the_assistant_s(tmp_path, response, content):
    """A response without a role is recorded as the assistant's."""
    with create_run(tmp_path / "run") as run, run.rollout(env="e", task="t", group="g", index=0) as r:
        r.step("hello", response, 1.0)
    [rollout] = RunReader(tmp_path / "run").rollouts()
    said = rollout.steps[0].trace.policy_response
    assert (said.role, said.content) == ("assistant", content)
