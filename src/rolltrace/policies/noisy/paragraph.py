"""Writes a short paragraph about a prompt, from the prompt's own words."""

import random
from collections.abc import Sequence

from rolltrace.policies.noisy.things import words_of
from rolltrace.trace.message import Message

_LONGEST = 20_000
_MOST_WORDS = 8
"""The longest words of a prompt say best what it is about."""
_SENTENCES = (
    "First of all, {} matters here, and so does {}.",
    "Think of {} before you turn to {}.",
    "Most people begin with {}, which leads to {}.",
    "An example helps: take {} and compare it with {}.",
    "In short, {} comes down to {}.",
    "It is worth asking what {} means without {}.",
)


def write_paragraph(messages: Sequence[Message], chance: random.Random, correct: float) -> str:
    """Some sentences with the prompt's words in them; at times only a shrug."""
    asked = next((message.content for message in reversed(messages) if message.role == "user"), "")
    words = sorted(set(words_of(asked[-_LONGEST:])), key=lambda word: (-len(word), word))[:_MOST_WORDS] or ["this"]
    if chance.random() >= correct:
        return f"I do not know much about {chance.choice(words)}."
    sentences = chance.sample(_SENTENCES, k=chance.randint(2, len(_SENTENCES)))
    return " ".join(sentence.format(chance.choice(words), chance.choice(words)) for sentence in sentences)
