from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.envs.tasks import Tasks, iterate_groups
from rolltrace.errors import InputError


class Numbered(Tasks):
    env = "numbered"

    def __init__(self, count):
        self.count = count

    def builder(self, number, *, episodes, seed):
        return ProblemGroup(env=self.env, task=str(number), question="", reference="", episodes=episodes, seed=seed)


def numbers(count, *, seed=0, iterations=1, groups=1):
    tasks = Numbered(count)
    return [
        int(builder.task)
        for iteration in range(iterations)
        for builder in iterate_groups(tasks, iteration=iteration, groups=groups, episodes=2, seed=seed)
    ]


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 6), st.integers(0, 5))
def test_every_task_comes_once_before_any_comes_again(count, groups, iterations, seed):
    """Each lap over a finite set visits every task once, however iterations divide it."""
    walked = numbers(count, seed=seed, iterations=iterations, groups=groups)
    for lap in range(0, len(walked) - count + 1, count):
        assert sorted(walked[lap : lap + count]) == list(range(count))
    counts = Counter(walked)
    assert max(counts.values()) - min((counts[n] for n in range(count)), default=0) <= 1


@given(st.integers(1, 12), st.integers(0, 5))
def test_iterations_cut_one_order(count, seed):
    """The order of tasks does not depend on how many iterations divide it."""
    assert numbers(count, seed=seed, iterations=12) == numbers(count, seed=seed, groups=12)


def test_seeds_and_laps_have_orders_of_their_own():
    """Each seed and each lap has its own order."""
    walked = numbers(30, groups=60)
    assert walked[:30] != walked[30:]
    assert walked[:30] != numbers(30, seed=1, groups=30)


def test_tasks_without_end_come_by_number():
    """Generated tasks are visited by number and never repeated."""
    assert numbers(None, iterations=3, groups=2) == [0, 1, 2, 3, 4, 5]


def test_episodes_and_seed_reach_the_builder():
    """The builder gets the number of episodes and the seed."""
    [builder] = iterate_groups(Numbered(1), iteration=0, groups=1, episodes=5, seed=9)
    assert (builder.episodes, builder.seed) == (5, 9)


def test_no_tasks_is_an_error():
    """An environment without tasks is refused."""
    with pytest.raises(InputError, match="at least one task"):
        numbers(0)
