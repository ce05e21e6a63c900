"""Plays twenty questions, from either side of it."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rolltrace.policies.noisy.things import THINGS, TRAITS, KnownTrait, find_trait, known_thing, lower_words
from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

_GUESS = re.compile(r"^Guess: (\w+)", re.MULTILINE)
_QUOTED = re.compile(r'^[^\n"]*: ("[^\n]*")$', re.MULTILINE)
_MAX_MESSAGES = 200
_MAX_WORDS = 50


def play_questions(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """A question that tells the likeliest things apart, or a guess of the likeliest; at times a random one."""
    answered = dict(_answered(messages))
    guessed = {match[1] for message in messages[-_MAX_MESSAGES:] for match in _GUESS.finditer(message.content)}
    things = [thing for thing in THINGS if thing not in guessed] or list(THINGS)
    open_traits = [trait for trait in TRAITS if trait not in answered]
    if rng.random() >= correct:
        if open_traits and rng.random() < 0.5:
            return rng.choice(open_traits).question
        return f"Guess: {rng.choice(things)}"
    slips = {thing: sum((thing in trait.things) != yes for trait, yes in answered.items()) for thing in things}
    likely = [thing for thing in things if slips[thing] == min(slips.values())]
    telling = [trait for trait in open_traits if 0 < _holds(trait, likely) < len(likely)]
    if not telling:
        return f"I think I know.\nGuess: {rng.choice(likely)}"
    return min(telling, key=lambda trait: abs(2 * _holds(trait, likely) - len(likely))).question


def answer_question(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """Yes or no: what is known of the secret, else something that is always the same; at times the wrong one."""
    secret, question = _secret_and_question(messages)
    yes = _is_true(secret, question)
    if rng.random() >= correct:
        yes = not yes
    return f"Answer: {'yes' if yes else 'no'}"


def _is_true(secret: str, question: str) -> bool:
    asked = lower_words(question)[-_MAX_WORDS:]
    if set(lower_words(secret)) & set(asked):
        return True
    thing, trait = known_thing(secret), find_trait(" ".join(asked))
    if thing is not None and trait is not None:
        return thing in trait.things
    return derive_seed("twenty questions", secret, question) % 2 == 0


def _secret_and_question(messages: Sequence[Message]) -> tuple[str, str]:
    """The quoted texts of the first message: the secret comes before the question."""
    quoted = _QUOTED.findall(messages[0].content) if messages else []
    secret, question, *_ = (*map(_unquoted, quoted), "", "")
    return secret, question


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def _answered(messages: Sequence[Message]) -> Iterator[tuple[KnownTrait, bool]]:
    """What was asked so far, and whether it is true; what got no clear answer counts as neither."""
    for asked, said in pairwise(messages[-_MAX_MESSAGES:]):
        answer = said.content[:4].lower()
        if asked.role == "assistant" and said.role == "user" and answer in ("yes.", "no. "):
            yield from ((trait, answer == "yes.") for trait in TRAITS if trait.question in asked.content)


def _holds(trait: KnownTrait, things: Sequence[str]) -> int:
    return sum(thing in trait.things for thing in things)
