"""Calls quote text that the record already holds, and readers get exactly what was sent."""

import sys

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

import quoting
from rollout_builders import finished, header, outcome, strict
from rolltrace.trace import quote as quote_module
from rolltrace.trace.call import Call, Quote
from rolltrace.trace.codec import add_checksum, decode_rollout, decode_score, encode_rollout, encode_score, utc_now
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.quote import TextSource, resolve_quotes, text_source
from rolltrace.trace.quote_search import add_quotes
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.score import GroupKey, Score

ANSWER = " ".join(f"Sentence {number} of the answer says something new." for number in range(200))
QUESTION = "What is there to say about sentences? Please say it at length, and leave nothing out of it."


def drafted(*calls, conversation=(), dropped=None):
    """A builder of a conversation with calls; `dropped` is a response that the conversation does not hold."""
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend(conversation or [Message("user", QUESTION), Message("assistant", ANSWER)])
    rollout_builder.mark_prompt_sent()
    if dropped is not None:
        rollout_builder.step(dropped, reward=1.0)
        rollout_builder.replace([Message("user", "something else")])
    rollout_builder.calls.extend(calls)
    return rollout_builder


def asked(*texts, role="grader", reply=None):
    """A call with a message of each text."""
    return Call(role, "judge", tuple(Message("user", text) for text in texts), reply)


def stored(rollout_builder):
    """The calls of a builder's line as they are stored."""
    return strict(rollout_builder.encode(outcome()).data)["calls"]


@given(st.data(), quoting.CONVERSATIONS, st.booleans())
def test_a_reader_gets_the_text_that_was_sent(data, conversation, drops):
    """Whatever a call quotes, it is read as it was sent; encoding it again gives the same line."""
    dropped = data.draw(quoting.messages()) if drops else None
    calls = data.draw(quoting.calls([*conversation, dropped] if drops else conversation))
    rollout_builder = drafted(*calls, conversation=conversation, dropped=dropped)
    rollout = finished(rollout_builder)
    plain = finished(drafted(conversation=conversation, dropped=dropped))
    assert rollout.calls == decode_score(encode_score(group_score(calls), quotes=False)).calls
    assert (rollout.messages, rollout.steps) == (plain.messages, plain.steps)
    assert read_calls(encode_rollout(rollout)) == rollout.calls


def read_calls(line):
    strict(line)
    return decode_rollout(line).calls


@given(st.data(), st.lists(quoting.CONVERSATIONS, min_size=1, max_size=3))
def test_a_score_quotes_the_rollouts_of_its_group(data, conversations):
    """The calls of a group's grader are read as they were sent, if the rollouts can be read."""
    members = {
        str(number): finished(drafted(conversation=conversation)) for number, conversation in enumerate(conversations)
    }
    calls = data.draw(quoting.calls([message for conversation in conversations for message in conversation]))
    score = group_score(calls)
    sources = [text_source(member, name) for name, member in members.items()]
    line = encode_score(score, sources)
    strict(line)
    assert decode_score(line, lambda name: text_source(members[name], name)) == decode_score(
        encode_score(score, quotes=False)
    )


def group_score(calls):
    key = GroupKey("train", 0, "sums", "g")
    return Score(id="s", run="r", group=key, name="group_grade", value=0.5, created_at=utc_now(), calls=tuple(calls))


@pytest.mark.parametrize(
    "template",
    [
        "<answer>\n{}\n</answer>",
        "Question: {question}\nResponse: {}\n\nGrade it.",
        "Grade this response from 0 to 1: {}",
        "Grade this response {}",
        '"{}"',
        "{}",
        "  {}  ",
        "{}{question}{}",
    ],
)
def test_a_prompt_of_any_shape_does_not_repeat_an_answer(template):
    """An answer in a user's own prompt is found and quoted, without any call by the grader."""
    sent = template.format(*[ANSWER] * 2, question=QUESTION)
    rollout_builder = drafted(asked(sent), asked(f"{sent} Again."), asked("Rules.", sent))
    assert len(str(stored(rollout_builder))) < 2_500
    assert finished(rollout_builder).calls == tuple(rollout_builder.calls)


