"""The order of a rollout's transcript."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_builders import finished, header
from rolltrace.envs.env import Env, Observation, StepResult
from rolltrace.errors import ContextOverflowError
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.transcript import (
    TranscriptMessage,
    TranscriptNote,
    TranscriptStep,
    messages_in_order,
    shared_prompt,
    transcript_events,
)
from stage import MEDDLINGS, Meddling, Remembering, Stage, said


def growing(turns):
    """A rollout whose conversation only grows."""
    rollout_builder = RolloutBuilder(header())
    for turn in range(turns):
        rollout_builder.extend([Message("user", f"question {turn}")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", f"answer {turn}"), reward=0.0)
    return finished(rollout_builder)


def tell(fill):
    """The transcript of a rollout that a function filled."""
    rollout_builder = RolloutBuilder(header())
    fill(rollout_builder)
    return transcript_events(finished(rollout_builder))


def contents(events):
    return [event.message.content for event in events if isinstance(event, TranscriptMessage)]


def test_each_message_is_shown_once_in_order():
    """However often prompts repeat the history, a message occurs once, and each step after its answer."""
    events = transcript_events(growing(5))
    assert contents(events) == [text for turn in range(5) for text in (f"question {turn}", f"answer {turn}")]
    assert [type(event) for event in events] == [TranscriptMessage, TranscriptMessage, TranscriptStep] * 5


def test_replaced_history_is_remarked_once():
    """If a prompt leaves out earlier messages, a remark says which messages it had."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "old question")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "old answer"), reward=0.0)
        rollout_builder.replace([Message("user", "summary")])
        for turn in range(3):
            rollout_builder.extend([])
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", f"answer {turn}"), reward=0.0)

    events = tell(fill)
    assert contents(events) == ["old question", "old answer", "summary", "answer 0", "answer 1", "answer 2"]
    assert len([event for event in events if isinstance(event, TranscriptNote)]) == 1


def test_response_that_was_not_kept_is_shown():
    """A response that the conversation did not keep is in its step, marked as not kept."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "question")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "<tool>broken"), reward=0.0)
        rollout_builder.replace([Message("user", "question"), Message("assistant", "edited")])

    events = tell(fill)
    assert contents(events) == ["question", "<tool>broken", "edited"]
    [not_kept] = [event for event in events if isinstance(event, TranscriptMessage) and event.index is None]
    assert not_kept.step == 0


def test_answers_find_their_calls():
    """Tools' answers are paired with calls by id, in any order; one without an id takes the first open call."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "go")])
        rollout_builder.mark_prompt_sent()
        calls = (ToolCall("add", "{}", "x"), ToolCall("mul", "{}", "y"))
        rollout_builder.step(Message("assistant", "", tool_calls=calls), reward=0.0)
        rollout_builder.extend([Message("tool", "6", tool_call_id="y"), Message("tool", "5", tool_call_id="x")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "", tool_calls=(ToolCall("add"),)), reward=0.0)
        rollout_builder.extend([Message("tool", "7"), Message("tool", "8", tool_call_id="never asked")])

    said = [event for event in tell(fill) if isinstance(event, TranscriptMessage)]
    assert [event.call_numbers for event in said if event.call_numbers] == [(1, 2), (3,)]
    assert {event.message.content: event.answers_call for event in said if event.message.role == "tool"} == {
        "6": 2, "5": 1, "7": 3, "8": None,
    }  # fmt: skip


def test_an_edited_answer_still_answers_its_call():
    """A tool's answer that the env shortens later is shown again, with the call that it answers."""

    def fill(rollout_builder):
        user, call = Message("user", "go"), ToolCall("read", "", "x")
        answer = Message("assistant", "", tool_calls=(call,))
        rollout_builder.extend([user])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(answer, reward=0.0)
        rollout_builder.extend([Message("tool", "a long page", tool_call_id="x")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "hm"), reward=0.0)
        shortened = Message("tool", "a l…", tool_call_id="x")
        rollout_builder.replace([user, answer, shortened, Message("assistant", "hm"), Message("user", "well?")])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "yes"), reward=0.0)

    said = [event for event in tell(fill) if isinstance(event, TranscriptMessage)]
    assert {event.message.content: event.answers_call for event in said if event.message.role == "tool"} == {
        "a long page": 1, "a l…": 1,
    }  # fmt: skip


