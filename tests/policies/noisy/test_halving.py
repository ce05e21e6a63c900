"""Finding a number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.policies.noisy.halving import guess_number
from talk import rng, talk

NUMBER = "I am thinking of a whole number from 1 to 100.\nFinish each turn with a line `Guess: NUMBER`."


def test_the_middle_of_what_is_left_is_guessed():
    """By hand: 50 is too high, 24 too low, so 37 is in the middle of 25 to 49."""
    texts = (NUMBER, "Guess: 50", "Too high. 9 turns left.", "Hm.\nGuess: 24", "Too low. 8 turns left.")
    assert guess_number(talk(*texts).messages, rng(), 1.0).endswith("Guess: 37")
    assert guess_number(talk(NUMBER).messages, rng(), 1.0).endswith("Guess: 50")
    assert guess_number(talk(NUMBER, "Guess: 51", "Too high.").messages, rng(), 1.0).endswith("Guess: 25")
    assert guess_number(talk(NUMBER, "Guess: 50", "Too low.").messages, rng(), 1.0).endswith("Guess: 75")


def test_hints_that_contradict_one_another_are_forgotten():
    """Where no number is left, the search starts again."""
    texts = (NUMBER, "Guess: 50", "Too high.", "Guess: 50", "Too low.")
    assert guess_number(talk(*texts).messages, rng(), 1.0).endswith("Guess: 50")


@given(st.integers(1, 100))
def test_every_number_is_found_in_seven_guesses(target):
    """Halving finds one number of a hundred in seven guesses, from the conversation alone."""
    texts = [NUMBER]
    for _ in range(7):
        texts.append(guess_number(talk(*texts).messages, rng(), 1.0))
        guess = int(texts[-1].rpartition(": ")[2])
        if guess == target:
            return
        texts.append("Too high. n turns left." if guess > target else "Too low. n turns left.")
    pytest.fail(f"{target} was not found in {texts}")


def test_mistakes_are_other_numbers_and_sometimes_none():
    """With correct=0 it guesses anywhere in the range, and now and then says no number."""
    replies = [guess_number(talk(NUMBER).messages, rng(seed), 0.0) for seed in range(200)]
    numbers = [int(reply.rpartition(": ")[2]) for reply in replies if "Guess: " in reply]
    assert 120 < len(numbers) < 180
    assert all(1 <= number <= 100 for number in numbers)
    assert len(set(numbers)) > 50
    assert not any(re.search("[0-9]", reply) for reply in replies if "Guess: " not in reply)
