"""What a failed rollout means for its group, and which failures are retried."""

import math

import msgspec

from rolltrace.errors import InputError
from rolltrace.trace.failure import Failure
from rolltrace.trace.stop_reasons import Layer


class FailFast(msgspec.Struct, frozen=True, tag_field="name"):
    """The first failure ends the group: the other rollouts are aborted, awaited and recorded before clean-up."""


class KeepViable(msgspec.Struct, frozen=True, tag_field="name"):
    """The group counts if at least this fraction of its members, and at least one of them, is ok."""

    fraction: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise InputError(f"Expected KeepViable(fraction) from 0 to 1, got {self.fraction}.")

    def needed(self, members: int) -> int:
        """How many members must be ok."""
        return max(1, math.ceil(self.fraction * members))


Strategy = FailFast | KeepViable


def parse_strategy(text: str) -> Strategy:
    """A strategy by its name on the command line: `fail-fast`, `keep-viable` or `keep-viable:FRACTION`."""
    name, colon, fraction = text.partition(":")
    if name == "fail-fast" and not colon:
        return FailFast()
    if name != "keep-viable":
        raise InputError(f"Expected the strategy fail-fast, keep-viable or keep-viable:FRACTION, got {text!r}.")
    try:
        return KeepViable(float(fraction) if colon else 0.0)
    except ValueError:
        raise InputError(f"Expected keep-viable:FRACTION with a fraction from 0 to 1, got {text!r}.") from None


RETRIED_LAYERS = (Layer.POLICY, Layer.ENV)
"""The layers of failures that are retried."""


def can_retry(failure: Failure) -> bool:
    """Whether another attempt could succeed: the policy or the env failed."""
    return failure.layer in RETRIED_LAYERS