def test_prompt_without_an_answer_is_shown():
    """A prompt without a step is shown, with a remark."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "are you there?")])
        rollout_builder.mark_prompt_sent()

    events = tell(fill)
    assert contents(events) == ["are you there?"]
    assert "no step" in events[-1].text


@given(st.data())
def test_a_note_precedes_each_prompt_that_lacks_messages_of_the_previous_one(data):
    """Whatever ranges a prompt has, there is a note if it lacks a message of the previous prompt or its response."""
    rollout = growing(6)
    index = st.integers(0, len(rollout.messages))
    ranges = st.lists(st.tuples(index, index).map(sorted).map(tuple), max_size=4).map(tuple)
    prompts = [data.draw(ranges) for _ in rollout.steps]
    steps = [msgspec.structs.replace(step, prompt=prompt) for step, prompt in zip(rollout.steps, prompts, strict=True)]
    rollout = msgspec.structs.replace(rollout, steps=tuple(steps), final=())
    expected, emitted, previous = [], set(), set()
    for step in rollout.steps:
        prompt = {index for first, last in step.prompt for index in range(first, last)}
        if previous - prompt:
            expected.append(step.step)
        emitted |= prompt
        previous = prompt | ({step.response} - emitted)
        emitted.add(step.response)
    notes = [event.text for event in transcript_events(rollout) if isinstance(event, TranscriptNote)]
    assert [int(note.split()[2]) for note in notes if note.startswith("Here")] == expected


def test_a_long_rollout_takes_linear_time():
    """20,000 turns take a fraction of a second; quadratic time would take many seconds."""
    rollout = growing(20_000)
    started = time.process_time()
    transcript_events(rollout)
    assert time.process_time() - started < 3


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=4))
def test_shared_prompt_is_the_longest_that_all_begin_with(prompts):
    """The shared prompt begins every prompt, and no longer one does."""
    rollouts = []
    for index, prompt in enumerate(prompts):
        rollout_builder = RolloutBuilder(header(index=index))
        rollout_builder.extend([Message("user", text) for text in prompt])
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", "answer"), reward=0.0)
        rollouts.append(finished(rollout_builder))
    shared = [message.content for message in shared_prompt(rollouts)]
    assert all(prompt[: len(shared)] == shared for prompt in prompts)
    longer = {tuple(prompt[: len(shared) + 1]) for prompt in prompts}
    assert len(longer) > 1 or any(len(prompt) == len(shared) for prompt in prompts)


class Forgetting(Env):
    """Replaces the whole history at each turn."""

    def __init__(self, name="one"):
        self.name = name
        self.turn = 0

    async def initial_observation(self):
        return Observation([Message("system", "Rules."), Message("user", f"Start, {self.name}.")])

    async def step(self, completion):
        self.turn += 1
        following = Observation([Message("user", f"Turn {self.turn}.")], replaces_history=True)
        return StepResult(0.0, self.turn == 2, following)


async def play(*envs, policy=None):
    sink = MemorySink()
    stage = Stage(lambda number: envs[number], episodes=len(envs))
    policy = policy or Remembering(said("first"), said("second"), said("third"))
    async for _ in Runner(policy, sink=sink).play([stage]):
        pass
    return sorted(sink.rollouts, key=lambda rollout: rollout.index)


def texts(messages):
    return [message.content for message in messages]


async def test_a_growing_conversation_is_in_order():
    """The messages in order are the conversation: nothing is missing or repeated."""
    [rollout] = await play(Meddling("not at all"))
    assert messages_in_order(rollout) == rollout.conversation


async def test_replaced_history_stays_in_order():
    """Responses that no later prompt contains are in their place."""
    [rollout] = await play(Forgetting())
    assert texts(messages_in_order(rollout)) == ["Rules.", "Start, one.", "first", "Turn 1.", "second", "Turn 2."]


@pytest.mark.parametrize("meddling", MEDDLINGS)
async def test_every_response_is_in_order(meddling):
    """Whatever an env does to its history, the messages begin with the first prompt and contain each response."""
    [rollout] = await play(Meddling(meddling))
    messages = messages_in_order(rollout)
    first = rollout.steps[0].trace.prompt
    assert messages[: len(first)] == first
    responses = [step.trace.policy_response for step in rollout.steps]
    assert [message for message in messages if message in responses] == responses


async def test_a_rollout_without_steps_has_no_messages_in_order():
    """A grader that asks for the messages gets none if the policy never answered."""
    [rollout] = await play(Meddling(), policy=Remembering(ContextOverflowError("too long")))
    assert (rollout.steps, messages_in_order(rollout)) == ((), ())


async def test_shared_prompt_of_two_tasks():
    """Rollouts of the same task share the whole prompt, others its beginning."""
    one, same, other = await play(Forgetting("one"), Forgetting("one"), Forgetting("two"))
    assert texts(shared_prompt([one, same])) == ["Rules.", "Start, one."]
    assert texts(shared_prompt([one, other])) == ["Rules."]
