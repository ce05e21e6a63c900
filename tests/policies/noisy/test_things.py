"""What the scripted policy knows of the world."""

import pytest

from rolltrace.policies.noisy.things import THINGS, TRAITS, find_trait, known_thing


@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.words[0])
def test_a_question_is_understood_as_it_was_meant(trait):
    """What the player asks about is what the answerer takes it to ask about."""
    assert find_trait(trait.question) is trait


def test_things_are_known_by_their_name():
    """A longer name of a thing is still of it; a word that only contains one is not."""
    assert all(known_thing(thing) == thing for thing in THINGS)
    assert known_thing("The Oak Tree") == "tree"
    assert known_thing("carpet") is None
    assert find_trait("Is it expensive?") is None


def test_few_things_look_alike():
    """All that is known tells nearly every thing from every other, so that a game can be won."""
    looks = {thing: tuple(thing in trait.things for trait in TRAITS) for thing in THINGS}
    assert len(THINGS) >= 24
    assert len(set(looks.values())) >= len(THINGS) - 4
