"""The prompts of the answerer of twenty questions, and how its replies are parsed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.twenty_questions import ANSWERER_REMINDER, YesNoAnswer, ask_answerer, read_answer
from rolltrace.errors import PolicyError, RoleError
from rolltrace.policies.roles import with_roles
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.stop_reasons import Termination
from stage import said

YES, NO, NEITHER = YesNoAnswer.YES, YesNoAnswer.NO, YesNoAnswer.NEITHER


class InTurn(ScriptedReplies):
    """Gives its replies in turn, whatever it is asked."""

    def __init__(self, *replies):
        super().__init__(lambda _: next(self.left))
        self.left = iter(replies)


async def hear(*replies, question="Is it alive?", secret="owl", tries=2):
    with with_roles(ScriptedReplies("never asked"), answerer=InTurn(*replies)) as calls:
        heard = await ask_answerer(secret, question, tries=tries, seconds=5.0)
    return heard, calls


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: yes", YES),
        ("It has feathers.\n**Answer:** No.", NO),
        ("Answer: no\nAnswer: yes", YES),
        ("yes", YES),
        ("NO!", NO),
        ("Yes, although some say no.", YES),
        ("I would say no", NO),
        ("Neither.", NEITHER),
        ("Answer: neither", NEITHER),
        ("Answer: it is neither of these", NEITHER),
        ("Not yes, not no.", None),
        ("Answer: yes or no", YES),
        ("Answer: not sure whether yes or no", None),
        ("Answer: maybe\nBut yes.", None),
        ("The secret is an owl.", None),
        ("nobody knows, yesterday", None),
        ("", None),
        ("yes " + "x" * 100_000, None),
        ("x" * 100_000 + "\nAnswer: no", NO),
    ],
)
def test_how_a_reply_is_read(text, answer):
    """The last answer line counts, else the first word, else the only answer that is named."""
    assert read_answer(said(text)) is answer


def test_a_cut_reply_counts_only_with_its_answer_line():
    """A truncated reply has no answer unless it has an answer line."""
    assert read_answer(said("yes, one might", Termination.LENGTH)) is None
    assert read_answer(said("Answer: no\nBecause", Termination.LENGTH)) is NO


@given(st.text())
def test_any_reply_is_an_answer_or_none(text):
    """No reply makes the parser raise."""
    assert read_answer(said(text)) in (YES, NO, NEITHER, None)


async def test_it_is_asked_once_where_it_answers():
    """A readable answer takes one call, with secret and question in its prompt."""
    heard, [call] = await hear("Answer: yes")
    assert heard == (YES, 1)
    [message] = call.prompt
    assert call.role == "answerer"
    assert '"owl"' in message.content
    assert '"Is it alive?"' in message.content


async def test_it_is_asked_again_after_an_unreadable_reply():
    """The retry says so in the same conversation, and the second reply counts."""
    heard, calls = await hear("Hoot!", "no")
    assert heard == (NO, 2)
    assert [call.reply.content for call in calls] == ["Hoot!", "no"]
    assert calls[1].continues_call == 0
    assert [message.content for message in calls[1].prompt] == [ANSWERER_REMINDER]


@pytest.mark.parametrize("tries", [1, 2, 3])
async def test_unreadable_replies_end_after_the_last_try(tries):
    """After the last unreadable reply, the answer is `UNREADABLE`."""
    heard, calls = await hear(*["Hoot!"] * 5, tries=tries)
    assert heard == (YesNoAnswer.UNREADABLE, tries)
    assert len(calls) == tries


async def test_no_reply_at_all_is_raised():
    """An answerer that fails at every try raises RoleError, and does not count as unreadable."""
    with pytest.raises(RoleError, match=r"answerer.*gone"):
        await hear(PolicyError("busy"), PolicyError("gone"))


async def test_a_failed_call_is_made_again():
    """A failed call counts as a try, and not as an unreadable reply."""
    heard, calls = await hear(PolicyError("busy"), "yes")
    assert heard == (YES, 1)
    assert [call.error is None for call in calls] == [False, True]


@given(st.text(max_size=300) | st.text(alphabet='"\\\n\u2028\x85\x1b', max_size=50))
async def test_a_question_cannot_leave_its_quotation(question):
    """The player's text is one quoted line of the prompt, and decodes to the original."""
    _, [call] = await hear("yes", question=question)
    lines = call.prompt[0].content.splitlines()
    assert len(lines) == 4
    quotation = lines[2].partition(": ")[2]
    assert quotation.isprintable()
    assert json.loads(quotation) == question


async def test_a_long_question_is_passed_on_from_its_end():
    """Only the end of a long question is passed on, since the question comes last."""
    _, [call] = await hear("yes", question="x" * 1_000_000 + " Is it alive?")
    assert len(call.prompt[0].content) < 2000
    assert ' Is it alive?"' in call.prompt[0].content
