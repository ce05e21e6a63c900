"""How fast stored rollouts are graded again by answer checks: the grading alone, and the whole call with its report.

Rollouts have one turn of 130 words. CPU time is that of the process that writes, and of the workers that read and
grade. On two cores both work at the same time: the slower of the two, or half of their sum, limits the rate.
"""

import importlib.util
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure

import rolltrace
from rolltrace.graders.scoring_pool import SCORING_POOL


def record(path: Path, rollouts: int) -> None:
    """A run in groups of eight; every third answer is wrong."""
    words = measure.MarkovText()
    texts = [words.words(130) for _ in range(50)]
    with rolltrace.create_run(path) as run:
        for number in range(rollouts):
            group = str(number // 8)
            answer = f"{number}/7"
            said = answer if number % 3 else f"{number + 1}/7"
            with run.rollout(
                env="sums", task=group, group=group, index=number % 8, task_data={"answer": answer}
            ) as one:
                prompt = [{"role": "user", "content": texts[number % 49]}]
                text = f"{texts[number % 50]}\nAnswer: {said}"
                one.step(prompt=prompt, response=text, reward=float(said == answer))
            if number % 1000 == 0:
                run.flush()


def child_seconds() -> float:
    """CPU time of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_grader(path: Path, grader: str, rollouts: int) -> dict[str, Any]:
    """One regrade; with fewer rollouts than the run has, of its first ones."""
    where = None if grader != "math" else f'try_cast("group" as bigint) < {rollouts // 8}'
    own, children, started = time.process_time(), child_seconds(), time.perf_counter()
    moments: list[float] = []
    summary = rolltrace.regrade(path, grader, where=where, on_progress=lambda *_: moments.append(time.process_time()))
    SCORING_POOL.stop()
    wall = time.perf_counter() - started
    own, children = time.process_time() - own, child_seconds() - children
    grading = moments[-1] - moments[0]
    return {
        "check": grader,
        "rollouts": summary.graded,
        "CPU µs, grading": 1e6 * grading / summary.graded,
        "CPU µs, whole call": 1e6 * own / summary.graded,
        "CPU µs, workers": 1e6 * children / summary.graded,
        "two cores: grading, a second": summary.graded / max(grading, (grading + children) / 2),
        "two cores: whole call, a second": summary.graded / max(own, (own + children) / 2),
        "now: whole call, a second": summary.graded / wall,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = measure.parser(__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    options = parser.parse_args(arguments)
    rollouts = 64 if options.quick else options.rollouts
    checks = {"exact": rollouts, "number": rollouts}
    if importlib.util.find_spec("math_verify") is not None:
        checks["math"] = min(rollouts, 2_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        record(path, rollouts)
        list(rolltrace.open_run(path).sql("select count(*) from rollouts"))  # a run that was looked at before
        rows = [measure_grader(path, grader, count) for grader, count in checks.items()]
    tables = {"Regrading": rows}
    report = {
        "benchmark": "regrade", **measure.machine(), "figures": tables, "parameters": {"rollouts": rollouts},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
