"""What live metrics cost: CPU time of recording an iteration with and without them, and of the loop that records.

Both ways alternate, iteration by iteration, in runs of their own; the tracker does nothing.
"""

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measure

import rolltrace
from rolltrace.store.writer import RunWriter


class Signal:
    """A tracker that says that something was logged."""

    def __init__(self) -> None:
        self.logged = threading.Event()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Wake up the loop."""
        self.logged.set()

    def close(self) -> None:
        """Nothing is open."""


def record(run: RunWriter, iteration: int, rollouts: int, texts: Sequence[str]) -> None:
    """One iteration of rollouts of two turns, about 4 KB each, in groups of eight."""
    for number in range(rollouts):
        group = f"{number // 8}"
        with run.rollout(env="sums", task=group, group=group, index=number % 8, iteration=iteration) as r:
            r.append(texts[number % len(texts)])
            for turn in range(2):
                text = texts[(number + turn) % len(texts)]
                parts = {"correct": number % 2, "format": 1.0}
                r.step(
                    None, text, number % 2, reward_data=parts, usage={"prompt_tokens": 400, "completion_tokens": 200}
                )
                r.append(text)


def measure_size(folder: Path, rollouts: int, iterations: int) -> dict[str, Any]:
    """Median CPU time of an iteration, without and with metrics; the first iteration loads the engine."""
    words = measure.MarkovText()
    texts = [words.words(130) for _ in range(50)]
    tracker = Signal()
    times: dict[bool, list[float]] = {False: [], True: []}
    loop: dict[bool, list[float]] = {False: [], True: []}
    with rolltrace.create_run(folder / "plain") as plain, rolltrace.create_run(folder / "logged") as logged:
        metrics = rolltrace.log_metrics(logged, tracker)
        for iteration in range(iterations + 1):
            for is_logged, run in ((False, plain), (True, logged)):
                tracker.logged.clear()
                before, thread = time.process_time(), time.thread_time()
                record(run, iteration, rollouts, texts)
                loop[is_logged].append(time.thread_time() - thread)
                run.flush()
                if is_logged:
                    metrics.log()
                    tracker.logged.wait()
                times[is_logged].append(time.process_time() - before)
        started = time.perf_counter()
    closing = time.perf_counter() - started
    without, with_metrics = (measure.median(times[is_logged][1:]) for is_logged in (False, True))
    added = 1000 * max(0.0, with_metrics - without)
    return {
        "rollouts": rollouts,
        "recording, ms": 1000 * without,
        "metrics, ms": added,
        "metrics per rollout, ms": added / rollouts,
        "first iteration, ms": 1000 * max(0.0, times[True][0] - times[False][0]),
        "the loop, with ÷ without": measure.median(loop[True][1:]) / measure.median(loop[False][1:]),
        "closing, s": closing,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = measure.parser(__doc__)
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args(arguments)
    sizes = [16] if options.quick else [64, 512, 4_096]
    iterations = 1 if options.quick else options.iterations
    rows = []
    for rollouts in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure_size(Path(folder), rollouts, iterations))
    tables = {"CPU time of an iteration": rows}
    report = {
        "benchmark": "live_metrics", **measure.machine(), "figures": tables,
        "parameters": {"sizes": sizes, "iterations": iterations},
    }  # fmt: skip
    measure.print_report(report, tables, options.json)


if __name__ == "__main__":
    main()
