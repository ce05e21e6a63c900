"""Recording a loop that only adds messages: `append`, then `step` without a prompt."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rolltrace
from examples import examples
from rolltrace.errors import InputError
from rolltrace.store.reader import RunReader
from rolltrace.trace.message import Message

WHICH = {"env": "gsm8k", "task": "17", "group": "17", "index": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that is open for writing."""
    with rolltrace.create_run(tmp_path_factory.mktemp("append") / "run") as writer:
        yield writer


def read(run, rollout):
    """One rollout, after a flush."""
    assert run.flush()
    return RunReader(run.path).get(rollout)


def contents(messages):
    """The contents of messages."""
    return [message.content for message in messages]


def user(text):
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text):
    """An assistant's message."""
    return {"role": "assistant", "content": text}


def test_prompt_is_the_conversation_so_far(run):
    """Each step's prompt holds the messages appended and answered before it; the rollout ends with the last answer."""
    with run.rollout(**WHICH) as r:
        r.append([{"role": "system", "content": "Be short."}, user("2 + 2?")])
        r.step(response="4", reward=1.0)
        r.append("and 3 + 3?")
        r.step(response=assistant("6"), reward=0.5)
    rollout = read(run, r.id)
    assert [contents(step.trace.prompt) for step in rollout.steps] == [
        ["Be short.", "2 + 2?"],
        ["Be short.", "2 + 2?", "4", "and 3 + 3?"],
    ]
    assert contents(rollout.conversation) == ["Be short.", "2 + 2?", "4", "and 3 + 3?", "6"]
    assert [message.role for message in rollout.conversation] == ["system", "user", "assistant", "user", "assistant"]
    assert rollout.reward == 1.5


@settings(max_examples=examples(30), deadline=None)
@given(turns=st.lists(st.lists(st.sampled_from("abc"), max_size=3), min_size=1, max_size=6), data=st.data())
def test_same_record_as_with_whole_histories(run, turns, data):
    """A loop that only adds messages leaves the same record through `append`, `prompt=`, and any mixture."""
    ways = [["append"] * len(turns), ["prompt"] * len(turns)]
    ways.append([data.draw(st.sampled_from(["append", "prompt"])) for _ in turns])
    ids = []
    for way in ways:
        history = [user("start")]
        with run.rollout(**WHICH) as r:
            r.append(history[0])
            for number, (words, how) in enumerate(zip(turns, way, strict=True)):
                added = [user(word) for word in words]
                history.extend(added)
                if how == "append":
                    r.append(added)
                    r.step(response=assistant(str(number)), reward=number)
                else:
                    r.step(history, assistant(str(number)), number)
                history.append(assistant(str(number)))
        ids.append(r.id)
    assert run.flush()
    reader = RunReader(run.path)
    records = [reader.get(rollout) for rollout in ids]
    for other in records[1:]:
        assert other.messages == records[0].messages
        assert other.steps == records[0].steps
        assert other.final == records[0].final


def test_appended_messages_are_snapshots(run):
    """A dict that is changed after `append` is recorded as it was."""
    message = {"role": "user", "content": "before", "meta": {"deep": [1]}}
    was = copy.deepcopy(message)
    with run.rollout(**WHICH) as r:
        r.append(message)
        message["content"] = "after"
        message["meta"]["deep"].append(2)
        r.step(response="ok")
    [prompt] = read(run, r.id).steps[0].trace.prompt
    assert (prompt.content, prompt.other.to_dict()) == (was["content"], {"meta": was["meta"]})


def test_response_is_not_added_twice(run):
    """Loops append the reply together with the tool's answer; the step has already added the reply."""
    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "add"}}]}
    with run.rollout(**WHICH) as r:
        r.append("2 + 2?")
        r.step(response=reply)
        r.append([reply, {"role": "tool", "tool_call_id": "1", "content": "4"}])
        r.step(response="4")
    roles = [message.role for message in read(run, r.id).conversation]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_sent_prompt_without_an_answer(run):
    """`send` without a prompt records the conversation that was sent, also if the policy never answers."""
    r = run.rollout(**WHICH)
    r.append(Message("user", "2 + 2?"))
    r.send()
    r.end(error=TimeoutError())
    assert contents(read(run, r.id).pending_messages) == ["2 + 2?"]


@pytest.mark.parametrize("trace", ["full", "off"])
def test_wrong_use_is_refused(tmp_path, trace):
    """A step without a prompt or response, and messages of the wrong type, raise at the call."""
    with rolltrace.create_run(tmp_path / "run", trace=trace) as run, run.rollout(**WHICH) as r:
        with pytest.raises(InputError, match="Expected prompt=, or messages added with `append`"):
            r.step(response="4")
        with pytest.raises(InputError, match="Expected response="):
            r.step([user("?")])
        with pytest.raises(InputError, match="Expected messages to be a list of messages, got int: 5"):
            r.append(5)
        r.append([])
        with pytest.raises(InputError, match="Expected prompt="):
            r.send()
        r.end()
        r.append("more")  # too late: it is dropped and counted
