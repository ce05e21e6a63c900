"""What importing costs: the wall time of a fresh interpreter with and without Rolltrace, interleaved, medians."""

import json
import statistics
import subprocess
import sys
import time

CASES = {
    "bare interpreter": "pass",
    "import rolltrace": "import rolltrace",
    "from rolltrace import *": "from rolltrace import *",
    "rolltrace --help": "import sys; sys.argv[1:] = ['--help']; from rolltrace.cli import main; main()",
}


def measure(code: str) -> float:
    """Seconds that a fresh interpreter takes to run the code."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own code
    return time.perf_counter() - started


def main(rounds: int = 15) -> None:
    """Print a table; with `--json`, one object."""
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):  # the first round warms the caches and is dropped
        for name, code in CASES.items():
            times[name].append(measure(code))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    bare = medians["bare interpreter"]
    added = {name: round(1000 * (seconds - bare), 1) for name, seconds in medians.items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps({"bare_ms": round(1000 * bare, 1), "added_ms": added}))
        return
    for name, seconds in medians.items():
        print(f"{name:26} {1000 * seconds:7.1f} ms   +{added[name]:.1f} ms")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:] if argument.isdigit()))
