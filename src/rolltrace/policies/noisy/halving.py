"""Finds a number by halving the range that the hints leave."""

import random
import re
from collections.abc import Sequence
from itertools import pairwise

from rolltrace.trace.message import Message

_RANGE = re.compile(r"from (-?[0-9]{1,18}) to (-?[0-9]{1,18})")
_GUESS = re.compile(r"Guess: (-?[0-9]{1,18})$")
_MAX_MESSAGES = 200
_UNREADABLE = 0.25
"""The share of mistakes that are no number at all."""


def guess_number(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """The middle of what is left; by mistake any number of the range, or none."""
    low, high = _range(messages)
    if rng.random() >= correct:
        if rng.random() < _UNREADABLE:
            return "It must be somewhere in the middle."
        return f"I feel lucky.\nGuess: {rng.randint(low, high)}"
    first, last = _left(messages, low, high)
    return f"It lies from {first} to {last}.\nGuess: {(first + last) // 2}"


def _range(messages: Sequence[Message]) -> tuple[int, int]:
    match = next((found for message in messages if (found := _RANGE.search(message.content))), None)
    low, high = (int(match[1]), int(match[2])) if match else (1, 100)
    return min(low, high), max(low, high)


def _left(messages: Sequence[Message], low: int, high: int) -> tuple[int, int]:
    """What the hints leave of the range; all of it where they contradict one another."""
    first, last = low, high
    for said, heard in pairwise(messages[-_MAX_MESSAGES:]):
        guess = _GUESS.search(said.content)
        if guess is None or said.role != "assistant" or heard.role != "user":
            continue
        hint = heard.content[:9].lower()
        if hint.startswith("too high"):
            last = min(last, int(guess[1]) - 1)
        elif hint.startswith("too low"):
            first = max(first, int(guess[1]) + 1)
    return (first, last) if first <= last else (low, high)
