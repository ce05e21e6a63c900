"""How `scripted:noisy` writes paragraphs, and scores and compares texts by the words in them."""

import random
import re
from collections.abc import Sequence

from rolltrace.testing.noisy_games import MAX_TEXT_CHARS, lower_words
from rolltrace.trace.message import Message

SCORE, PREFERENCE = "`Score: X`", "`Preference: X`"
"""The texts in a prompt that ask for a score or a preference."""

_LONG_ENOUGH = 25
"""An answer with this many different words gets the full score for length."""
_SHORTEST_WORD = 4
_OPENING = re.compile(r"\s*<(?P<kind>[a-z]+) (?P<tag>[0-9a-f]{6,64})(?:: (?P<label>[^>\n]{0,200}))?>\n")


def score(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """A score by how many of the criterion's words the answer has, and by its length; by mistake a random one."""
    conversation, _, rest = first_question(messages).rpartition("The criterion:")
    criterion = _long_words(rest.rpartition("How far")[0] or rest)
    answer = _long_words(
        " ".join(text for label, text in _frames(conversation) if label.startswith("assistant")) or conversation
    )
    overlap = len(criterion & answer) / len(criterion) if criterion else 0.5
    value = 0.5 * overlap + 0.5 * min(1.0, len(answer) / _LONG_ENOUGH)
    if rng.random() >= correct:
        value = rng.random()
    return f"It has {len(criterion & answer)} of the {len(criterion)} words that I looked for.\nScore: {value:.2f}"


def prefer(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """A preference for the answer with more different words; by mistake for the other."""
    question = first_question(messages)
    first, second = (len(_long_words(_framed(question, kind))) for kind in ("answer A", "answer B"))
    value = (first - second) / max(1, first + second)
    if rng.random() >= correct:
        value = -value
    return f"A has {first} words that tell something, B has {second}.\nPreference: {value:.2f}"


def first_question(messages: Sequence[Message]) -> str:
    """The first user message; later ones only say that a reply could not be parsed."""
    return next((message.content for message in messages if message.role == "user"), "")


def _long_words(text: str) -> set[str]:
    return {word for word in lower_words(text[:MAX_TEXT_CHARS]) if len(word) >= _SHORTEST_WORD}


def _frames(text: str) -> list[tuple[str, str]]:
    """The label and the text of each of the frames that follow each other from the start."""
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
    """The text in the frame of this kind."""
    opening = re.search(rf"^<{kind} ([0-9a-f]{{6,64}})>\n", text, re.MULTILINE)
    return "" if opening is None else text[opening.end() :].partition(f"\n</{kind} {opening[1]}>")[0]


_MAX_WORDS = 8
"""A paragraph uses this many of the longest words of the prompt."""
_SENTENCES = (
    "First of all, {} matters here, and so does {}.",
    "Think of {} before you turn to {}.",
    "Most people begin with {}, which leads to {}.",
    "An example helps: take {} and compare it with {}.",
    "In short, {} comes down to {}.",
    "It is worth asking what {} means without {}.",
)


def write_paragraph(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """A few sentences with the prompt's words in them; by mistake only that it does not know."""
    prompt = next((message.content for message in reversed(messages) if message.role == "user"), "")
    words = sorted(set(lower_words(prompt[-MAX_TEXT_CHARS:])), key=lambda word: (-len(word), word))[:_MAX_WORDS] or [
        "this"
    ]
    if rng.random() >= correct:
        return f"I do not know much about {rng.choice(words)}."
    sentences = rng.sample(_SENTENCES, k=rng.randint(2, len(_SENTENCES)))
    return " ".join(sentence.format(rng.choice(words), rng.choice(words)) for sentence in sentences)
