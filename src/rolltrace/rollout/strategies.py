"""What a failed rollout means to its group."""

import math

import msgspec

from rolltrace.errors import InputError
from rolltrace.trace.outcome import Layer
from rolltrace.trace.rollout import Failure


class FailFast(msgspec.Struct, frozen=True):
    """The first failure ends the group: its siblings are cancelled, awaited and recorded before clean-up."""


class Retry(msgspec.Struct, frozen=True):
    """An episode that failed in policy or env is played anew, up to so many times, each attempt with its records."""

    times: int = 1

    def __post_init__(self) -> None:
        if self.times < 0:
            raise InputError(f"Expected Retry(times) of 0 or more, got {self.times}.")

    def applies_to(self, failure: Failure) -> bool:
        """Whether another attempt could help."""
        return failure.layer in (Layer.POLICY, Layer.ENV)


class KeepViable(msgspec.Struct, frozen=True):
    """Failures are kept as data; the group counts while at least this share of its members, and one, is ok."""

    share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"Expected KeepViable(share) from 0 to 1, got {self.share}.")

    def needed(self, members: int) -> int:
        """How many members must be ok."""
        return max(1, math.ceil(self.share * members))


Strategy = FailFast | Retry | KeepViable
