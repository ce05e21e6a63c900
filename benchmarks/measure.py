"""Shared parts of the benchmarks: realistic text, interleaved rounds, the machine, and a table or one JSON object."""

import argparse
import itertools
import json
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

PACKAGES = ("rolltrace", "msgspec", "zstandard", "duckdb")
_WARM_BYTES = 32 << 20


class MarkovText:
    """Endless English-like text: a Markov chain of word pairs from the language reference that Python ships."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - not for secrets
        words = _reference()
        self._followers: dict[str, list[str]] = {}
        for word, following in itertools.pairwise(words):
            self._followers.setdefault(word, []).append(following)
        self._word = words[0]

    def words(self, count: int) -> str:
        """So many words, in a new order."""
        said = []
        for _ in range(count):
            self._word = self._rng.choice(self._followers.get(self._word, ["The"]))
            said.append(self._word)
        return " ".join(said)


class ReferenceText:
    """The language reference itself, passage by passage, and again from its start.

    It is about as long as what is compressed at once, so that next to nothing comes twice in that.
    """

    def __init__(self) -> None:
        self._words = itertools.cycle(_reference())

    def words(self, count: int) -> str:
        """The next so many words."""
        return " ".join(itertools.islice(self._words, count))


def _reference() -> list[str]:
    return " ".join(topics.values()).split()


def warm_allocator() -> None:
    """Allocates and frees a large block: a process that never did pays for its first megabytes page by page."""
    block = bytearray(_WARM_BYTES)
    del block


def cpu_seconds(action: Callable[[], Any]) -> float:
    """CPU time of the whole process, all its threads included, during the action."""
    started = time.process_time()
    action()
    return time.process_time() - started


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this fraction lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak_megabytes() -> float:
    """The peak memory of this process; macOS reports it in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def machine() -> dict[str, Any]:
    """The machine and the versions."""
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one object instead of tables")
    made.add_argument(
        "--quick", action="store_true", help="the smallest size that runs everything; figures mean little"
    )
    return made


def print_report(report: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]], as_json: bool) -> None:
    """Print the report as one object, or its tables for people."""
    if as_json:
        print(json.dumps(report))
        return
    from rich.console import Console
    from rich.table import Table

    # If the output is not a terminal, a table must not be truncated to a terminal's width.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left")
        for name in rows[0] if rows else ():
            table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
