"""Escaping hostile text."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.terminal_text import escape_json, escape_line, escape_text


@given(st.text())
def test_no_terminal_control_is_left(text):
    """Of control, formatting and separator characters only the allowed ones come out, for any input."""
    for shown, allowed in ((escape_text(text), "\n\t\u200c\u200d"), (escape_line(text), "\u200c\u200d")):
        steering = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert steering <= set(allowed)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_escaped_json_means_the_same(text):
    """Escaping control characters does not change the meaning of a JSON line."""
    line = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(escape_json(line)) == {"text": text}
    assert {c for c in escape_json(line) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")} <= {"\n"}


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("\x9b2J", "⟨U+009B⟩2J"),
        ("a\rb", "a␍b"),
        ("\x7f", "␡"),
        ("\u202eabc", "⟨U+202E⟩abc"),
        ("\u2066abc", "⟨U+2066⟩abc"),
        ("a\U000e0041", "a⟨U+E0041⟩"),
        ("a\u2028b", "a⟨U+2028⟩b"),
        ("naïve 数学 🙂", "naïve 数学 🙂"),
    ],
)
def test_what_is_shown(hostile, shown):
    """Each kind of invisible character is shown as a symbol or number; ordinary text of any language is unchanged."""
    assert escape_text(hostile) == shown


def test_lines_stay_lines():
    """Text keeps its line feeds, a name does not."""
    assert escape_text("a\n\tb") == "a\n\tb"
    assert escape_line("a\n\tb") == "a␊␉b"
