"""How many single-turn rollouts a second the engine plays, with a policy that answers at once."""

import asyncio
import contextlib
import cProfile
import gc
import itertools
import pstats
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import measure

from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.envs.problem_env import ProblemGroup
from rolltrace.jobs.gc_threshold import raised_gc_threshold
from rolltrace.policies.policy import Completion
from rolltrace.rollout.group_runner import GroupResult
from rolltrace.rollout.runner import Runner
from rolltrace.store.create import create_run
from rolltrace.store.writer import RunWriter
from rolltrace.testing.scripted import ScriptedReplies
from rolltrace.trace.message import Message

LEVELS = ("full", "off")
REPLY = "Both numbers are small, so I add them in my head.\nAnswer: 7"
_HOTTEST = 25


class OneTurn(Env):
    """Shows one message and rewards any reply, so that only the engine is measured."""

    takes_any_completion = True

    def __init__(self, question: str) -> None:
        self._question = question

    async def initial_observation(self) -> Observation:
        """The question."""
        return Observation((Message("user", self._question),))

    async def step(self, completion: Completion) -> StepResult:
        """One."""
        return StepResult(1.0, done=True, reward_data={"correct": 1.0, "format": 1.0}, extra={"reference": "7"})


class OneTurnGroup(EnvGroupBuilder):
    """Plays one question for the given number of episodes."""

    env = "one_turn"

    def __init__(self, number: int, episodes: int) -> None:
        self.task = str(number)
        self.episodes = episodes
        self.seed = number

    async def make_episode(self, number: int) -> Sequence[Env]:
        """One fresh env."""
        return (OneTurn(f"What is {self.task} + 1?"),)


def problem_group(number: int, episodes: int) -> ProblemGroup:
    """A built-in environment, which parses the reply and checks the answer."""
    question = f"What is {number} + 1?"
    return ProblemGroup(
        env="problem", task=str(number), question=question, reference="7", episodes=episodes, seed=number
    )


ENVS: dict[str, Callable[[int, int], EnvGroupBuilder]] = {"one_turn": OneTurnGroup, "problem": problem_group}


async def play(run: RunWriter, builders: Iterator[EnvGroupBuilder], in_flight: int) -> int:
    """Plays all groups, and drops each when it has ended."""
    runner = Runner(ScriptedReplies([REPLY]), sink=run, concurrency=in_flight)
    results: AsyncIterator[GroupResult] = runner.play(builders)
    return sum([len(group.members) async for group in results])


def once(env: str, level: str, options: Any) -> tuple[float, float]:
    """Rollouts per second of CPU (with the writer's thread) and of wall time, until all are on disk."""
    groups = max(1, options.rollouts // options.group_size)
    builders = (ENVS[env](number, options.group_size) for number in range(groups))
    with tempfile.TemporaryDirectory() as folder, create_run(Path(folder) / "run", trace=level) as run:
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        with raised_gc_threshold():  # as `rolltrace.play` and `rolltrace run` do
            played = asyncio.run(play(run, builders, options.in_flight))
        run.flush()
        return played / (time.process_time() - cpu), played / (time.perf_counter() - wall)


def profile(options: Any) -> None:
    """Print where the time goes."""
    profiler = cProfile.Profile()
    with profiler:
        once("one_turn", "full", options)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(_HOTTEST)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, interleaved, and print medians."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=20_000, help="in each round")
    parser.add_argument("--in-flight", type=int, default=1_000)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="print the hottest functions instead")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rollouts, options.rounds = 200, 1
    measure.warm_allocator()
    if options.profile:
        profile(options)
        return
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number, (env, level) in itertools.product(range(options.rounds + 1), itertools.product(ENVS, LEVELS)):
        measured = once(env, level, options)
        if number > 0:  # the first round warms up
            rates.setdefault((env, level), []).append(measured)
    figures = [
        {
            "env": env,
            "trace": level,
            "rollouts per CPU second": round(measure.median([cpu for cpu, _ in measured])),
            "best": round(max(cpu for cpu, _ in measured)),
            "rollouts per second": round(measure.median([wall for _, wall in measured])),
        }
        for (env, level), measured in rates.items()
    ]
    parameters = {name: getattr(options, name) for name in ("rollouts", "in_flight", "group_size", "rounds")}
    report = {"benchmark": "engine", **measure.machine(), "parameters": parameters, "figures": figures}
    title = (
        f"Engine: {options.in_flight:,} in flight, groups of {options.group_size}, medians of {options.rounds} rounds"
    )
    measure.print_report(report, {title: figures}, options.json)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
