"""A question that is retried until its reply can be parsed."""

import asyncio

import pytest

from rolltrace.errors import ContextOverflowError, GraderError, InputError, PolicyError
from rolltrace.graders.retrying_question import GRADER_SAMPLING, AskSettings, RetryingQuestion, ask_all
from rolltrace.policies.roles import with_roles
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message, Sampling, ToolCall
from stage import never

CORRECTION = "No: {problem}."


def read(completion):
    """Accepts capitals only."""
    if not completion.message.content.isupper():
        raise GraderError(f"{completion.message.content[:9]!r} {{is}} small")
    return completion.message.content


def question(text="Say it.", about=None, **settings):
    return RetryingQuestion(AskSettings(**settings), [Message("user", text)], read, CORRECTION, about=about)


class InTurn(ScriptedReplies):
    """Gives its replies in turn, and keeps its requests."""

    def __init__(self, *replies):
        self.requests = []
        self.left = iter(replies)
        super().__init__(self._next)

    def _next(self, request):
        self.requests.append(request)
        reply = next(self.left)
        return reply(request) if callable(reply) else reply


async def settle(inquiry, *replies):
    """Runs the question with these replies in turn; returns the policy and the calls."""
    policy = InTurn(*replies)
    with with_roles(ScriptedReplies("not me"), grader=policy) as calls:
        await inquiry.run()
    return policy, calls


async def test_a_reply_that_can_be_read_settles_it():
    """One readable reply takes one call, with the question's `about` and settings."""
    inquiry = question(about="it")
    policy, [call] = await settle(inquiry, "YES")
    assert inquiry.result("a word") == "YES"
    assert (inquiry.attempts, inquiry.replies, inquiry.has_tries_left) == (1, 1, False)
    assert (call.role, call.about, call.prompt) == ("grader", "it", (Message("user", "Say it."),))
    assert policy.requests[0].sampling == GRADER_SAMPLING == Sampling(temperature=0.0, max_tokens=1024)


async def test_an_unreadable_reply_is_corrected():
    """The retry continues the conversation with the reply and its problem; every call has the same `about`."""
    inquiry = question(about="it")
    policy, calls = await settle(inquiry, "no", "nor", "YES")
    assert (inquiry.result("a word"), inquiry.attempts, inquiry.replies) == ("YES", 3, 3)
    assert [call.continues_call for call in calls] == [None, 0, 1]
    assert [call.about for call in calls] == ["it"] * 3
    assert [message.content for message in policy.requests[2].messages] == [
        "Say it.", "no", "No: 'no' {is} small.", "nor", "No: 'nor' {is} small.",
    ]  # fmt: skip


async def test_an_unrequested_tool_call_is_not_sent_back():
    """Servers refuse a call without an answer, so the retry leaves it out; the record keeps it."""
    called = Message("assistant", "hm", tool_calls=(ToolCall("x"),))
    policy, calls = await settle(question(), called, "YES")
    assert policy.requests[1].messages[1] == Message("assistant", "hm")
    assert calls[0].reply == called


async def test_only_the_end_of_a_long_reply_is_sent_back():
    """An endless reply must not fill the context of the next try."""
    policy, calls = await settle(question(), "x" * 1_000_000 + "end", "YES")
    back = policy.requests[1].messages[1]
    assert (len(back.content), back.content[-4:]) == (10_000, "xend")
    assert len(calls[0].reply.content) == 1_000_003


@pytest.mark.parametrize("failed", [PolicyError("busy"), ValueError("busy"), never])
async def test_a_failed_call_is_made_again(failed):
    """A failed call counts as a try, and the next try repeats the same conversation."""
    inquiry = question(tries=2, seconds=5.0)
    _, calls = await settle(inquiry, failed, "YES")
    assert (inquiry.result("a word"), inquiry.attempts, inquiry.replies) == ("YES", 2, 1)
    assert calls[0].error is not None
    assert calls[1].prompt == calls[0].prompt


