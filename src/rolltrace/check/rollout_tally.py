"""Audits that look at one rollout after the other, and have one finding for each env."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from rolltrace.check.audit import MAX_EXAMPLES, Finding
from rolltrace.check.settings import CheckSettings
from rolltrace.trace.rollout import Rollout

IsWrong = Callable[[Rollout, CheckSettings], bool | None]
"""Whether a rollout is wrong; None if it has nothing to look at."""


def tallied(message: str) -> Callable[[IsWrong], type]:
    """Make an audit of a function that judges one rollout. The message may name `{count}` and `{of}`."""

    def make(is_wrong: IsWrong) -> type:
        class Tally:
            __doc__ = is_wrong.__doc__

            def __init__(self, settings: CheckSettings) -> None:
                self._settings = settings
                self._looked_at: Counter[tuple[str, str]] = Counter()
                self._counts: Counter[tuple[str, str]] = Counter()
                self._ids: dict[tuple[str, str], list[str]] = {}

            def __call__(self, rollout: Rollout) -> tuple[Finding, ...]:
                if (wrong := is_wrong(rollout, self._settings)) is not None:
                    scope = rollout.split, rollout.env
                    self._looked_at[scope] += 1
                    if wrong:
                        self._counts[scope] += 1
                        ids = self._ids.setdefault(scope, [])
                        if len(ids) < MAX_EXAMPLES:
                            ids.append(rollout.id)
                return ()

            def end(self) -> Iterator[Finding]:
                for (split, env), count in sorted(self._counts.items()):
                    of = self._looked_at[split, env]
                    data: dict[str, Any] = {"count": count, "of": of, "share": count / of}
                    ids = tuple(self._ids[split, env])
                    yield Finding(message.format(count=count, of=of), ids, f"{split}/{env}", data=data)

        Tally.__name__ = is_wrong.__name__
        return Tally

    return make
