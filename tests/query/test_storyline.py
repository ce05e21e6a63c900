"""The order in which a rollout is told."""

from drafts import finished, header
from rolltrace.query.storyline import Remark, Said, Taken, storyline
from rolltrace.trace.draft import Draft
from rolltrace.trace.message import Message, ToolCall


def tell(fill):
    """The storyline of a rollout that a function filled."""
    draft = Draft(header())
    fill(draft)
    return storyline(finished(draft))


def contents(events):
    return [event.message.content for event in events if isinstance(event, Said)]


def test_each_message_is_told_once_in_order():
    """However often prompts repeat the history, a message is told once, and each step after its answer."""

    def fill(draft):
        for turn in range(5):
            draft.extend([Message("user", f"question {turn}")])
            draft.send()
            draft.step(Message("assistant", f"answer {turn}"), reward=0.0)

    events = tell(fill)
    assert contents(events) == [text for turn in range(5) for text in (f"question {turn}", f"answer {turn}")]
    assert [type(event) for event in events] == [Said, Said, Taken] * 5


def test_replaced_history_is_remarked_once():
    """Where a prompt leaves out what was told before, a remark says which messages it had."""

    def fill(draft):
        draft.extend([Message("user", "old question")])
        draft.send()
        draft.step(Message("assistant", "old answer"), reward=0.0)
        draft.replace([Message("user", "summary")])
        for turn in range(3):
            draft.extend([])
            draft.send()
            draft.step(Message("assistant", f"answer {turn}"), reward=0.0)

    events = tell(fill)
    assert contents(events) == ["old question", "old answer", "summary", "answer 0", "answer 1", "answer 2"]
    assert len([event for event in events if isinstance(event, Remark)]) == 1


def test_response_that_was_not_kept_is_told():
    """A response that the conversation did not keep is told with its step, as not kept."""

    def fill(draft):
        draft.extend([Message("user", "question")])
        draft.send()
        draft.step(Message("assistant", "<tool>broken"), reward=0.0)
        draft.replace([Message("user", "question"), Message("assistant", "edited")])

    events = tell(fill)
    assert contents(events) == ["question", "<tool>broken", "edited"]
    [not_kept] = [event for event in events if isinstance(event, Said) and event.index is None]
    assert not_kept.step == 0


def test_answers_find_their_calls():
    """Tools' answers are paired with calls by id, in any order; one without an id takes the first open call."""

    def fill(draft):
        draft.extend([Message("user", "go")])
        draft.send()
        calls = (ToolCall("add", "{}", "x"), ToolCall("mul", "{}", "y"))
        draft.step(Message("assistant", "", tool_calls=calls), reward=0.0)
        draft.extend([Message("tool", "6", tool_call_id="y"), Message("tool", "5", tool_call_id="x")])
        draft.send()
        draft.step(Message("assistant", "", tool_calls=(ToolCall("add"),)), reward=0.0)
        draft.extend([Message("tool", "7"), Message("tool", "8", tool_call_id="never asked")])

    said = [event for event in tell(fill) if isinstance(event, Said)]
    assert [event.calls for event in said if event.calls] == [(1, 2), (3,)]
    assert {event.message.content: event.answers for event in said if event.message.role == "tool"} == {
        "6": 2, "5": 1, "7": 3, "8": None,
    }  # fmt: skip


def test_an_edited_answer_still_answers_its_call():
    """A tool's answer that the env shortens later is told once more, with the call that it answers."""

    def fill(draft):
        user, call = Message("user", "go"), ToolCall("read", "", "x")
        answer = Message("assistant", "", tool_calls=(call,))
        draft.extend([user])
        draft.send()
        draft.step(answer, reward=0.0)
        draft.extend([Message("tool", "a long page", tool_call_id="x")])
        draft.send()
        draft.step(Message("assistant", "hm"), reward=0.0)
        shortened = Message("tool", "a l…", tool_call_id="x")
        draft.replace([user, answer, shortened, Message("assistant", "hm"), Message("user", "well?")])
        draft.send()
        draft.step(Message("assistant", "yes"), reward=0.0)

    said = [event for event in tell(fill) if isinstance(event, Said)]
    assert {event.message.content: event.answers for event in said if event.message.role == "tool"} == {
        "a long page": 1, "a l…": 1,
    }  # fmt: skip


def test_prompt_without_an_answer_is_told():
    """What was sent where no step resulted is told, with a remark."""

    def fill(draft):
        draft.extend([Message("user", "are you there?")])
        draft.send()

    events = tell(fill)
    assert contents(events) == ["are you there?"]
    assert "no step" in events[-1].text