@pytest.mark.parametrize("tries", [1, 2, 4])
async def test_the_tries_run_out(tries):
    """Unreadable replies and failures count alike; the error has their number and the last problem."""
    inquiry = question(tries=tries)
    _, calls = await settle(inquiry, *([PolicyError("busy"), "no"] * 2)[-tries:], "YES")
    assert (len(calls), inquiry.attempts) == (tries, tries)
    with pytest.raises(GraderError) as caught:
        inquiry.result("a word")
    assert (
        str(caught.value) == f"Expected a word, got none in {tries} tr{'y' if tries == 1 else 'ies'}: 'no' {{is}} small"
    )
    assert caught.value.__cause__ is inquiry.outcome


async def test_an_overflow_is_not_retried():
    """A prompt that does not fit will not fit at the next try, be it the first or a later one."""
    for before in ([], ["no"]):
        inquiry = question(tries=5)
        _, calls = await settle(inquiry, *before, ContextOverflowError("too long"), "YES")
        assert len(calls) == len(before) + 1
        with pytest.raises(GraderError, match=rf"got none in {len(calls)} tr.*too long"):
            inquiry.result("a word")


async def test_a_role_without_a_policy_is_not_retried():
    """Outside a runner and `with_roles` the role has no policy, so the question is asked once."""
    inquiry = question(tries=5)
    await inquiry.run()
    with pytest.raises(GraderError, match="got none in 1 try: No policy plays the role 'grader' here"):
        inquiry.result("a word")


async def test_a_question_that_was_not_asked_has_no_answer():
    """The result of a question that was never run is an error that says so."""
    with pytest.raises(GraderError, match="the question was not asked"):
        question().result("a word")


async def test_all_are_asked_at_once_and_in_rounds():
    """All questions of a round are asked at once, and the order of calls does not depend on how long replies take."""
    everyone = asyncio.Barrier(3)
    first_is_asked_again = asyncio.Event()

    async def reply(request):
        text = request.messages[0].content
        if len(request.messages) == 1:
            await everyone.wait()
            if text == "a":  # the slowest of the first round is still the first of the second
                for _ in range(20):
                    await asyncio.sleep(0)
            return "no" if text != "b" else "B"
        if text == "a":
            first_is_asked_again.set()
        await first_is_asked_again.wait()
        return text.upper()

    inquiries = [question(text, about=text) for text in "abc"]
    with with_roles(ScriptedReplies("not me"), grader=ScriptedReplies(reply)) as calls:
        await ask_all(inquiries)
    assert [inquiry.result("a letter") for inquiry in inquiries] == ["A", "B", "C"]
    assert [call.about for call in calls] == ["a", "b", "c", "a", "c"]


async def test_a_failed_question_leaves_the_others_alone():
    """One question that runs out of tries does not affect another."""

    def reply(request):
        return PolicyError("busy") if request.messages[0].content == "a" else "YES"

    lost, kept = question("a", tries=2), question("b", tries=2)
    with with_roles(ScriptedReplies("not me"), grader=ScriptedReplies(reply)):
        await ask_all([lost, kept])
    assert (kept.result("a word"), lost.attempts, kept.attempts) == ("YES", 2, 1)
    with pytest.raises(GraderError, match="busy"):
        lost.result("a word")


async def test_a_cancelled_question_is_not_retried():
    """A question that is cancelled while it waits does not try again."""
    asked = asyncio.Event()

    async def wait(request):
        asked.set()
        await asyncio.Event().wait()

    with with_roles(ScriptedReplies("not me"), grader=ScriptedReplies(wait)) as calls:
        task = asyncio.create_task(question().run())
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(calls) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"tries": 0},
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"sampling": Sampling(max_tokens=0)},
        {"sampling": Sampling(max_tokens=-1)},
    ],
)
def test_settings_that_cannot_work(settings):
    """Settings without tries, time or tokens are refused at once."""
    with pytest.raises(InputError, match="Expected"):
        question(**settings)


def test_no_limit_is_allowed():
    """None means no limit of time or tokens."""
    assert question(seconds=None, sampling=Sampling()).has_tries_left
