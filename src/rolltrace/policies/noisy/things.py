"""What the scripted policy knows of the world: common things, and what is true of them."""

import re
from typing import NamedTuple

_WORD = re.compile(r"[^\W_]+")


class KnownTrait(NamedTuple):
    """Something that is true of some things and not of others."""

    question: str
    words: tuple[str, ...]
    """A question with one of these words asks about it."""
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
"""All that it knows, by name."""


def lower_words(text: str) -> list[str]:
    """The words of a text, in small letters."""
    return [word.lower() for word in _WORD.findall(text)]


def known_thing(name: str) -> str | None:
    """The thing that a name is of, such as `tree` of "oak tree"; None where it is not known."""
    words = lower_words(name)
    return next((thing for thing in THINGS if thing in words), None)


def find_trait(question: str) -> KnownTrait | None:
    """What a question asks about; None where it is about nothing known."""
    words = set(lower_words(question))
    return next((trait for trait in TRAITS if not words.isdisjoint(trait.words)), None)
