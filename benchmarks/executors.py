"""What executors give and cost: two workers against one on envs that compute, the cost of a group, and memory.

Times are those of the second iteration, without the start of the workers. The ways alternate, and medians are shown.
Ray is measured if it is installed.
"""

import contextlib
import hashlib
import importlib.util
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure

import rolltrace
from rolltrace.envs.env import Env, EnvGroupBuilder, Observation, StepResult
from rolltrace.envs.tasks import Tasks
from rolltrace.policies.policy import Completion
from rolltrace.trace.message import Message

EPISODES = 4
_ACTOR = b"ray::RolltraceWorker"


class Computing(Env):
    """Computes in its only turn."""

    takes_any_completion = True

    def __init__(self, loops: int) -> None:
        self._loops = loops

    async def initial_observation(self) -> Observation:
        """A problem."""
        return Observation((Message("user", "What is 1 + 1? End with Answer: X"),))

    async def step(self, completion: Completion) -> StepResult:
        """Hash a short text many times, which holds the interpreter's lock."""
        digest = b""
        for _ in range(self._loops):
            digest = hashlib.sha256(digest).digest()
        return StepResult(float(digest[:1] < b"\x80"), done=True)


class ComputingGroup(EnvGroupBuilder):
    """Episodes of one task."""

    env = "computing"

    def __init__(self, number: int, episodes: int, loops: int) -> None:
        self.task = str(number)
        self.episodes = episodes
        self.loops = loops

    async def make_episode(self, number: int) -> Sequence[Env]:
        """A new env."""
        return (Computing(self.loops),)


class ComputingTasks(Tasks):
    """Tasks without end."""

    env = "computing"

    def __init__(self, loops: int) -> None:
        self.loops = loops

    def builder(self, number: int, *, episodes: int, seed: int) -> EnvGroupBuilder:
        """A group."""
        return ComputingGroup(number, episodes, self.loops)


def seconds(loops: int, groups: int, executor: Mapping[str, Any]) -> float:
    """The time of the second iteration."""
    ends: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        rolltrace.play(
            ComputingTasks(loops),
            "scripted:noisy",
            out=Path(folder) / "run",
            groups=groups,
            group_size=EPISODES,
            iterations=2,
            on_group=lambda group: ends.update({group.key.iteration: time.perf_counter()}),
            **executor,
        )
    return ends[1] - ends[0]


def measure_speed(groups: int, rounds: int) -> list[dict[str, Any]]:
    """Envs that compute about 5 ms: this process, one worker, two workers."""
    ways: dict[str, dict[str, Any]] = {"this process": {}, "1 worker": {"workers": 1}, "2 workers": {"workers": 2}}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, executor in ways.items():
            times[name].append(seconds(8_000, groups, executor))
    one = times["1 worker"]
    return [
        {
            "executor": name,
            "rollouts a second": groups * EPISODES / measure.median(values),
            "times one worker": measure.median([first / value for first, value in zip(one, values, strict=True)]),
        }
        for name, values in times.items()
    ]


def measure_cost(groups: int, rounds: int) -> list[dict[str, Any]]:
    """Envs that do nothing: the time of a group, and what is added to that of this process."""
    ways: dict[str, dict[str, Any]] = {"this process": {}, "1 worker": {"workers": 1}}
    if importlib.util.find_spec("ray") is not None:
        ways["1 Ray actor"] = {"ray": True, "workers": 1}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, executor in ways.items():
            times[name].append(1000 * seconds(0, groups, executor) / groups)
    base = measure.median(times["this process"])
    return [
        {"executor": name, "ms a group": measure.median(values), "added, ms": max(0.0, measure.median(values) - base)}
        for name, values in times.items()
    ]


def measure_memory(rollouts: int, executor: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The resident size of this process and of its two workers, after each of four iterations."""
    groups = rollouts // EPISODES // 4
    rows = []

    def look(_: Any) -> None:
        nonlocal played
        played += 1
        if played % groups == 0:
            sizes = [_resident_mb(process) for process in _workers()]
            row = {"rollouts": played * EPISODES, "this process, MB": _resident_mb(os.getpid())}
            rows.append({**row, "largest worker, MB": max(sizes, default=0.0)})

    played = 0
    with tempfile.TemporaryDirectory() as folder:
        rolltrace.play(
            ComputingTasks(0), "scripted:noisy", out=Path(folder) / "run", groups=groups, group_size=EPISODES,
            iterations=4, workers=2, on_group=look, **executor,
        )  # fmt: skip
    return rows


def _resident_mb(process: int) -> float:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) / 1024 if found else 0.0


def _workers() -> Iterable[int]:
    """The worker processes of this process, or the actors of the cluster that it has started."""
    descendants = list(_descendants(os.getpid()))
    names = {process: Path(f"/proc/{process}/cmdline").read_bytes() for process in descendants}
    return [process for process, name in names.items() if b"multiprocessing.spawn" in name or _ACTOR in name]


def _descendants(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the tables."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=100_000, help="for the memory")
    options = parser.parse_args(arguments)
    rounds = 1 if options.quick else options.rounds
    groups, many, rollouts = (4, 8, 64) if options.quick else (150, 1_000, options.rollouts)
    tables = {
        "Envs that compute": measure_speed(groups, rounds),
        "Cost of a group": measure_cost(many, rounds),
        "Memory of two workers": measure_memory(rollouts, {}),
    }
    if importlib.util.find_spec("ray") is not None:
        tables["Memory of two Ray actors"] = measure_memory(rollouts, {"ray": True})
    report = {
        "benchmark": "executors", **measure.machine(), "figures": tables,
        "parameters": {"groups": groups, "groups of the cost": many, "rollouts": rollouts, "rounds": rounds},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
