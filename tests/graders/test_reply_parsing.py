"""Parsing the verdict in a grader's reply."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.errors import GraderError
from rolltrace.graders.reply_parsing import read_preference, read_score, shorten
from rolltrace.trace.stop_reasons import Termination
from stage import said


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
    """The last line counts if it is `Score: X` or a number alone; Markdown around it is ignored."""
    assert read_score(said(text)) == score


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
    """A score further up may be a quotation, so it does not count; only an exact number from 0 to 1 does."""
    with pytest.raises(GraderError) as caught:
        read_score(said(text))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_silence_is_said_to_be_silence(text):
    """The error says that a reply is empty."""
    with pytest.raises(GraderError, match="the reply is empty"):
        read_score(said(text))


@given(st.floats(0, 1), st.text())
def test_every_score_is_read_as_it_is_written(score, before):
    """Whatever comes before, the number on the last line is parsed to the last digit."""
    assert read_score(said(f"{before}\nScore: {abs(score)!r}")) == score


@given(st.text())
def test_no_text_breaks_it(text):
    """Any reply gives a number from 0 to 1 or raises `GraderError`."""
    with suppress(GraderError):
        assert 0 <= read_score(said(text)) <= 1


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Preference: 0.5", 0.5),
        ("A is better.\n\n**Preference: -0.25**\n", -0.25),
        ("preference: −1", -1.0),
        ("Preference: +1.", 1.0),
        ("- *Preference:* `.5`", 0.5),
        ("Preference: 1\nOn second thoughts:\nPreference: -1", -1.0),
        ("Preference: A", 1.0),
        ("Preference: b", -1.0),
        ("Preference: Tie.", 0.0),
        ("0.75", 0.75),
        (" A ", 1.0),
        ("tie", 0.0),
        ("Preference: -2.5e-1", -0.25),
    ],
)
def test_preferences_that_can_be_read(reply, score):
    """The last line counts, a reply of only the value does too, and stars around it are ignored."""
    assert read_preference(said(reply)) == score


@pytest.mark.parametrize(
    "reply",
    [
        "",
        " \n\t\n",
        "A is better.",
        "Preference:",
        "Preference: nan",
        "Preference: inf",
        "Preference: 7",
        "Preference: -1.01",
        "Preference: 0.5 or so",
        "Preference: A or B",
        "Preference: 1_0",
        "Preference: \u0661",
        "Preference: 0.5\nNo, wait.",
        "I quote: Preference: 1",
        "The answer ends with:\n> Preference: 1",
        "Preference: --1",
        "Preference: -",
        "Preference: - 1",
        "Preference: -tie",
        "There are two of them:\n1",
        "Preference: " + "0" * 100_000,
        "*" * 100_000,
        "Preference" + " " * 150 + ":" + " " * 20,
        "\ud800",
    ],
    ids=lambda reply: ascii(reply)[:40],
)
def test_preferences_that_cannot_be_read(reply):
    """Anything but a number from -1 to 1, A, B or a tie at the very end is no verdict."""
    with pytest.raises(GraderError):
        read_preference(said(reply))


@given(st.text(max_size=300))
def test_any_reply_is_a_preference_or_refused(reply):
    """Any reply gives a preference or raises `GraderError`."""
    with suppress(GraderError):
        assert -1 <= read_preference(said(reply)) <= 1


@given(st.text(max_size=100), st.floats(-1, 1))
def test_nothing_before_a_preference_matters(text, score):
    """Whatever was said or quoted before, the last line is the verdict."""
    assert read_preference(said(f"{text}\nPreference: {score:.6f}")) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("read", [read_score, read_preference])
@pytest.mark.parametrize(
    ("termination", "what"), [(Termination.LENGTH, "was cut off"), (Termination.MALFORMED, "is malformed")]
)
def test_a_reply_that_did_not_end_is_no_verdict(read, termination, what):
    """A truncated or malformed reply has no verdict: a `0` may be the beginning of 0.9."""
    reply = f"Good.\n{read.__name__.removeprefix('read_')}: 0"
    assert read(said(reply)) == 0.0
    with pytest.raises(GraderError, match=what):
        read(said(reply, termination))


@pytest.mark.parametrize(("read", "label"), [(read_score, "Score"), (read_preference, "Preference")])
@pytest.mark.parametrize("before", [">", "> ", " > > ", "- > ", "**>** ", "I quote: ", '"', "1. "])
def test_a_quoted_line_is_no_verdict(read, label, before):
    """A quoted last line is the graded text's claim, not the grader's verdict; an unquoted line counts."""
    for reply in (f"The text ends with\n{before}{label}: 1", f"{before}{label}: 1"):
        with pytest.raises(GraderError):
            read(said(reply))
    assert read(said(f"The text ends with\n{before}{label}: 1\n{label}: 0")) == 0


def test_quotes_are_short():
    """Only the end of a long reply is quoted in the error."""
    assert shorten("a\n") == r"'a\n'"
    assert shorten("x" * 500 + "end").endswith("end'")
    assert len(shorten("x" * 500)) < 210
