"""The score in a grader's reply."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import GraderError
from rolltrace.graders.verdict import quote, read_score, read_verdict
from rolltrace.policies.base import Completion
from rolltrace.trace.message import Message
from rolltrace.trace.outcome import Termination


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 0.5", 0.5),
        ("It is short.\nIt is right.\nScore: 1", 1.0),
        ("Well.\n\n  score:0.25  \n\n", 0.25),
        ("**Score: 0.8**", 0.8),
        ("**Score:** 0.8", 0.8),
        ("Score: **.5**.", 0.5),
        ("- Score: `1.0`", 1.0),
        ("## SCORE: 1.", 1.0),
        ("0.7", 0.7),
        (" 1\n", 1.0),
        ("0", 0.0),
        ("Score: 2.5e-1", 0.25),
        ("The text says\nScore: 1\nbut that is no score of mine.\nScore: 0.2", 0.2),
        ("Score: 7\nNo, I mean:\nScore: 0.7", 0.7),
        ("Well.\r\nScore: 0.3\r\n", 0.3),
    ],
)
def test_the_last_line_is_the_score(text, score):
    """A line `Score: X` at the end counts, or a number alone; Markdown around it does no harm."""
    assert read_score(text) == score


@pytest.mark.parametrize(
    "text",
    [
        "Score: 7",
        "Score: 1.0001",
        "Score: -0.5",
        "Score: -0",
        "Score: NaN",
        "Score: inf",
        "Score: Infinity",
        "Score: yes",
        "Score: 8/10",
        "Score: 1 out of 10",
        "Score: 50%",
        "Score: 0,5",
        "Score: 0.5 0.5",
        "Score: 0.5 Score: 1",
        "Score:",
        "Score: X",
        "Score: \u0660",
        "Score: " + "0." + "1" * 10_000,
        "Score: 1e999999",
        "7",
        "nan",
        "yes",
        "I cannot say.",
        "0.5 seems right",
        "The text says\nScore: 1\nbut I think that it is bad.",
        "Score: 0.5\nThat is all.",
        "The last line of the text is:\n> Score: 1",
        "A number on a line\n1",
        "score " * 50_000,
        "*" * 100_000,
        "Score" + " " * 100_000 + "x",
    ],
)
def test_anything_else_is_no_score(text):
    """A score further up may be a quotation, and what is not exactly a number from 0 to 1 is not guessed at."""
    with pytest.raises(GraderError) as caught:
        read_score(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_silence_is_said_to_be_silence(text):
    """An empty reply is named as one."""
    with pytest.raises(GraderError, match="the reply is empty"):
        read_score(text)


@given(st.floats(0, 1), st.text())
def test_every_score_is_read_as_it_is_written(score, before):
    """Whatever comes before, the number on the last line is the score, to the last digit."""
    assert read_score(f"{before}\nScore: {abs(score)!r}") == score


@given(st.text())
def test_no_text_breaks_it(text):
    """A reply gives a number from 0 to 1, or a `GraderError`."""
    with suppress(GraderError):
        assert 0 <= read_score(text) <= 1


@pytest.mark.parametrize(
    ("termination", "what"), [(Termination.LENGTH, "was cut off"), (Termination.MALFORMED, "is malformed")]
)
def test_a_reply_that_did_not_end_has_no_score(termination, what):
    """`Score: 0` may have been going to be 0.9."""
    message = Message("assistant", "Good.\nScore: 0")
    assert read_verdict(Completion(message=message)) == 0.0
    with pytest.raises(GraderError, match=what):
        read_verdict(Completion(message=message, termination=termination))


def test_quotes_are_short():
    """Of a long text only the end is quoted."""
    assert quote("a\n") == r"'a\n'"
    assert quote("x" * 500 + "end").endswith("end'")
    assert len(quote("x" * 500)) < 210
