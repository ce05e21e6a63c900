"""How `scripted:noisy` plays games: twenty questions from both sides, guessing a number, moves in brackets."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rolltrace.seeds import derive_seed
from rolltrace.trace.message import Message

_WORD = re.compile(r"[^\W_]+")
_NAME_GUESS = re.compile(r"^Guess: (\w+)", re.MULTILINE)
_QUOTED = re.compile(r'^[^\n"]*: ("[^\n]*")$', re.MULTILINE)
_MAX_WORDS = 50
_RANGE = re.compile(r"from (-?[0-9]{1,18}) to (-?[0-9]{1,18})")
_NUMBER_GUESS = re.compile(r"Guess: (-?[0-9]{1,18})$")
_MAX_MESSAGES = 200
_UNREADABLE = 0.25
"""The fraction of mistakes in `guess_number` that contain no number."""
MAX_TEXT_CHARS = 20_000
"""How many characters of a text are read."""
_MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
_QUOTED_MOVE = re.compile(r"['\"`]\[[^\[\]\n]{1,40}\]['\"`]")
_SPEAKER = re.compile(r"\[(?:GAME|Player[^\]]*)\]")
_DIGITS = re.compile(r"[0-9]+")
_LISTS_MOVES = re.compile(r"\b(?:available|valid|legal|possible)\b", re.IGNORECASE)
_MAX_MOVE_NUMBER = 8


class KnownTrait(NamedTuple):
    """A property that some things have and others do not."""

    question: str
    words: tuple[str, ...]
    """A question with one of these words asks about this trait."""
    things: frozenset[str]


def _trait(question: str, words: str, things: str) -> KnownTrait:
    return KnownTrait(question, tuple(words.split()), frozenset(things.split()))


TRAITS = (
    _trait("Is it an animal?", "animal creature", "cat elephant penguin shark spider owl dog horse"),
    _trait("Is it alive?", "alive living", "cat elephant penguin shark spider owl dog horse tree rose cactus"),
    _trait(
        "Was it made by people?",
        "made built manufactured artificial",
        "bread piano bicycle car aeroplane ship umbrella candle book chair telephone clock bridge",
    ),
    _trait(
        "Is it bigger than a person?",
        "bigger larger big large",
        "elephant shark horse tree piano car aeroplane ship bridge moon river volcano",
    ),
    _trait(
        "Is it often found in a house?",
        "house indoors home room",
        "cat dog spider banana apple bread coffee piano candle book chair telephone clock umbrella",
    ),
    _trait("Can you eat or drink it?", "eat drink food edible", "banana apple bread coffee"),
    _trait("Does it have legs?", "legs leg feet", "cat elephant penguin spider owl dog horse chair piano"),
    _trait("Does it have wings?", "wings wing", "penguin owl aeroplane"),
    _trait("Can you travel on it?", "travel ride transport vehicle", "elephant horse bicycle car aeroplane ship"),
    _trait("Is it found in the sea?", "sea ocean swim", "penguin shark ship"),
    _trait("Does it have wheels?", "wheels wheel", "bicycle car aeroplane"),
    _trait("Does it give light?", "light bright shine", "candle moon volcano"),
    _trait("Is it hot?", "hot warm", "coffee candle volcano"),
    _trait("Does it make sounds?", "sound sounds noise", "cat dog horse elephant owl piano telephone clock"),
    _trait("Do people keep it as a pet?", "pet pets tame", "cat dog horse"),
    _trait("Can you read something on it?", "read numbers letters", "book telephone clock"),
    _trait("Is it sharp or prickly?", "sharp prickly thorns", "cactus rose shark"),
    _trait("Does it come from a plant?", "plant plants grow", "tree rose cactus banana apple coffee bread"),
    _trait("Is it a fruit?", "fruit", "banana apple"),
    _trait("Is it white?", "white", "snow moon"),
    _trait("Does water flow in it?", "flow flows", "river"),
    _trait("Does it have eight of something?", "eight", "spider"),
    _trait("Does it have a trunk?", "trunk", "elephant tree car"),
    _trait("Is it used when it rains?", "rain rains", "umbrella"),
)

THINGS = tuple(sorted(frozenset().union(*(trait.things for trait in TRAITS))))
"""The names of all known things."""


def lower_words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def known_thing(name: str) -> str | None:
    """The known thing that a name contains, such as `tree` in "oak tree", or None."""
    words = lower_words(name)
    return next((thing for thing in THINGS if thing in words), None)


def find_trait(question: str) -> KnownTrait | None:
    """The known trait that a question asks about, or None."""
    words = set(lower_words(question))
    return next((trait for trait in TRAITS if not words.isdisjoint(trait.words)), None)


def play_questions(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """A question that splits the likeliest things in half, or a guess of the likeliest; by mistake a random one."""
    answered = dict(_answered(messages))
    guessed = {match[1] for message in messages[-_MAX_MESSAGES:] for match in _NAME_GUESS.finditer(message.content)}
    things = [thing for thing in THINGS if thing not in guessed] or list(THINGS)
    open_traits = [trait for trait in TRAITS if trait not in answered]
    if rng.random() >= correct:
        if open_traits and rng.random() < 0.5:
            return rng.choice(open_traits).question
        return f"Guess: {rng.choice(things)}"
    contradictions = {thing: sum((thing in trait.things) != yes for trait, yes in answered.items()) for thing in things}
    likely = [thing for thing in things if contradictions[thing] == min(contradictions.values())]
    splitting = [trait for trait in open_traits if 0 < _holds(trait, likely) < len(likely)]
    if not splitting:
        return f"I think I know.\nGuess: {rng.choice(likely)}"
    return min(splitting, key=lambda trait: abs(2 * _holds(trait, likely) - len(likely))).question


def answer_question(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """Yes or no: what is known of the secret, otherwise by a hash of the question; by mistake the opposite."""
    secret, question = _secret_and_question(messages)
    yes = _is_true(secret, question)
    if rng.random() >= correct:
        yes = not yes
    return f"Answer: {'yes' if yes else 'no'}"


def _is_true(secret: str, question: str) -> bool:
    words = lower_words(question)[-_MAX_WORDS:]
    if set(lower_words(secret)) & set(words):
        return True
    thing, trait = known_thing(secret), find_trait(" ".join(words))
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
    """The traits that were asked about so far, and whether they hold; unclear answers are skipped."""
    for question, answered in pairwise(messages[-_MAX_MESSAGES:]):
        answer = answered.content[:4].lower()
        if question.role == "assistant" and answered.role == "user" and answer in ("yes.", "no. "):
            yield from ((trait, answer == "yes.") for trait in TRAITS if trait.question in question.content)


def _holds(trait: KnownTrait, things: Sequence[str]) -> int:
    return sum(thing in trait.things for thing in things)


def guess_number(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """The middle of the remaining range; by mistake any number of the first range, or no number."""
    low, high = _range(messages)
    if rng.random() >= correct:
        if rng.random() < _UNREADABLE:
            return "It must be somewhere in the middle."
        return f"I feel lucky.\nGuess: {rng.randint(low, high)}"
    first, last = _remaining_range(messages, low, high)
    return f"It lies from {first} to {last}.\nGuess: {(first + last) // 2}"


def _range(messages: Sequence[Message]) -> tuple[int, int]:
    match = next(filter(None, (_RANGE.search(message.content) for message in messages)), None)
    low, high = (int(match[1]), int(match[2])) if match else (1, 100)
    return min(low, high), max(low, high)


def _remaining_range(messages: Sequence[Message], low: int, high: int) -> tuple[int, int]:
    """The range that the hints leave; the whole range if they contradict each other."""
    first, last = low, high
    for guessed, answered in pairwise(messages[-_MAX_MESSAGES:]):
        guess = _NUMBER_GUESS.search(guessed.content)
        if guess is None or guessed.role != "assistant" or answered.role != "user":
            continue
        hint = answered.content[:9].lower()
        if hint.startswith("too high"):
            last = min(last, int(guess[1]) - 1)
        elif hint.startswith("too low"):
            first = max(first, int(guess[1]) + 1)
    return (first, last) if first <= last else (low, high)


def is_game(messages: Sequence[Message]) -> bool:
    """Whether the prompt shows moves in brackets."""
    text = prompt_text(messages)
    return "[GAME]" in text or _QUOTED_MOVE.search(text) is not None


def move(messages: Sequence[Message], rng: random.Random, correct: float) -> str:
    """One of the legal moves that the prompt lists; without a list, or by mistake, one like those that it mentions."""
    text = prompt_text(messages)
    mentioned = _moves(text)
    listed = next((moves for line in reversed(text.splitlines()) if (moves := _listed(line))), [])
    if listed and rng.random() < correct:
        return f"I play {rng.choice(listed)}"
    examples = (
        [example for example in mentioned if _DIGITS.search(example)] or mentioned or [f"[{_MAX_MOVE_NUMBER // 2}]"]
    )
    return f"I play {_vary(rng.choice(examples), rng)}"


def prompt_text(messages: Sequence[Message]) -> str:
    """The first message and the last ones, without those of the policy."""
    texts = [message.content[-MAX_TEXT_CHARS:] for message in messages[-20:] if message.role != "assistant"]
    first = [messages[0].content[-MAX_TEXT_CHARS:]] if len(messages) > 20 else []  # the rules come first
    return "\n".join((*first, *texts))


def _listed(line: str) -> list[str]:
    return _moves(line) if _LISTS_MOVES.search(line) else []


def _moves(text: str) -> list[str]:
    return [match for match in _MOVE.findall(text) if not _SPEAKER.fullmatch(match)]


def _vary(example: str, rng: random.Random) -> str:
    """The same form of move with other numbers; small ones are likelier, because more boards have them."""
    return _DIGITS.sub(lambda _: str(min(rng.randint(0, _MAX_MOVE_NUMBER), rng.randint(0, _MAX_MOVE_NUMBER))), example)
