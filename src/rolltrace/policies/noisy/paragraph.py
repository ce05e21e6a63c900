"""Writes a short paragraph about a prompt, from the prompt's own words."""

import random
from collections.abc import Sequence

from rolltrace.policies.noisy.things import lower_words
from rolltrace.trace.message import Message

_LONGEST = 20_000
_MAX_WORDS = 8
"""The longest words of a prompt say best what it is about."""
_SENTENCES = (
    "First of all, {} matters here, and so does {}.",
    "Think of {} before you turn to {}.",
    "Most people begin with {}, which leads to {}.",
    "An example helps: take {} and compare it with {}.",
    "In short, {} comes down to {}.",
    "It is worth asking what {} means without {}.",
)


def write_paragraph(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """Some sentences with the prompt's words in them; at times only a shrug."""
    asked = next((message.content for message in reversed(messages) if message.role == "user"), "")
    words = sorted(set(lower_words(asked[-_LONGEST:])), key=lambda word: (-len(word), word))[:_MAX_WORDS] or ["this"]
    if rng.random() >= correct:
        return f"I do not know much about {rng.choice(words)}."
    sentences = rng.sample(_SENTENCES, k=rng.randint(2, len(_SENTENCES)))
    return " ".join(sentence.format(rng.choice(words), rng.choice(words)) for sentence in sentences)
