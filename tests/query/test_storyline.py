"""The order in which a rollout is told."""

from rollout_builders import finished, header
from rolltrace.query.storyline import TranscriptMessage, TranscriptNote, TranscriptStep, transcript_events
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout_builder import RolloutBuilder


def tell(fill):
    """The storyline of a rollout that a function filled."""
    rollout_builder = RolloutBuilder(header())
    fill(rollout_builder)
    return transcript_events(finished(rollout_builder))


def contents(events):
    return [event.message.content for event in events if isinstance(event, TranscriptMessage)]


def test_each_message_is_told_once_in_order():
    """However often prompts repeat the history, a message is told once, and each step after its answer."""

    def fill(rollout_builder):
        for turn in range(5):
            rollout_builder.extend([Message("user", f"question {turn}")])
            rollout_builder.mark_prompt_sent()
            rollout_builder.step(Message("assistant", f"answer {turn}"), reward=0.0)

    events = tell(fill)
    assert contents(events) == [text for turn in range(5) for text in (f"question {turn}", f"answer {turn}")]
    assert [type(event) for event in events] == [TranscriptMessage, TranscriptMessage, TranscriptStep] * 5


def test_replaced_history_is_remarked_once():
    """Where a prompt leaves out what was told before, a remark says which messages it had."""

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


def test_response_that_was_not_kept_is_told():
    """A response that the conversation did not keep is told with its step, as not kept."""

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
    """A tool's answer that the env shortens later is told once more, with the call that it answers."""

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


def test_prompt_without_an_answer_is_told():
    """What was sent where no step resulted is told, with a remark."""

    def fill(rollout_builder):
        rollout_builder.extend([Message("user", "are you there?")])
        rollout_builder.mark_prompt_sent()

    events = tell(fill)
    assert contents(events) == ["are you there?"]
    assert "no step" in events[-1].text
