"""`scripted:noisy` plays the built-in environments, with all their roles."""

import pytest

from rolltrace.envs.arithmetic import ArithmeticTasks
from rolltrace.envs.calculator import CalculatorTasks
from rolltrace.envs.guess_number import GuessNumberTasks
from rolltrace.envs.preference import PreferenceTasks
from rolltrace.envs.problems import ProblemsTasks
from rolltrace.envs.prompts import PromptsTasks
from rolltrace.envs.rubric import RubricTasks
from rolltrace.envs.tasks import iterate_groups
from rolltrace.envs.twenty_questions import TwentyQuestionsTasks
from rolltrace.rollout.memory_sink import MemorySink
from rolltrace.rollout.runner import Runner
from rolltrace.testing.noisy import NoisyPolicy

pytestmark = pytest.mark.core

TASKS = (
    ArithmeticTasks, CalculatorTasks, GuessNumberTasks, PreferenceTasks, ProblemsTasks, PromptsTasks, RubricTasks,
    TwentyQuestionsTasks,
)  # fmt: skip


async def play(tasks, correct=0.7, *, groups=3, episodes=4, concurrency=64):
    """The recorded rollouts by group and index."""
    sink = MemorySink()
    builders = iterate_groups(tasks, iteration=0, groups=groups, episodes=episodes, seed=5)
    async for _group in Runner(NoisyPolicy(correct), sink=sink, seed=5, concurrency=concurrency).play(builders):
        pass
    return sorted(sink.rollouts, key=lambda rollout: (rollout.group, rollout.index)), sink.scores


def rewards(rollouts, scores):
    """Each rollout's total, from its line or its scores, in the rollouts' order."""
    late = {score.rollout: score.value for score in scores if score.name == "reward"}
    return [late.get(rollout.id, rollout.reward) for rollout in rollouts]


@pytest.mark.parametrize("tasks", TASKS, ids=lambda tasks: tasks.env)
async def test_it_plays_every_environment(tasks):
    """Nothing fails, every rollout has a reward, and every role's reply could be used at once."""
    rollouts, scores = await play(tasks())
    assert len(rollouts) == 12
    assert {rollout.status for rollout in rollouts} == {"ok"}
    assert None not in rewards(rollouts, scores)
    calls = [call for record in (*rollouts, *scores) for call in record.calls]
    assert all(call.error is None and call.continues_call is None for call in calls)
    assert bool(calls) == (tasks.env in ("preference", "rubric", "twenty_questions"))


@pytest.mark.parametrize("tasks", TASKS, ids=lambda tasks: tasks.env)
async def test_the_same_seed_plays_the_same(tasks):
    """The play depends on the seed alone, whatever the concurrency."""
    (first, first_scores), (again, again_scores) = await play(tasks()), await play(tasks(), concurrency=1)
    assert [rollout.conversation for rollout in first] == [rollout.conversation for rollout in again]
    assert rewards(first, first_scores) == rewards(again, again_scores)
    assert [call.reply for rollout in first for call in rollout.calls] == [
        call.reply for rollout in again for call in rollout.calls
    ]


@pytest.mark.parametrize("tasks", [PreferenceTasks, RubricTasks, TwentyQuestionsTasks, GuessNumberTasks])
async def test_groups_have_a_signal(tasks):
    """Rewards within a group differ, so that a demo shows more than constants."""
    rollouts, scores = await play(tasks(), groups=4)
    by_group = {}
    for rollout, reward in zip(rollouts, rewards(rollouts, scores), strict=True):
        by_group.setdefault(rollout.group, set()).add(reward)
    assert any(len(different) > 1 for different in by_group.values())


@pytest.mark.parametrize(("tasks", "good"), [(GuessNumberTasks, 1.0), (TwentyQuestionsTasks, 0.5)])
async def test_a_policy_without_noise_does_better(tasks, good):
    """With correct=1 it earns what it can know."""
    best, worst = [await play(tasks(), correct, groups=8) for correct in (1.0, 0.0)]
    mean_best, mean_worst = (sum(rewards(*played)) / len(played[0]) for played in (best, worst))
    assert mean_best >= good > mean_worst


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0", "ConnectFour-v0"])
async def test_it_plays_games(game):
    """All seats make moves in brackets, and games end."""
    pytest.importorskip("textarena")
    textarena = pytest.importorskip("rolltrace.envs.textarena")
    rollouts, _ = await play(textarena.TextArenaTasks(game), 1.0, groups=2, episodes=2)
    assert len(rollouts) == 8
    assert {(rollout.status, rollout.stop_reason) for rollout in rollouts} == {("ok", "completed")}
