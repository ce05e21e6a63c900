"""What was said in a rollout, each message once, in the order in which it was said."""

from collections.abc import Sequence
from itertools import takewhile

from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Range, Rollout


def messages_in_order(rollout: Rollout) -> tuple[Message, ...]:
    """The first prompt, then all that came after it, also where an env replaces its history.

    Empty where the policy never answered.
    """
    teller = _Teller(rollout.messages)
    for step in rollout.steps:
        teller.tell(step.prompt)
        if isinstance(step.response, int):
            teller.tell([(step.response, step.response + 1)])
        else:
            teller.told.append(step.response)
    if rollout.steps:
        teller.tell(rollout.final)
    return tuple(teller.told)


def common_prompt(first: Rollout, second: Rollout) -> tuple[Message, ...]:
    """The messages with which the first prompts of both begin: the whole prompt where they play the same task."""
    if not first.steps or not second.steps:
        return ()
    both = zip(first.steps[0].trace.prompt, second.steps[0].trace.prompt, strict=False)
    return tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both))


def messages_after_prompt(rollout: Rollout, prompt: Sequence[Message]) -> tuple[Message, ...]:
    """What follows this prompt, with which the rollout began."""
    return messages_in_order(rollout)[len(prompt) :]


class _Teller:
    """Tells each place of a table of messages once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._all_below = 0
        """All places below this one are told: a conversation that only grows is not looked through at every turn."""
        self._known: set[int] = set()
        self.told: list[Message] = []

    def tell(self, ranges: Sequence[Range]) -> None:
        for first, last in ranges:
            for place in range(max(first, self._all_below), last):
                if place not in self._known:
                    self._known.add(place)
                    self.told.append(self._messages[place])
            if first <= self._all_below:
                self._all_below = max(self._all_below, last)