def test_parts_of_an_answer_are_quoted_too():
    """The end of an answer, a stripped answer, reasoning, tool calls and a dropped response are quoted too."""
    said = Message("assistant", f"  {ANSWER}\n", reasoning=ANSWER[::-1], tool_calls=(ToolCall("f", f"[{ANSWER!r}]"),))
    other = Message("assistant", ANSWER.swapcase())
    rollout_builder = drafted(
        asked(f"Grade:\n{said.content.strip()}\n"), asked(f"The end is:\n{said.content[-3000:]}"),
        asked(f"It thought:\n{said.reasoning}"), asked(f"f({said.tool_calls[0].arguments})"),
        asked(f"Then:\n{other.content}", reply=replace(other, role="user")),
        conversation=[said], dropped=other,
    )  # fmt: skip
    assert all(len(str(call)) < 1_000 for call in stored(rollout_builder))
    assert finished(rollout_builder).calls == tuple(rollout_builder.calls)


def test_whole_messages_and_repeated_words_are_quoted():
    """A prompt that is the conversation itself is one quote; so is text that each call begins or ends with."""
    conversation = [Message("user", "Hi."), Message("assistant", ANSWER, tool_calls=(ToolCall("f", ANSWER),))]
    rules = Message("system", "Judge what follows. " * 10)
    rollout_builder = drafted(
        Call("grader", "judge", (rules, *conversation, Message("user", "How good?"))),
        Call("grader", "judge", (rules, *conversation, Message("user", "How bad?"))),
        conversation=conversation,
    )
    first, second = stored(rollout_builder)
    assert first["quotes"] == [{"prompt_index": 1, "message_range": [0, 2]}]
    assert [message["content"] for message in second["prompt"]] == ["How bad?"]
    assert finished(rollout_builder).calls == tuple(rollout_builder.calls)


def test_a_line_can_be_read_by_a_person():
    """The rest of a prompt stays readable, with the place of the quote in it."""
    rollout_builder = drafted(asked(f"<answer>\n{ANSWER}\n</answer>\nIs it good?"))
    [call] = stored(rollout_builder)
    assert call["prompt"] == [{"role": "user", "content": "<answer>\n\n</answer>\nIs it good?"}]
    assert call["quotes"] == [{"prompt_index": 0, "offset": 9, "message_index": 1}]


def test_calls_that_quote_nothing_are_stored_as_they_are():
    """Short text is not quoted, and a call without quotes has no such field."""
    rollout_builder = drafted(asked("Is it good?", "Yes."), conversation=[Message("user", "Is it good?")])
    assert "quotes" not in stored(rollout_builder)[0]


