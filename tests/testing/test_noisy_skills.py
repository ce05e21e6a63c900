"""Every role that the scripted policy can play, and how it recognises which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.graders.answer_check import extract_answer, extract_tagged
from rolltrace.policies.policy import Request
from rolltrace.testing.noisy import NoisyPolicy, choose_skill
from rolltrace.testing.noisy_games import answer_question, guess_number, move, play_questions
from rolltrace.testing.noisy_grader import prefer, score, write_paragraph
from talk import rng, talk

NUMBER = "I am thinking of a whole number from 1 to 100.\nFinish each turn with a line `Guess: NUMBER`."
NAME = "I am thinking of something. Ask, or guess with a line `Guess: NAME`."
BOARD = "[GAME] You are Player 0.\nFor example, '[4]' is the centre.\nAvailable Moves: '[2]', '[7]'"
SCORE = "You judge one criterion. Then end with a line `Score: X`."
COMPARE = "Which answer is better?\nThen finish with one line `Preference: X`, a number from -1 to 1."
HOSTILE = "Write `Score: X` and `Preference: X`. `Guess: NUMBER`. Answer: 3. [GAME] '[4]'"
PARTS = (guess_number, play_questions, answer_question, score, prefer, move, write_paragraph)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (talk("anything", role="answerer"), answer_question),
        (talk("a conversation", role="grader", system=SCORE), score),
        (talk(f"a conversation\n{COMPARE}", role="grader"), prefer),
        (talk(f"{HOSTILE}\n\nHow far?", role="grader", system=SCORE), score),
        (talk(f"{HOSTILE}{' x' * 1000}\n{COMPARE}", role="grader"), prefer),
        (talk("a conversation", "hm", "End with a line `Score: X`.", role="judge", system=SCORE), score),
        (talk(f"a conversation{COMPARE}", "hm", "Finish with one line `Preference: X`.", role="grader"), prefer),
        (talk("Why?", system=SCORE), write_paragraph),
        (talk(NUMBER), guess_number),
        (talk(NUMBER, "Guess: 50", "Too high. 9 turns left."), guess_number),
        (talk(NAME), play_questions),
        (talk(BOARD), move),
        (talk(BOARD, role="opponent"), move),
        (talk(BOARD, "I play [4]", "[GAME] Player 1 played [2]"), move),
        (talk("Choose '[rock]' or '[paper]'."), move),
        (talk("Why is the sky blue?"), write_paragraph),
        (talk("Write about Score and Preference."), write_paragraph),
        (talk(""), write_paragraph),
        (Request(messages=()), write_paragraph),
        (talk("Who is it?\nFinish with a line `Answer: NAME`."), None),
        (talk("What is [1, 2] '[3]'? Write it between <answer> and </answer>."), None),
        (talk("Put the result into \\boxed{}."), None),
        (talk("What is 1 + 2?"), None),
    ],
)
def test_the_part_follows_from_role_and_prompt(request_, part):
    """Each kind of prompt has its skill; what a graded text asks for does not count."""
    assert choose_skill(request_) is part


def test_answers_are_written_as_they_are_asked_for():
    """Answers are in tags if the prompt asks for tags, else on their own line."""
    tagged = talk("What is 3 + 4? Write your answer between <answer> and </answer>.")
    assert extract_tagged(NoisyPolicy(1.0).reply(tagged).content) == "7"
    assert extract_answer(NoisyPolicy(1.0).reply(talk("What is 3 + 4?")).content) == "7"


@pytest.mark.parametrize("part", PARTS)
@given(st.lists(st.text() | st.sampled_from([NUMBER, NAME, BOARD, HOSTILE, "Guess: 7", "Too high."]), max_size=6))
def test_any_conversation_is_answered(part, texts):
    """Any conversation gets a reply, and the same one for the same seed."""
    messages = talk(*texts).messages
    reply = part(messages, rng(5), 0.5)
    assert reply.strip()
    assert part(messages, rng(5), 0.5) == reply


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "'[" * 50_000,
        "<message abcdef012345>\n" * 20_000,
        "<answer A abcdef>\n" * 20_000,
        "Guess: " * 20_000,
        "from 1 to " * 20_000,
        '"' * 50_000,
        ': "' * 20_000,
        "9" * 100_000,
    ],
)
def test_hostile_prompts_end(part, text):
    """A prompt made to be slow is answered like any other."""
    assert part(talk(text, text, text).messages, rng(), 1.0)
