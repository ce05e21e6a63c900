"""Conversations, calls that quote them in every way (whole, in part, side by side, not at all), and runs of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rolltrace.store.create import create_run
from rolltrace.store.recording import Recording
from rolltrace.trace.call import Call
from rolltrace.trace.codec import utc_now
from rolltrace.trace.ids import new_id
from rolltrace.trace.message import Message, ToolCall
from rolltrace.trace.rollout import Header, Outcome
from rolltrace.trace.score import GroupKey, Score
from rolltrace.trace.stop_reasons import Status, StoppedBy

KEY = GroupKey("train", 0, "e", "g")

PARAGRAPHS = (
    "The quick brown fox jumps over the lazy dog, and then it thinks about what it did. Was it right? Time will tell.",
    "Größe zählt nicht: über sieben Brücken mußt du gehn, sieben dunkle Jahre überstehn, siebenmal wirst du … sein!",
    "\u5929\u5730\u7384\u9ec4\uff0c\u5b87\u5b99\u6d2a\u8352\u3002" * 9,
    "\n\n  def f(x):\n      return {'a': [x, x + 1], \"b\": x}  # a comment, as long as a quote must be\n\n",
    "a" * 200,
    "." * 150,
    "hashed:" + "1" * 60 + ":0123456789abcdef",
    "\ud83d\ude00 a pair of surrogates that UTF-8 joins, and text after it which is long enough: 0123456789 0123456789",
    "a lone \udfff one, followed by text that is long enough to be worth a quote of its own. 0123456789 0123456789",
    "😀 characters beyond the first plane, 😀😀 more of them, and words that follow: enough to be worth a quote.",
)
SHORT = ("", "Yes.", "x", "\n", "Score: 1", "hashed:5:0123456789abcdef")

TEXTS = st.lists(st.sampled_from((*PARAGRAPHS, *SHORT)), max_size=4).map("".join)
ROLES = st.sampled_from(["user", "assistant", "system"])


@st.composite
def messages(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> Message:
    """A message, at times with reasoning and tool calls."""
    calls = draw(st.lists(st.builds(ToolCall, st.just("f"), texts), max_size=1))
    return Message(draw(ROLES), draw(texts), tool_calls=tuple(calls), reasoning=draw(st.none() | texts))


CONVERSATIONS = st.lists(messages(), min_size=1, max_size=5)


def quoting(conversation: list[Message]) -> st.SearchStrategy[str]:
    """Texts that quote a conversation: pieces of it, cut anywhere, between words of their own."""
    said = [message.content for message in conversation]
    said += [message.reasoning or "" for message in conversation]
    said += [call.arguments for message in conversation for call in message.tool_calls]
    places = st.integers(0, 300)
    pieces = st.builds(lambda text, first, last: text[first:last], st.sampled_from(said), places, places)
    own = st.sampled_from(
        ["<answer>\n", "\n</answer>\n\n", "Answer: ", "Answer ", '"', "How good is this?", *PARAGRAPHS]
    )
    return st.lists(st.one_of(st.sampled_from(said), pieces, own), max_size=7).map("".join)


@st.composite
def calls(draw: st.DrawFn, conversation: list[Message]) -> list[Call]:
    """Calls about a conversation."""
    quotes = quoting(conversation)
    prompts = st.lists(st.one_of(st.sampled_from(conversation), messages(quotes)), max_size=4)
    whole = st.just(conversation)
    replies = st.none() | messages(quotes)
    made = st.builds(
        lambda role, prompt, reply: Call(role, "judge", tuple(prompt), reply),
        st.sampled_from(["grader", "opponent"]), prompts | whole, replies,
    )  # fmt: skip
    return draw(st.lists(made, max_size=4))


def record(
    path: Path,
    redact: Callable[[Any], Any] | None,
    conversations: Sequence[Sequence[Message]],
    calls: Sequence[Call],
    own_calls: Sequence[Call],
) -> None:
    """Record a group as a runner does: its members with calls of their own, then a score with calls."""
    with create_run(path, trace=Recording(redact=redact)) as run:
        rollout_builders = []  # a runner keeps them until the group is graded
        for index, conversation in enumerate(conversations):
            which: dict[str, Any] = {"env": KEY.env, "task": "t", "group": KEY.group, "index": index}
            rollout_builder = run.begin(
                Header(id=new_id(), run=run.run, session=run.session, started_at=utc_now(), **which)
            )
            rollout_builder.extend(conversation)
            rollout_builder.calls.extend(own_calls)
            rollout_builders.append(rollout_builder)
            run.end(
                rollout_builder,
                Outcome(
                    ended_at=utc_now(), status=Status.OK, stop_reason="completed", stopped_by=StoppedBy.ENV, error=None,
                    reward=None, reward_so_far=0.0, unclamped_reward=None,
                ),
            )  # fmt: skip
        run.write_score(
            Score(
                id=new_id(), run=run.run, session=run.session, group=KEY, name="group_grade", value=1.0,
                created_at=utc_now(), calls=tuple(calls),
            )
        )  # fmt: skip


def said(calls: Sequence[Call]) -> list[Message]:
    """All messages of calls."""
    return [message for call in calls for message in (*call.prompt, call.reply) if message is not None]
