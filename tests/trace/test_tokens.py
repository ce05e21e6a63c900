"""Token ids: given whole, stored once, and read back whole."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_builders import header, outcome
from rolltrace.trace.codec import decode_rollout, encode_rollout
from rolltrace.trace.message import Message
from rolltrace.trace.rollout_builder import RolloutBuilder
from rolltrace.trace.step_table import common_prefix_length
from rolltrace.trace.tokens import Tokens

IDS = st.lists(st.integers(0, 2), max_size=8).map(tuple)
TURNS = st.lists(st.none() | st.tuples(IDS, IDS), max_size=6)


def drafted(turns, said="!", raw=None):
    rollout_builder = RolloutBuilder(header())
    rollout_builder.extend([Message("user", "?")])
    for tokens in turns:
        rollout_builder.mark_prompt_sent()
        rollout_builder.step(Message("assistant", said), reward=0.0, tokens=tokens, raw=raw)
    return rollout_builder.encode(outcome()).data


@given(TURNS)
def test_prompts_come_back_whole(turns):
    """Whatever a prompt shares with the step before, all its ids are read back."""
    line = drafted([None if turn is None else Tokens(*turn) for turn in turns])
    rollout = decode_rollout(line)
    assert encode_rollout(rollout) == line
    for number, turn in enumerate(turns):
        assert rollout.prompt_tokens(number) == (None if turn is None else turn[0])
        assert (rollout.steps[number].tokens and rollout.steps[number].tokens.response) == (turn and turn[1])


def test_a_conversation_that_grows_stores_each_id_once():
    """Ids of the step before are not repeated, so that ids grow linearly with the turns."""
    whole, turns = (1, 2, 3), []
    for turn in range(100):
        turns.append(Tokens(whole, (turn, turn), (-0.5, -0.5)))
        whole = (*whole, turn, turn, 9)
    rollout = decode_rollout(drafted(turns))
    assert [step.tokens.prompt for step in rollout.steps] == [(1, 2, 3), *[(9,)] * 99]
    assert rollout.prompt_tokens(99) == turns[99].prompt


@given(IDS, IDS)
def test_common_start(first, second):
    """The common prefix is as long as the ids agree from the front."""
    agree = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        agree += 1
    assert common_prefix_length(first, second) == agree


@given(st.lists(st.text(max_size=4), max_size=6), st.booleans())
def test_char_lengths_split_the_text(pieces, parsed):
    """Each token's text is a slice of `raw`, or of the content if there is no `raw`; the text is stored once."""
    text = "".join(pieces)
    given_tokens = Tokens((1,), tuple(range(len(pieces))), char_lengths=tuple(map(len, pieces)))
    line = drafted([given_tokens], *(("!", text) if parsed else (text, None)))
    rollout = decode_rollout(line)
    assert encode_rollout(rollout) == line
    [step] = rollout.steps
    kept = step.trace.policy_response.content if step.raw is None else step.raw
    ends = [0, *accumulate(step.tokens.char_lengths)]
    assert [kept[start:end] for start, end in pairwise(ends)] == pieces
    assert rollout.notes == ()


@pytest.mark.parametrize(
    ("char_lengths", "text", "why"),
    [
        ((1,), "!", "one for each token"),
        ((1, 1), "!", "add up"),
        ((2, -1), "!", "add up"),
        ((1, 1), "\ud83d\ude00", "add up"),
        ((1, "x"), "!", "sequence of numbers"),
        (5, "!", "sequence of numbers"),
    ],
)
def test_char_lengths_that_do_not_fit_are_left_out(char_lengths, text, why):
    """The ids stand without them, and a note says why; text that is mended for the record has other characters."""
    rollout = decode_rollout(drafted([Tokens((1,), (2, 3), (-0.5, -0.25), char_lengths=char_lengths)], text))
    assert rollout.steps[0].tokens == Tokens((1,), (2, 3), (-0.5, -0.25))
    assert [note.path for note in rollout.notes if why in note.message] == ["steps[0].tokens.char_lengths"]


def test_missing_char_lengths_are_not_written():
    """A line without char_lengths does not have the field."""
    assert b'"tokens":{"prompt":[1],"response":[2],"logprobs":null}' in drafted([Tokens((1,), (2,))])
