"""The text that graders quote is stored once, and every reader of a run gets all of it."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quoting
from examples import examples
from rolltrace.envs.prompt_only import PromptOnlyGroup
from rolltrace.graders.grader import Grader
from rolltrace.graders.preference_grader import PreferenceGrader
from rolltrace.graders.rubric_grader import Criterion, RubricGrader
from rolltrace.policies.roles import ask
from rolltrace.query.run import open_run
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.reader import RunReader
from rolltrace.store.recording import Recording
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message
from rolltrace.trace.score import Grade
from rolltrace.trace.text_transform import hash_text

CRITERIA = (Criterion("It is right in what it says, from start to end."), Criterion("It is clear to everybody."))


def answer(index):
    """A long answer, different for each index."""
    return " ".join(f"Sentence {number} of answer {index} says something new, at some length." for number in range(120))


class OwnGrader(Grader):
    """A user's grader, which puts the answer into its own prompt."""

    async def grade(self, rollout):
        said = rollout.steps[-1].trace.policy_response.content
        for question in ("Is it true", "Is it kind"):
            await ask("grader", [{"role": "user", "content": f"{question}? ANSWER={said} -- yes or no"}])
        return Grade(1.0)


GRADERS = {
    "rubric": {"grader": RubricGrader(CRITERIA)},
    "tournament": {"group_grader": PreferenceGrader()},
    "own": {"grader": OwnGrader()},
}


async def play(path, kind, size=4, **recording):
    """Plays a group with a grader; returns every prompt that the grader was sent, in order."""
    sent = []

    def reply(request):
        if request.role != "grader":
            return answer(request.identity.index)
        sent.append(request.messages)
        return f"Verdict {len(sent)}.\n{'Preference' if kind == 'tournament' else 'Score'}: 0.5"

    builder = PromptOnlyGroup(
        env="e", task="t", messages="Please write a very long answer about anything.", episodes=size, **GRADERS[kind]
    )
    if path is None:
        sink = MemorySink()
        async for _ in Runner(ScriptedReplies(reply), sink=sink).play([builder]):
            pass
        return sent, sink
    with create_run(path, trace=Recording(**recording)) as run:
        async for _ in Runner(ScriptedReplies(reply), sink=run).play([builder]):
            pass
    return sent, None


def all_bytes(path):
    return b"".join(
        file.read_bytes() for folder in ("rollouts", "scores") for file in sorted((path / folder).iterdir())
    )


def texts(calls):
    """The texts of calls, sorted: those of one group are made concurrently."""
    return sorted("\0".join(message.content for message in call.prompt) for call in calls)


@pytest.mark.parametrize("kind", GRADERS)
async def test_an_answer_is_on_disk_once(tmp_path, kind):
    """Whatever the grader, each answer is stored once, and each prompt is read as it was sent."""
    path = tmp_path / "run"
    sent, _ = await play(path, kind)
    for index in range(4):
        assert all_bytes(path).count(answer(index)[:500].encode()) == 1
        assert all_bytes(path).count(answer(index)[-500:].encode()) == 1
    expected = sorted("\0".join(message.content for message in prompt) for prompt in sent)
    with RunReader(path) as reader:
        assert texts(call for record in (*reader.rollouts(), *reader.scores()) for call in record.calls) == expected
    with open_run(path) as run:
        assert texts(call for record in (*run.rollouts(), *run.scores()) for call in record.calls) == expected
        rows = [json.loads(prompt) for (prompt,) in run.sql("select prompt from calls").fetchall()]
    assert sorted("\0".join(message["content"] for message in prompt) for prompt in rows) == expected


@pytest.mark.parametrize("kind", GRADERS)
async def test_calls_in_memory_are_whole(kind):
    """Records in a memory sink have the whole text too."""
    sent, sink = await play(None, kind)
    expected = sorted("\0".join(message.content for message in prompt) for prompt in sent)
    assert texts(call for record in (*sink.rollouts, *sink.scores) for call in record.calls) == expected


async def test_a_run_that_is_followed_gives_whole_scores(tmp_path):
    """Following a run restores quotes as reading it does."""
    sent, _ = await play(tmp_path / "run", "tournament")

    class Over:
        def is_set(self):
            return True

        def wait(self, timeout=None):
            return True

    expected = sorted("\0".join(message.content for message in prompt) for prompt in sent)
    with open_run(tmp_path / "run") as run:
        assert texts(call for score in run.follow("scores", stop=Over()) for call in score.calls) == expected


async def test_a_rollout_that_is_missing_leaves_a_placeholder(tmp_path):
    """If a quoted line is missing or damaged, the rest of the prompt is returned with a placeholder."""
    path = tmp_path / "run"
    await play(path, "tournament")
    [file] = (path / "rollouts").iterdir()
    first, *lines = file.read_bytes().splitlines(keepends=True)
    missing, index = json.loads(first)["id"], json.loads(first)["index"]
    file.write_bytes(b"".join(lines))
    with open_run(path) as run:
        prompts = [message.content for score in run.scores() for call in score.calls for message in call.prompt]
        rows = [prompt for (prompt,) in run.sql("select prompt from calls").fetchall()]
    for found in (prompts, rows):
        assert any(f"[text not available: rollout {missing} is not in this run]" in text for text in found)
        assert not any(answer(index) in text for text in found)
        assert any(answer((index + 1) % 4) in text for text in found)
    file.write_bytes(first.replace(b"Sentence 7 ", b"Sentence 8 ") + b"".join(lines))
    with RunReader(path) as reader:
        prompts = [message.content for score in reader.scores() for call in score.calls for message in call.prompt]
    assert any(f"[text not available: rollout {missing} " in text for text in prompts)


