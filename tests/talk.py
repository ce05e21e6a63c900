"""Building blocks for tests of scripted policies: conversations, and chance from a seed."""

import random

from rolltrace.policies.policy import Request
from rolltrace.trace.message import Message


def rng(seed=0):
    return random.Random(seed)


def talk(*texts, role="policy", system=None):
    """A request whose messages are a user's and an assistant's in turn."""
    roles = ("user", "assistant")
    messages = [Message(roles[number % 2], text) for number, text in enumerate(texts)]
    before = () if system is None else (Message("system", system),)
    return Request(messages=(*before, *messages), role=role, seed=0)
