"""Every environment of the package passes its own check."""

import importlib.util

import pytest

from rolltrace.envs.registry import BUILT_IN, load_env
from rolltrace.testing.check_env import check_env

pytestmark = pytest.mark.core

GAMES = {
    "TicTacToe-v0": ({}, 2),
    "ConnectFour-v0": ({"play_as": 1}, 1),
    "KuhnPoker-v0": ({}, 2),
    "LiarsDice-v0": ({"players": 4}, 4),
    "ThreePlayerTicTacToe-v0": ({}, 3),
}
"""Board, cards and hidden information, an opponent who is asked, and more than two seats. And the seats."""


def violations(tasks, **arguments):
    """The violations of an environment's task."""
    return [str(found) for found in check_env(tasks.builder(1, episodes=3, seed=11), **arguments)]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_environment_conforms(name):
    """Each passes with its defaults, as `rolltrace run` plays it."""
    assert violations(load_env(name, {})) == []


@pytest.mark.parametrize("episodes", [1, 2])
def test_a_tournament_of_few_conforms(episodes):
    """A grader that compares members may refuse to grade the only one that answered."""
    assert check_env(load_env("preference", {}).builder(0, episodes=episodes, seed=0)) == []


def test_no_built_in_environment_is_missing():
    """The checked list has all names of the command line."""
    promised = "arithmetic problems prompts rubric preference calculator guess_number twenty_questions"
    assert set(promised.split()) == set(BUILT_IN)


def test_a_task_of_reasoning_gym_conforms():
    """The family's members are one-prompt environments like any other."""
    if importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("needs the extra `reasoning-gym`")
    assert violations(load_env("reasoning_gym:leg_counting", {})) == []


@pytest.mark.parametrize("name", GAMES)
def test_a_game_of_textarena_conforms(name):
    """Seats that wait for each other can be cancelled, closed and played again at every point."""
    pytest.importorskip("textarena")
    args, seats = GAMES[name]
    tasks = load_env(f"textarena:{name}", args)
    assert tasks.builder(0, episodes=1, seed=0).seats == seats
    assert violations(tasks, turns=3) == []
