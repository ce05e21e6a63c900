"""Scores and compares texts by the words in them, as a grader that can be predicted."""

import random
import re
from collections.abc import Sequence

from rolltrace.policies.noisy.things import lower_words
from rolltrace.trace.message import Message

SCORE, PREFERENCE = "`Score: X`", "`Preference: X`"
"""What a prompt asks for that is to be answered here."""

_LONGEST = 20_000
"""Characters that are looked at of a text."""
_LONG_ENOUGH = 25
"""So many different words are enough for an answer."""
_SHORTEST_WORD = 4
_OPENING = re.compile(r"\s*<(?P<kind>[a-z]+) (?P<tag>[0-9a-f]{6,64})(?:: (?P<label>[^>\n]{0,200}))?>\n")


def score(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """How far the answer has the criterion's words, and enough of its own; at times another number."""
    shown, _, rest = _question(messages).rpartition("The criterion:")
    criterion = _telling(rest.rpartition("How far")[0] or rest)
    said = _telling(" ".join(text for label, text in _frames(shown) if label.startswith("assistant")) or shown)
    overlap = len(criterion & said) / len(criterion) if criterion else 0.5
    value = 0.5 * overlap + 0.5 * min(1.0, len(said) / _LONG_ENOUGH)
    if rng.random() >= correct:
        value = rng.random()
    return f"It has {len(criterion & said)} of the {len(criterion)} words that I looked for.\nScore: {value:.2f}"


def prefer(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """How much more the first answer says than the second; at times the other way round."""
    question = _question(messages)
    first, second = (len(_telling(_framed(question, kind))) for kind in ("answer A", "answer B"))
    value = (first - second) / max(1, first + second)
    if rng.random() >= correct:
        value = -value
    return f"A has {first} words that tell something, B has {second}.\nPreference: {value:.2f}"


def _question(messages: Sequence[Message]) -> str:
    """What was asked first: later messages only say that a reply could not be read."""
    return next((message.content for message in messages if message.role == "user"), "")


def _telling(text: str) -> set[str]:
    return {word for word in lower_words(text[:_LONGEST]) if len(word) >= _SHORTEST_WORD}


def _frames(text: str) -> list[tuple[str, str]]:
    """The label and the text of each of the frames that stand one after the other from the start."""
    frames, place = [], 0
    while (opening := _OPENING.match(text, place)) is not None:
        closing = f"\n</{opening['kind']} {opening['tag']}>"
        end = text.find(closing, opening.end() - 1)
        if end < 0:
            break
        frames.append((opening["label"] or "", text[opening.end() : end]))
        place = end + len(closing)
    return frames


def _framed(text: str, kind: str) -> str:
    """What stands in the frame of this kind."""
    opening = re.search(rf"^<{kind} ([0-9a-f]{{6,64}})>\n", text, re.MULTILINE)
    return "" if opening is None else text[opening.end() :].partition(f"\n</{kind} {opening[1]}>")[0]
