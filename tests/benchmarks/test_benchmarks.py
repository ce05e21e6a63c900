"""The benchmarks run, at sizes at which their figures mean nothing; no test looks at a time."""

import functools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the benchmarks are in the checkout")
SHOWN = {
    "call_bytes": {"rubric of 4", "tournament of 16", "bytes / floor", "CPU ms per call"},
    "checks": {"the whole run", "512 new rollouts", "CPU seconds", "peak MB", "CPU ms"},
    "endpoint": {"requests per second", "CPU ms per request", "resident MB", "seconds to the end"},
    "engine": {"rollouts per CPU second"},
    "executors": {"2 workers", "times one worker", "added, ms", "largest worker, MB"},
    "live_metrics": {"recording, ms", "metrics per rollout, ms", "closing, s"},
    "replay": {"replayed per CPU second", "CPU of replaying ÷ playing"},
    "regrade": {"two cores: grading, a second", "CPU µs, workers", "exact"},
    "proxy": {"first byte", "a chunk", "p99 proxied", "times"},
    "trace_cost": {"naive", "recorder", "p99.9 ms", "compressed ÷ plain"},
    "store_scale": {"rollouts per second", "lowest reward first", "groups with a signal", "first ms", "peak MB"},
    "scale_simulator": {"LIST pages", "breaks first", "uploaded ÷ recorded", "rewritten ÷ read", "most segments"},
    "viewer": {"p95 ms", "sort by -reward", "search", "peak MB", "first page of rollouts"},
}
"""By script, some of what its tables must name."""


@functools.cache
def run(script, *options):
    """What a script prints at its smallest size."""
    words = [sys.executable, str(FOLDER / f"{script}.py"), "--quick", *options]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


def numbers(figures):
    """All numbers of a report, wherever they are."""
    if isinstance(figures, dict):
        figures = list(figures.values())
    if isinstance(figures, list):
        return [number for part in figures for number in numbers(part)]
    return [figures] if isinstance(figures, int | float) else []


@pytest.mark.parametrize("script", SHOWN)
def test_a_benchmark_gives_one_object(script):
    """With `--json` a benchmark prints one object: the machine, the versions, the parameters and the figures."""
    printed = run(script, "--json")
    assert len(printed.splitlines()) == 1
    report = json.loads(printed)
    assert report["benchmark"] == script
    assert {"machine", "cores", "python", "versions", "parameters", "figures"} <= set(report)
    assert report["versions"]["rolltrace"]
    assert any(numbers(report["figures"]))
    assert all(math.isfinite(number) and number >= 0 for number in numbers(report["figures"]))
    for word in SHOWN[script]:
        assert json.dumps(word)[1:-1] in printed


def test_a_benchmark_prints_tables():
    """Without `--json` the same figures are tables, with nothing cut off."""
    printed = run("engine")
    assert all(word in printed for word in SHOWN["engine"] | {"one_turn", "problem", "full", "off"})
    assert "…" not in printed


def test_endpoint_records_what_was_interrupted():
    """The benchmark of the endpoint stops a run with everything in flight, and finds all of it cancelled."""
    report = json.loads(run("endpoint", "--json"))
    in_flight = report["parameters"]["in_flight"]
    assert report["figures"]["stop"]
    for stopped in report["figures"]["stop"]:
        assert stopped["in flight"] == stopped["recorded"] == stopped["cancelled"] == in_flight
        assert stopped["exit code"] == 1


def test_trace_cost_measures_every_variant():
    """Every variant is measured at every length, each has a ratio to the floor, and the floor's own is one."""
    rows = json.loads(run("trace_cost", "--json"))["figures"]["CPU and bytes of one rollout"]
    variants = ["naive", "floor", "off", "numbers", "full", "dicts", "recorder", "append"]
    assert [(row["turns"], row["variant"]) for row in rows] == [(t, variant) for t in (1, 3) for variant in variants]
    assert {row["× floor"] for row in rows if row["variant"] == "floor"} == {1.0}
    on_disk = {row["variant"]: row["KB on disk"] for row in rows}
    assert on_disk["off"] == 0
    assert on_disk["numbers"] < on_disk["full"]


def test_store_scale_loses_nothing():
    """All rollouts of the scale benchmark are recorded, and its listings and questions find rows."""
    figures = json.loads(run("store_scale", "--json"))["figures"]
    assert figures["Writing"][0]["lost"] == 0
    [asked] = [rows for title, rows in figures.items() if "SQL" in title]
    assert {row["when"] for row in asked} == {"indexed", "compacted"}
    assert all(row["rows"] > 0 for row in asked)
