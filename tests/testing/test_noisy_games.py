"""How `scripted:noisy` plays games."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.testing.noisy_games import (
    THINGS,
    TRAITS,
    answer_question,
    find_trait,
    guess_number,
    known_thing,
    move,
    play_questions,
)
from talk import rng, talk

NAME = "I am thinking of something. Ask, or guess with a line `Guess: NAME`."


def asked(secret, question):
    """The prompt of an answerer."""
    return talk(f'The secret: "{secret}"\nThe player says: "{question}"\nIs it yes or no?', role="answerer").messages


@pytest.mark.parametrize(
    ("secret", "question", "answer"),
    [
        ("owl", "Is it an animal?", "yes"),
        ("piano", "Is it an animal?", "no"),
        ("oak tree", "Would you say that it is alive?", "yes"),
        ("bridge", "Can I EAT it", "no"),
        ("platypus", "Is it a platypus?", "yes"),
        ("owl", "Is it a barn owl?", "yes"),
    ],
)
def test_the_answerer_says_what_it_knows(secret, question, answer):
    """Known facts are answered correctly, and wrongly with correct=0."""
    other = {"yes": "no", "no": "yes"}[answer]
    assert answer_question(asked(secret, question), rng(), 1.0) == f"Answer: {answer}"
    assert answer_question(asked(secret, question), rng(), 0.0) == f"Answer: {other}"


def test_unknown_things_are_answered_consistently():
    """An unknown thing has one answer to each question, whatever the seed, and not the same to all."""
    questions = [f"Is it something number {number}?" for number in range(30)]
    first, again = (
        [answer_question(asked("flurb", question), rng(seed), 1.0) for question in questions] for seed in (1, 2)
    )
    assert first == again
    assert set(first) == {"Answer: yes", "Answer: no"}


def play_both(secret, turns=20):
    """A game between the two, without noise: the transcript, and whether the thing was found."""
    texts = [NAME]
    for turn in range(turns):
        texts.append(play_questions(talk(*texts).messages, rng(turn), 1.0))
        _, is_guess, guess = texts[-1].rpartition("Guess: ")
        if is_guess and guess == secret:
            return texts, True
        answer = "no" if is_guess else answer_question(asked(secret, texts[-1]), rng(), 1.0)[len("Answer: ") :]
        texts.append(f"{answer.capitalize()}. {turns - turn - 1} turns left.")
    return texts, False


@pytest.mark.parametrize("secret", ["owl", "cat", "dog", "piano", "rose", "cactus", "moon", "clock", "aeroplane"])
def test_the_player_finds_what_it_knows(secret):
    """Its questions tell things apart, none is asked twice, and no guess is made twice."""
    texts, found = play_both(secret)
    assert found
    own = texts[1::2]
    assert len(own) <= 12
    assert len(set(own)) == len(own)


def test_the_player_plays_on_for_an_unknown_secret():
    """An unknown secret is asked and guessed about to the end, and nothing is repeated."""
    texts, found = play_both("flurb", turns=40)
    assert not found
    own = texts[1::2]
    assert len(own) == 40
    assert len({text.rpartition("\n")[2] for text in own}) == 40


def test_a_noisy_player_asks_and_guesses_at_random():
    """With correct=0 it does both, from the start."""
    replies = {play_questions(talk(NAME).messages, rng(seed), 0.0) for seed in range(60)}
    assert len(replies) > 20
    assert {reply.startswith("Guess: ") for reply in replies} == {True, False}


@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.words[0])
def test_a_question_is_understood_as_it_was_meant(trait):
    """The answerer understands the player's questions as they were meant."""
    assert find_trait(trait.question) is trait


def test_things_are_known_by_their_name():
    """A longer name of a thing is recognised; a word that only contains one is not."""
    assert all(known_thing(thing) == thing for thing in THINGS)
    assert known_thing("The Oak Tree") == "tree"
    assert known_thing("carpet") is None
    assert find_trait("Is it expensive?") is None


def test_few_things_look_alike():
    """The known facts tell nearly every thing from every other, so that a game can be won."""
    looks = {thing: tuple(thing in trait.things for trait in TRAITS) for thing in THINGS}
    assert len(THINGS) >= 24
    assert len(set(looks.values())) >= len(THINGS) - 4


NUMBER = "I am thinking of a whole number from 1 to 100.\nFinish each turn with a line `Guess: NUMBER`."


def test_the_middle_of_what_is_left_is_guessed():
    """By hand: 50 is too high, 24 too low, so 37 is in the middle of 25 to 49."""
    texts = (NUMBER, "Guess: 50", "Too high. 9 turns left.", "Hm.\nGuess: 24", "Too low. 8 turns left.")
    assert guess_number(talk(*texts).messages, rng(), 1.0).endswith("Guess: 37")
    assert guess_number(talk(NUMBER).messages, rng(), 1.0).endswith("Guess: 50")
    assert guess_number(talk(NUMBER, "Guess: 51", "Too high.").messages, rng(), 1.0).endswith("Guess: 25")
    assert guess_number(talk(NUMBER, "Guess: 50", "Too low.").messages, rng(), 1.0).endswith("Guess: 75")


def test_hints_that_contradict_one_another_are_forgotten():
    """If no number is left, the search starts again."""
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
    """With correct=0 it guesses anywhere in the range, and sometimes gives no number."""
    replies = [guess_number(talk(NUMBER).messages, rng(seed), 0.0) for seed in range(200)]
    numbers = [int(reply.rpartition(": ")[2]) for reply in replies if "Guess: " in reply]
    assert 120 < len(numbers) < 180
    assert all(1 <= number <= 100 for number in numbers)
    assert len(set(numbers)) > 50
    assert not any(re.search("[0-9]", reply) for reply in replies if "Guess: " not in reply)


BOARD = "[GAME] You are Player 0.\nFor example, '[4]' is the centre.\nAvailable Moves: '[2]', '[7]'"


def test_an_open_move_is_played():
    """The moves that the prompt lists last are played; by mistake, a similar one with other numbers."""
    texts = (BOARD, "I play [2]", "[GAME] Player 1 played [0]\nAvailable Moves: '[7]', '[8]'")
    played = {move(talk(*texts).messages, rng(seed), 1.0) for seed in range(50)}
    assert played == {"I play [7]", "I play [8]"}
    wild = {move(talk(*texts).messages, rng(seed), 0.0) for seed in range(200)}
    assert wild == {f"I play [{number}]" for number in range(9)}


def test_without_a_list_a_move_like_the_example_is_played():
    """The form of the example is kept; names of speakers are no moves."""
    text = "[GAME] Welcome. Enter '[pile quantity]', e.g. '[0 3]'.\n[Player 1] I play [nothing]"
    played = {move(talk(text).messages, rng(seed), 1.0) for seed in range(50)}
    assert all(re.fullmatch(r"I play \[[0-8] [0-8]\]", reply) for reply in played)
    assert len(played) > 10
    assert move(talk("[GAME] [Player 1] moves").messages, rng(), 1.0).startswith("I play [")