@pytest.mark.parametrize("unit", ["a", ".", ". ", "ab. ", "\n", " ", "word ", "Say it again, please: yes. ", "é."])
def test_hostile_text_costs_no_more_than_its_length(unit):
    """Four times the text takes at most five times the work, however repetitive it is."""

    def work(size):
        text = (unit * size)[:size]
        conversation = [Message("user", text), Message("assistant", text[1:] + "b"), Message("user", text[: size // 2])]
        calls = [asked(text + "c" + text), asked(text[5:] + "d", text), asked("e" + text[::-1])]
        return count_events(lambda: add_quotes(calls, [TextSource(None, conversation, {})]))

    work(1_000)
    assert work(40_000) <= 5 * work(10_000) + 1_000


def test_long_conversations_cost_no_more_than_their_length():
    """Four times the messages, all quoted in one prompt, take at most five times the work."""

    def work(count):
        conversation = [Message("user", f"{number} {QUESTION} {number}.") for number in range(count)]
        prompt = "\n\n".join(f"<m>\n{message.content}\n</m>" for message in conversation)
        calls = [asked(prompt), Call("opponent", "p", tuple(conversation)), asked(prompt + "?")]
        return count_events(lambda: add_quotes(calls, [TextSource(None, conversation, {})]))

    work(10)
    assert work(400) <= 5 * work(100) + 1_000


def count_events(action):
    """How many functions are called in the block: a deterministic measure of work."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


# Quotes that cannot be restored

TEXT_QUOTE = Quote(prompt_index=0, offset=2, rollout="other", message_index=0)


@pytest.mark.parametrize(
    ("quote", "why"),
    [
        (TEXT_QUOTE, "rollout other is lost"),
        (replace(TEXT_QUOTE, rollout="numbers"), "rollout numbers was recorded as numbers"),
        (
            replace(TEXT_QUOTE, rollout="numbers", offset=None, message_index=None, message_range=(0, 1)),
            "recorded as numbers",
        ),
        (replace(TEXT_QUOTE, rollout=None), "which rollout"),
        (replace(TEXT_QUOTE, rollout="here", message_index=7), "has no message 7"),
        (replace(TEXT_QUOTE, rollout="here", message_index=-1), "has no message -1"),
        (replace(TEXT_QUOTE, rollout="here", message_index=None, step=3), "step 3"),
        (replace(TEXT_QUOTE, rollout="here", tool_call_index=1), "no tool call 1"),
        (replace(TEXT_QUOTE, rollout="here", char_range=(0, 10**9)), "only 5 characters"),
        (replace(TEXT_QUOTE, rollout="here", offset=None, message_range=(0, 10**9)), "does not have messages"),
        (replace(TEXT_QUOTE, rollout=None, call_index=0), "no call 0"),
        (replace(TEXT_QUOTE, rollout=None, call_index=-1), "no call -1"),
    ],
)
def test_a_quote_that_cannot_be_restored_says_why(quote, why):
    """A placeholder replaces the missing text, and the rest of the call is kept."""
    sources = {
        "here": TextSource("here", [Message("user", "Hello")], {}),
        "numbers": TextSource("numbers", [Message("user", "hashed:100:0123456789abcdef")], {}),
    }
    call = replace(asked("ab"), quotes=(quote,))
    [read] = resolve_quotes([call], None, lambda name: sources.get(name, f"rollout {name} is lost"))
    texts = [message.content for message in read.prompt]
    assert "".join(texts).startswith("ab[text not available: " if quote.offset is not None else "[text not available: ")
    assert why in "".join(texts)
    assert read.quotes == ()


def test_a_score_that_is_read_alone_has_placeholders():
    """A line by itself never raises, and never shows a text with a silent gap."""
    member = TextSource("member", [Message("assistant", ANSWER)], {})
    line = encode_score(group_score([asked(f"Grade:\n{ANSWER}")]), [member])
    assert ANSWER.encode() not in line
    [message] = decode_score(line).calls[0].prompt
    assert message.content == "Grade:\n[text not available: rollout member is not at hand]"


def test_quotes_of_quotes_are_bounded(monkeypatch):
    """A forged line cannot make a reader assemble more text than a bound."""
    monkeypatch.setattr(quote_module, "MAX_RESTORED_CHARS", 10_000)
    twice = [Quote(prompt_index=0, offset=0, call_index=0, message_index=0)] * 2
    bomb = [asked("x" * 100), *(replace(asked(""), quotes=_of(twice, number)) for number in range(60))]
    calls = resolve_quotes(bomb, None)
    assert sum(len(message.content) for call in calls for message in call.prompt) < 30_000
    assert "come to over 10000 characters" in calls[-1].prompt[0].content


def _of(quotes, call):
    return tuple(replace(quote, call_index=call) for quote in quotes)


NUMBERS = st.none() | st.integers(-2, 3)
RANGES = st.none() | st.tuples(st.integers(-2, 9), st.integers(-2, 9))
FORGED = st.builds(
    Quote, NUMBERS, NUMBERS, st.none() | st.just("r"), *[NUMBERS] * 4, st.none() | st.booleans(), RANGES, RANGES
)


@given(st.lists(FORGED, max_size=4))
@example(
    [
        Quote(prompt_index=0, offset=-5, message_index=0),
        Quote(prompt_index=9, offset=1, message_index=0),
        Quote(offset=0, message_index=0),
    ]
)
def test_forged_quotes_never_raise(quotes):
    """A line with forged quotes is read, with placeholders if necessary."""
    rollout_builder = drafted(asked("ab", reply=Message("assistant", "cd")))
    fields = strict(rollout_builder.encode(outcome()).data)
    fields["calls"][0]["quotes"] = msgspec.to_builtins(quotes)
    del fields["crc"]
    [call] = read_calls(add_checksum(msgspec.json.encode(fields)))
    assert call.quotes == ()
    assert len(call.prompt) >= 1
