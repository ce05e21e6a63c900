"""What rollouts of other frameworks need: a current rollout, errors as data, late tokens, judges, times and ids."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

import rolltrace
from rolltrace.errors import InputError
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message

pytestmark = pytest.mark.core

QUESTION = [{"role": "user", "content": "2 + 2?"}]
WHICH = {"env": "gsm8k", "task": "17", "group": "17", "index": None}


@pytest.fixture
def run(tmp_path):
    """A run that is open for writing."""
    with rolltrace.create_run(tmp_path / "run") as writer:
        yield writer


def recorded(run):
    """All rollouts so far."""
    assert run.flush()
    return list(RunReader(run.path).rollouts())


def test_the_current_rollout_is_that_of_the_block(run):
    """Code in the block and its tasks finds the current rollout; code after the block or in other threads does not."""
    assert rolltrace.current_rollout() is None

    async def nested():
        return rolltrace.current_rollout()

    async def other():
        with run.rollout(**WHICH) as mine:
            await asyncio.sleep(0)
            assert rolltrace.current_rollout() is mine

    async def main():
        with run.rollout(**WHICH) as outer:
            assert await asyncio.create_task(nested()) is outer
            with run.rollout(**WHICH) as inner:
                assert rolltrace.current_rollout() is inner
            assert rolltrace.current_rollout() is outer
            await asyncio.gather(other(), other())
            assert rolltrace.current_rollout() is outer
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(rolltrace.current_rollout).result() is None
        assert rolltrace.current_rollout() is None

    asyncio.run(main())


def test_a_block_that_is_left_in_another_context(run):
    """A generator may enter a block in one context and leave it in another."""

    def block():
        with run.rollout(**WHICH):
            yield

    generator = block()
    contextvars.copy_context().run(next, generator)
    contextvars.copy_context().run(next, generator, None)
    assert len(recorded(run)) == 1


def test_an_ended_rollout_is_not_current(run):
    """A rollout is not current after `end`, nor if its block was entered twice or left in another order."""
    with run.rollout(**WHICH) as r, r:
        assert rolltrace.current_rollout() is r
        r.end()
        assert rolltrace.current_rollout() is None
    first, second = run.rollout(**WHICH), run.rollout(**WHICH)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert rolltrace.current_rollout() is None


def test_times_of_an_import(run):
    """An imported rollout keeps its original times."""
    began, ended = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    with run.rollout(**WHICH, started_at=began) as r:
        r.step(QUESTION, "4")
        r.end(ended_at=ended)
    [rollout] = recorded(run)
    assert (rollout.started_at, rollout.ended_at) == (began, ended)
    pandas = pytest.importorskip("pandas")
    for wrong in ("yesterday", pandas.NaT):
        with pytest.raises(InputError, match="Expected ended_at= to be a datetime"), run.rollout(**WHICH) as r:
            r.end(ended_at=wrong)
        with pytest.raises(InputError, match="Expected started_at= to be a datetime"):
            run.rollout(**WHICH, started_at=wrong)


def test_an_error_as_data(run):
    """An error that is known only as text is recorded like an exception."""
    data = {"type": "VLLMError", "message": "no such model", "traceback": "line 1", "layer": "policy"}
    nulls = {"type": "KeyError", "message": None, "traceback": None}
    given = [data, nulls, rolltrace.Failure(rolltrace.Layer.ENV, "TimeoutError", "late")]
    for error in given:
        run.rollout(**WHICH).end(error=error)
    rollouts = recorded(run)
    assert {(one.status, one.stop_reason, one.reward) for one in rollouts} == {("error", "error", None)}
    errors = {(one.error.layer, one.error.type, one.error.message, one.error.traceback) for one in rollouts}
    policy, caller = ("policy", "VLLMError", "no such model", "line 1"), ("caller", "KeyError", "", "")
    assert errors == {policy, caller, ("env", "TimeoutError", "late", "")}


def test_an_error_is_bounded_and_readable_whatever_it_holds(run):
    """Texts are truncated, other values become text, and the line stays readable."""

    class Silent:
        def __str__(self):
            raise RuntimeError

    failures = [rolltrace.Failure("env", 5, b"x" * 10**6, None), {"type": "E", "message": Silent()}, {"type": Silent()}]
    for failure in failures:
        run.rollout(**WHICH).end(error=failure)
        with run.rollout(**WHICH) as r:
            r.call(QUESTION, error=failure)
    rollouts = recorded(run)
    assert len(rollouts) == 2 * len(failures)
    assert all(len(one.error.message) < 30_000 for one in rollouts if one.error is not None)


@pytest.mark.parametrize("error", ["it broke", {"message": "no type"}, {"type": "E", "layer": "me"}, {"a": 1}, 5])
def test_an_error_of_the_wrong_type_is_refused(run, error):
    """An error that is neither an exception nor a failure is refused, and the rollout can still be ended."""
    r = run.rollout(**WHICH)
    with pytest.raises(InputError, match="Expected error= to be"):
        r.end(error=error)
    r.end()
    assert len(recorded(run)) == 1


def test_late_tokens(tmp_path):
    """Tokens attached at the end, in any order, leave the same record as tokens given at each step."""
    prompts = [(1, 2), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 7, 8)]
    tokens = [rolltrace.Tokens(prompt, (3, 4), (-0.5, float("-inf"))) for prompt in prompts]
    with rolltrace.create_run(tmp_path / "run", trace=rolltrace.Recording(tokens=True)) as run:
        for order in ((), (0, 1, 2), (2, 0, 1)):
            with run.rollout(**WHICH) as r:
                for number, own in enumerate(tokens):
                    r.append(f"question {number}")
                    r.step(response="4", tokens=None if order else own)
                for number in order:
                    r.attach_tokens(number, tokens[number])
                with pytest.raises(InputError, match="step 1 has tokens"):
                    r.attach_tokens(1, tokens[1])
                for wrong in (3, -1, "0", None):
                    with pytest.raises(InputError, match="Expected step= to be"):
                        r.attach_tokens(wrong, tokens[0])
    with rolltrace.open_run(tmp_path / "run") as opened:
        rollouts = list(opened.rollouts())
        at_once, in_order, _ = ([step.tokens for step in rollout.steps] for rollout in rollouts)
        assert at_once == in_order  # they take no more space
        for rollout in rollouts:
            assert [rollout.prompt_tokens(number) for number in range(3)] == prompts
            assert [step.tokens.logprobs for step in rollout.steps] == [(-0.5, float("-inf"))] * 3
            assert [step.usage for step in rollout.steps] == [rolltrace.Usage(len(prompt), 2) for prompt in prompts]


def test_usage_is_that_of_the_tokens_unless_given(run):
    """Without usage, the number of tokens is the usage, whether or not tokens are recorded."""
    with run.rollout(**WHICH) as r:
        tokens = rolltrace.Tokens((1, 2, 3), (4,))
        r.step(QUESTION, "4", tokens=tokens)
        r.step(QUESTION, "4", tokens=tokens, usage={"prompt_tokens": 7, "completion_tokens": 9})
        r.step(QUESTION, "4", tokens="none")
    [rollout] = recorded(run)
    assert [step.usage for step in rollout.steps] == [rolltrace.Usage(3, 1), rolltrace.Usage(7, 9), None]


def test_calls_of_judges(run):
    """A call that is not a turn has its own prompt, reply, usage and error, and does not change the conversation."""
    completion = {"choices": [{"message": {"role": "assistant", "content": "8"}, "finish_reason": "stop"}],
                  "usage": {"prompt_tokens": 5, "completion_tokens": 1}}  # fmt: skip
    with run.rollout(**WHICH) as r:
        r.step(QUESTION, "4", 1.0)
        r.call("Is 4 right?", completion, policy="judge", step=0, about="correct", seconds=0.5)
        r.call([{"role": "user", "content": "Is it short?"}], None, role="answerer", error=TimeoutError("too slow"))
    [rollout] = recorded(run)
    first, second = rollout.calls
    assert (first.role, first.policy, first.step, first.about, first.seconds) == ("grader", "judge", 0, "correct", 0.5)
    assert (first.prompt, first.reply, first.usage, first.termination) == (
        (Message("user", "Is 4 right?"),), Message("assistant", "8"), rolltrace.Usage(5, 1), "eos"
    )  # fmt: skip
    assert (second.role, second.reply, second.error.type, second.error.message) == (
        "answerer", None, "TimeoutError", "too slow"
    )  # fmt: skip
    assert [message.content for message in rollout.messages] == ["2 + 2?", "4"]


def test_importing_twice_counts_once(run):
    """A stable id depends on the source alone; a second import supersedes the first and does not count twice."""
    assert rolltrace.stable_id("a.jsonl", 7) == rolltrace.stable_id("a.jsonl", 7)
    assert (
        len({rolltrace.stable_id(*source) for source in (("a", 7), ("a", "7"), ("a7",), ("a",), (7,), ("\ud800",))})
        == 6
    )
    with pytest.raises(InputError, match="Expected texts and whole numbers"):
        rolltrace.stable_id("a.jsonl", None)
    for _ in range(2):
        with run.rollout(**WHICH, id=rolltrace.stable_id("a.jsonl", 7)) as r:
            r.step(QUESTION, "4", 1.0)
    run.flush()
    with rolltrace.open_run(run.path) as opened:
        assert opened.sql("select count(*) from rollouts").fetchone() == (1,)
        assert len(list(opened.rollouts())) == 1
