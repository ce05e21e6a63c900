"""Which methods hold up the event loop, and with it every other rollout."""

from collections import defaultdict

from rolltrace.envs.conformance.report import Rule, ViolationLog

LONGEST = 0.5
"""Seconds for which a method may let nothing else run."""
_FEWEST = 3
"""Calls that must all have been too long: one may have been, because a machine is busy or a module was imported."""


class BlockedTimes:
    """Collects how long calls held up the loop, each kind of call by itself."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[float]] = defaultdict(list)

    def note(self, name: str, method: str, held: float) -> None:
        """Take in a call that returned; calls of one name do the same work."""
        self._held[name, method].append(held)

    def tell(self, report: ViolationLog) -> None:
        """Report the methods that always hold it up too long."""
        for (name, method), held in self._held.items():
            if len(held) >= _FEWEST and min(held) > LONGEST:
                report.add(
                    Rule.BLOCKING,
                    f"{name} let nothing else run for {min(held):.1f} s or more, at each of {len(held)} calls",
                    f"await in `{method}` whatever waits (`asyncio.sleep`, an async client), and run what computes "
                    "long or cannot be awaited with `asyncio.to_thread`",
                )
