"""Moves in square brackets."""

import re

from rolltrace.policies.noisy.moves import move
from talk import rng, talk

BOARD = "[GAME] You are Player 0.\nFor example, '[4]' is the centre.\nAvailable Moves: '[2]', '[7]'"


def test_an_open_move_is_played():
    """The moves that the prompt lists last are played; by mistake one like those mentioned, with other numbers."""
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
