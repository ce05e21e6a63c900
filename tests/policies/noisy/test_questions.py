"""Both sides of twenty questions."""

import pytest

from rolltrace.policies.noisy.questions import answer_question, play_questions
from talk import rng, talk

NAME = "I am thinking of something. Ask, or guess with a line `Guess: NAME`."


def asked(secret, question):
    """What an answerer is sent."""
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
    """What is known of a thing is answered as it is, and spoilt with correct=0."""
    other = {"yes": "no", "no": "yes"}[answer]
    assert answer_question(asked(secret, question), rng(), 1.0) == f"Answer: {answer}"
    assert answer_question(asked(secret, question), rng(), 0.0) == f"Answer: {other}"


def test_what_it_does_not_know_it_always_answers_alike():
    """An unknown thing has one answer to each question, whatever the seed, and not the same to all."""
    questions = [f"Is it something number {number}?" for number in range(30)]
    first, again = (
        [answer_question(asked("flurb", question), rng(seed), 1.0) for question in questions] for seed in (1, 2)
    )
    assert first == again
    assert set(first) == {"Answer: yes", "Answer: no"}


def play_both(secret, turns=20):
    """A game between the two, without noise: what was said, and whether it was found."""
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


def test_the_player_goes_on_where_it_does_not_know():
    """A secret it has never heard of is asked and guessed about to the end, and nothing is said twice."""
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
