"""Which part the scripted policy plays: told from the role it is asked in, and from what the prompt asks for."""

import random
import re
from collections.abc import Callable, Sequence

from rolltrace.policies.noisy.critic import PREFERENCE, SCORE, prefer, score
from rolltrace.policies.noisy.halving import guess_number
from rolltrace.policies.noisy.moves import is_game, move
from rolltrace.policies.noisy.paragraph import write_paragraph
from rolltrace.policies.noisy.questions import answer_question, play_questions
from rolltrace.policies.noisy.solver import find_expression, find_question
from rolltrace.policies.policy import Request
from rolltrace.policies.roles import POLICY_ROLE
from rolltrace.trace.message import Message

NoisySkill = Callable[[Sequence[Message], random.Random, float], str]
"""Says something to a conversation, with chance, right with a probability."""

_ASKS_FOR_ANSWER = re.compile(r"answer *:|</?answer>|\\boxed", re.IGNORECASE)
_LONGEST = 20_000


def choose_skill(request: Request) -> NoisySkill | None:
    """The part to play; None where there is a problem to be solved."""
    messages = request.messages
    if request.role == "answerer":
        return answer_question
    if request.role != POLICY_ROLE and (part := _grading(messages)) is not None:
        return part
    if request.tools:
        return None
    opening = next((message.content for message in messages if message.role == "user"), "")[:_LONGEST]
    if "`Guess: NUMBER`" in opening:
        return guess_number
    if "`Guess: NAME`" in opening:
        return play_questions
    if _ASKS_FOR_ANSWER.search("\n".join(_told(messages))):
        return None
    if is_game(messages):
        return move
    return None if find_expression(find_question(messages)) else write_paragraph


def _grading(messages: Sequence[Message]) -> NoisySkill | None:
    # What is graded stands in the middle of a user's message, and may ask for anything: it must not be taken for this.
    system = " ".join(message.content for message in messages if message.role == "system")
    last = messages[-1].content[-1000:] if messages else ""
    if SCORE in system or SCORE in last:
        return score
    return prefer if PREFERENCE in system or PREFERENCE in last else None


def _told(messages: Sequence[Message]) -> list[str]:
    return [message.content[-_LONGEST:] for message in (*messages[:1], *messages[-10:]) if message.role != "assistant"]
