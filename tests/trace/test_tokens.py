"""Token ids: handed in whole, stored once, and whole again when they are read."""

from hypothesis import given
from hypothesis import strategies as st

from drafts import header, outcome
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.draft import Draft, common_start
from rolltrace.trace.message import Message
from rolltrace.trace.rollout import Tokens

IDS = st.lists(st.integers(0, 2), max_size=8).map(tuple)
TURNS = st.lists(st.none() | st.tuples(IDS, IDS), max_size=6)


def drafted(turns):
    draft = Draft(header())
    draft.extend([Message("user", "?")])
    for tokens in turns:
        draft.send()
        draft.step(Message("assistant", "!"), reward=0.0, tokens=tokens)
    return draft.finish(outcome()).data


@given(TURNS)
def test_prompts_come_back_whole(turns):
    """Whatever a prompt has in common with the step before, its ids are all there again."""
    line = drafted([None if turn is None else Tokens(*turn) for turn in turns])
    rollout = decode_rollout(line)
    assert encode_rollout(rollout) == line
    for number, turn in enumerate(turns):
        assert rollout.prompt_tokens(number) == (None if turn is None else turn[0])
        assert (rollout.steps[number].tokens and rollout.steps[number].tokens.response) == (turn and turn[1])


def test_a_conversation_that_grows_stores_each_id_once():
    """What the step before held is not repeated, so that ids grow with the turns."""
    whole, turns = (1, 2, 3), []
    for turn in range(100):
        turns.append(Tokens(whole, (turn, turn), (-0.5, -0.5)))
        whole = (*whole, turn, turn, 9)
    rollout = decode_rollout(drafted(turns))
    assert [step.tokens.prompt for step in rollout.steps] == [(1, 2, 3), *[(9,)] * 99]
    assert rollout.prompt_tokens(99) == turns[99].prompt


@given(IDS, IDS)
def test_common_start(first, second):
    """As many as agree, one by one from the front."""
    agree = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        agree += 1
    assert common_start(first, second) == agree