@pytest.mark.parametrize("kind", GRADERS)
async def test_calls_can_be_left_out(tmp_path, kind):
    """With `calls=False`, rewards and grades are still recorded."""
    path = tmp_path / "run"
    await play(path, kind, calls=False)
    assert b"Verdict" not in all_bytes(path)
    with open_run(path) as run:
        assert run.sql("select count(*) from calls").fetchone() == (0,)
        assert run.sql("select count(reward) from rollouts").fetchone() == (4,)


async def test_the_environment_can_leave_calls_out(tmp_path, monkeypatch):
    """`ROLLTRACE_TRACE_CALLS=0` leaves calls out."""
    monkeypatch.setenv("ROLLTRACE_TRACE_CALLS", "0")
    await play(tmp_path / "run", "rubric")
    assert b"Verdict" not in all_bytes(tmp_path / "run")


@pytest.mark.parametrize("kind", GRADERS)
async def test_numbers_keep_no_text_of_calls(tmp_path, kind):
    """At level `numbers`, each message of a call is recorded as length and hash, like any other."""
    path = tmp_path / "run"
    sent, _ = await play(path, kind, level="numbers")
    assert b"Sentence" not in all_bytes(path)
    with RunReader(path) as reader:
        found = texts(call for record in (*reader.rollouts(), *reader.scores()) for call in record.calls)
    assert found == sorted("\0".join(hash_text(message.content) for message in prompt) for prompt in sent)


# Redaction


class Counting:
    """Redacts differently each time, and keeps what it returned."""

    def __init__(self):
        self.returned = []

    def __call__(self, value):
        if not isinstance(value, Message):
            return value
        self.returned.append(Message(value.role, f"{len(self.returned)} {value.content}"))
        return self.returned[-1]


def marking(value):
    """Marks whole messages, so that a quote in a prompt is no longer the text of a message."""
    return Message(value.role, f"[{value.content}]") if isinstance(value, Message) else value


def hiding(value):
    """Hides a word wherever it is."""
    return Message(value.role, re.sub("[aeé法]", "*", value.content)) if isinstance(value, Message) else value


def only_users(value):
    """Redacts messages of users and no others, so that a quote and its source differ."""
    return Message("user", "gone") if isinstance(value, Message) and value.role == "user" else value


def shifting(value):
    """Shifts all text by some characters."""
    return Message(value.role, value.content[3:] + "xyz") if isinstance(value, Message) else value


def identity(value):
    return value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(
    st.data(),
    st.lists(quoting.CONVERSATIONS, min_size=1, max_size=2),
    st.sampled_from([marking, hiding, only_users, shifting, identity]),
)
def test_redaction_is_exact(tmp_path_factory, data, conversations, redact):
    """For any redact function, a reader gets its result for each message that was sent."""
    everything = [message for conversation in conversations for message in conversation]
    calls, own = data.draw(quoting.calls(everything)), data.draw(quoting.calls(conversations[0]))
    path = tmp_path_factory.mktemp("redacted") / "run"
    plain = tmp_path_factory.mktemp("plain") / "run"
    quoting.record(path, redact, conversations, calls, own)
    quoting.record(plain, None, conversations, calls, own)
    with RunReader(path) as reader, RunReader(plain) as sent:
        for found, given in ((reader.rollouts, sent.rollouts), (reader.scores, sent.scores)):
            for one, other in zip(found(), given(), strict=True):
                assert quoting.said(one.calls) == [redact(message) for message in quoting.said(other.calls)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
@given(st.data(), quoting.CONVERSATIONS)
def test_an_inconsistent_redaction_is_exact(tmp_path_factory, data, conversation):
    """The function's result for a call is read, also if it returned something else for the quoted message."""
    calls = data.draw(quoting.calls(conversation))
    path = tmp_path_factory.mktemp("redacted") / "run"
    redact = Counting()
    quoting.record(path, redact, [conversation], calls, [])
    with RunReader(path) as reader:
        [score] = reader.scores()
    sent = quoting.said(calls)
    assert quoting.said(score.calls) == redact.returned[len(redact.returned) - len(sent) :]


async def test_no_secret_survives_through_a_quote(tmp_path):
    """A secret that is redacted in a message is in no call that quotes it, on disk or when read."""

    def redact(value):
        if isinstance(value, Message):
            return Message(value.role, value.content.replace("Sentence 7 ", "[secret] "))
        return value

    path = tmp_path / "run"
    sent, _ = await play(path, "tournament", redact=redact)
    assert b"Sentence 7 " not in all_bytes(path)
    expected = sorted("\0".join(redact(message).content for message in prompt) for prompt in sent)
    with RunReader(path) as reader:
        assert texts(call for score in reader.scores() for call in score.calls) == expected
    for index in range(4):  # and what is left of an answer is still stored once
        assert all_bytes(path).count(answer(index)[-500:].encode()) == 1
