r"""The final answer inside a reference text, as data sets write it: after `####`, or in the last `\boxed{}`."""

import re
from enum import StrEnum

from rolltrace.errors import DataError, UnknownNameError
from rolltrace.graders.answer_check import extract_boxed

_BARE_BOX = re.compile(r"\\boxed +([^\s\\${}]+)")
_MARKED = re.compile(r"(?:\A|\n)####([^\n]*)\s*\Z")


class AnswerFormat(StrEnum):
    """Where the final answer is in the text of an answer column."""

    AUTO = "auto"
    """`gsm8k` if the last line starts with `####`, else `boxed` if there is a box, else `plain`."""
    PLAIN = "plain"
    """The whole text is the answer."""
    GSM8K = "gsm8k"
    """After `####`, which starts the last line; the lines before it are the solution."""
    BOXED = "boxed"
    r"""In the last `\boxed{…}`; the whole text is the solution."""


def answer_format_of(name: str) -> AnswerFormat:
    """The format of this name."""
    try:
        return AnswerFormat(name)
    except ValueError:
        raise UnknownNameError.for_name("answer format", str(name), [form.value for form in AnswerFormat]) from None


def final_answer(text: str, form: AnswerFormat) -> tuple[str, str | None]:
    """The final answer in a text, and the solution that leads to it, if the text has one."""
    marked = _MARKED.search(text) if form in (AnswerFormat.AUTO, AnswerFormat.GSM8K) else None
    if marked is not None and marked[1].strip():
        return marked[1].strip(), text[: marked.start()].strip() or None
    boxed = _boxed(text) if form in (AnswerFormat.AUTO, AnswerFormat.BOXED) else None
    if boxed is not None:
        return boxed, text
    if form is AnswerFormat.GSM8K:
        raise DataError("expected an answer whose last line is `#### ANSWER`, got none.")
    if form is AnswerFormat.BOXED:
        raise DataError(r"expected an answer with `\boxed{ANSWER}` in it, got none.")
    if form is AnswerFormat.AUTO and "\n" in text.strip():
        raise DataError(
            r"expected an answer of one line, `#### ANSWER` as the last line, or `\boxed{ANSWER}`, got "
            f"{len(text.strip().splitlines())} lines: give answer_format=plain if all of it is the answer."
        )
    return text, None


def _boxed(text: str) -> str | None:
    r"""MATH also writes `\fbox{…}`, and `\boxed 2` without braces."""
    text = text.replace(r"\fbox", r"\boxed")
    bare = _BARE_BOX.findall(text)
    return extract_boxed(text) or (bare[-1] if bare else None)
