"""Makes a move in a game whose moves are written in square brackets."""

import random
import re
from collections.abc import Sequence

from rolltrace.trace.message import Message

_LONGEST = 20_000
"""Characters of the prompt that are looked at, from its end."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_QUOTED_MOVE = re.compile(r"['\"`]\[[^\[\]\n]{1,40}\]['\"`]")
_SPEAKER = re.compile(r"\[(?:GAME|Player[^\]]*)\]")
_NUMBER = re.compile(r"[0-9]+")
_LISTS_MOVES = re.compile(r"\b(?:available|valid|legal|possible)\b", re.IGNORECASE)
_LARGEST = 8


def is_game(messages: Sequence[Message]) -> bool:
    """Whether the prompt shows moves in brackets."""
    text = _prompt(messages)
    return "[GAME]" in text or _QUOTED_MOVE.search(text) is not None


def move(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """One of the moves that the prompt says are open, else one like those that it mentions; at times any such move."""
    text = _prompt(messages)
    mentioned = _moves(text)
    listed = next((moves for line in reversed(text.splitlines()) if (moves := _listed(line))), [])
    if listed and rng.random() < correct:
        return f"I play {rng.choice(listed)}"
    examples = [example for example in mentioned if _NUMBER.search(example)] or mentioned or [f"[{_LARGEST // 2}]"]
    return f"I play {_vary(rng.choice(examples), rng)}"


def _prompt(messages: Sequence[Message]) -> str:
    told = [message.content[-_LONGEST:] for message in messages[-20:] if message.role != "assistant"]
    first = [messages[0].content[-_LONGEST:]] if len(messages) > 20 else []  # the rules come first
    return "\n".join((*first, *told))


def _listed(line: str) -> list[str]:
    return _moves(line) if _LISTS_MOVES.search(line) else []


def _moves(text: str) -> list[str]:
    return [found for found in _MOVE.findall(text) if not _SPEAKER.fullmatch(found)]


def _vary(example: str, rng: random.Random) -> str:
    """The same form of move with other numbers, small ones more often: they are on most boards."""
    return _NUMBER.sub(lambda _: str(min(rng.randint(0, _LARGEST), rng.randint(0, _LARGEST))), example)
