"""How many rollouts a second `rolltrace replay` plays and compares, against playing and recording them.

Both play the same groups with scripted answers. They alternate, and medians of CPU time are shown.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import measure

import rolltrace

ENVS = ("arithmetic", "calculator", "preference")
"""One turn, turns with tools, and a grader that compares the members of a group in many model calls."""
EPISODES = 8


def measure_env(env: str, groups: int, rounds: int) -> dict[str, Any]:
    """Play a run in each round, and replay it."""
    playing, replaying = [], []
    rollouts = groups * EPISODES
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            size = {"groups": groups, "group_size": EPISODES}
            playing.append(measure.cpu_seconds(partial(rolltrace.play, env, "scripted:noisy", out=path, **size)))
            report = rolltrace.replay_run(path, limit=1)  # makes the tables
            replaying.append(measure.cpu_seconds(partial(rolltrace.replay_run, path)))
            if not report.is_equal:
                raise SystemExit(f"The replay of {env} differs:\n{report}")
    return {
        "environment": env,
        "played per CPU second": rollouts / measure.median(playing),
        "replayed per CPU second": rollouts / measure.median(replaying),
        "CPU of replaying ÷ playing": measure.median([new / old for old, new in zip(playing, replaying, strict=True)]),
    }


def main() -> None:
    """Measure all environments."""
    options = measure.parser(__doc__).parse_args()
    groups, rounds = (2, 1) if options.quick else (250, 3)
    measure.warm_allocator()
    rows = [measure_env(env, groups, rounds) for env in ENVS]
    report = {
        "benchmark": "replay",
        **measure.machine(),
        "parameters": {"groups": groups, "episodes": EPISODES, "rounds": rounds},
        "figures": {row["environment"]: row for row in rows},
    }
    measure.print_report(report, {"rolltrace replay": rows}, options.json)


if __name__ == "__main__":
    main()
